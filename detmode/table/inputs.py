"""The inputs that several families' samples share: layouts, special values, repeated indices."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from math import inf, nan
from typing import Any

import torch

from detmode.table.maker import Maker
from detmode.table.rule_table import resolve

Arguments = dict[str, Any]
"""Of one call, by schema name."""


def of_schema(op: str, known: Arguments) -> Arguments:
    """Those of ``known`` that the operator takes; all of them where no loaded library has it."""
    func = resolve(op)
    names = known if func is None else [argument.name for argument in func._schema.arguments]
    return {name: known[name] for name in names if name in known}


def back_to_front(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, with the dimensions stored in the opposite order."""
    back = tuple(reversed(range(tensor.dim())))
    return tensor.permute(back).contiguous().permute(back)


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in channels_last or channels_last_3d; of 4 or 5 dimensions."""
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return tensor if form is None else tensor.contiguous(memory_format=form)


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, contiguous, beginning one element into their storage."""
    storage = torch.cat([tensor.flatten()[:1], tensor.flatten()])
    return storage[1:].view(tensor.shape)


def narrow(tensor: torch.Tensor) -> torch.Tensor:
    """Indices as int32."""
    return tensor.int() if tensor.dtype is torch.int64 else tensor


def cut(*sizes: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Takes of each of the first dimensions so many elements."""
    return lambda tensor: tensor[tuple(map(slice, sizes))]


def from_the_end(arguments: Arguments) -> Arguments:
    """The same call with ``dim`` counted from the end."""
    dims = next(value.dim() for value in arguments.values() if isinstance(value, torch.Tensor))
    return {**arguments, "dim": arguments["dim"] - dims}


def each_tensor(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[Arguments], Arguments]:
    """A change of every tensor of a call; it raises ValueError where it changes none."""

    def changed(arguments: Arguments) -> Arguments:
        changed_arguments = {
            name: change(value) if isinstance(value, torch.Tensor) else value
            for name, value in arguments.items()
        }
        if all(_form(changed_arguments[name]) == _form(value) for name, value in arguments.items()):
            raise ValueError(f"{change.__name__} leaves every tensor as it is: {list(arguments)}")
        return changed_arguments

    return changed


def _form(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return None
    return value.dtype, value.stride(), value.storage_offset()


strided = each_tensor(back_to_front)
last = each_tensor(channels_last)

VARIANTS: Mapping[str, Callable[[Arguments], Arguments]] = {
    "non_contiguous": strided,
    "channels_last": last,
    "shifted": each_tensor(shifted),
    "int32": each_tensor(narrow),
    "negative_dim": from_the_end,
}
"""Other forms of a call, by the name that a sample asks for them by."""

LAYOUTS = ("non_contiguous", "channels_last")

SPECIAL = (1.0, nan, -0.0, 2.0, inf, -inf, inf, 1e-40, 6e-8, -0.0, -0.0, 3e38, 3e38, 3.0)
"""NaN, infinities, signed zeros, denormals, and large values whose sum overflows."""


def special(arguments: Arguments, name: str, step: int = 1) -> Arguments:
    """The same call with :data:`SPECIAL` in every ``step``-th element of a contiguous tensor."""
    elements = arguments[name].view(-1)[::step]
    values = torch.tensor(SPECIAL[: len(elements)], dtype=torch.float64, device="cpu")
    elements[: len(values)] = values.to(elements)
    return arguments


def factors(arguments: Arguments, name: str) -> Arguments:
    """The same call with factors of which many can be multiplied: near 1, or odd integers."""
    values = arguments[name]
    if values.dtype is torch.bool:
        return arguments
    if not values.is_floating_point():
        return {**arguments, name: 2 * values + 1}
    near = torch.exp2(torch.tanh(values.double()) / 4) * values.double().sign()
    return {**arguments, name: near.to(values.dtype)}


def indexed_rows(
    make: Maker, shape: Sequence[int], dim: int, rows: int, spread: int | None = None, **more: Any
) -> Arguments:
    """``rows`` rows of ``source`` for the first ``spread`` positions of ``dim``."""
    source = list(shape)
    source[dim] = rows
    index = make.integers(0, min(spread or shape[dim], shape[dim]), rows)
    arguments = {"self": make.normal(*shape), "dim": dim, "index": index}
    return {**arguments, "source": make.normal(*source), **more}


def routed(make: Maker, tokens: int, per_token: int) -> torch.Tensor:
    """Positions of tokens, each as often as it has experts, in the order of the experts."""
    return make.integers(0, 1 << 62, tokens * per_token).argsort() % tokens


def combined(make: Maker, tokens: int, per_token: int, width: int) -> Arguments:
    """The outputs of experts, ``per_token`` for a token, added up for the tokens."""
    index = routed(make, tokens, per_token)
    return indexed_rows(make, [tokens, width], 0, tokens * per_token, index=index)


def scattered(
    make: Maker,
    shape: Sequence[int],
    dim: int,
    index: Sequence[int],
    src: Sequence[int] | None = None,
    spread: int | None = None,
    **more: Any,
) -> Arguments:
    """Elements of ``src`` and an index of the shape ``index`` for each."""
    size = shape[dim] if shape else 1
    arguments = {"self": make.normal(*shape), "dim": dim}
    arguments["index"] = make.integers(0, min(spread or size, size), *index)
    return {**arguments, "src": make.normal(*(index if src is None else src)), **more}


def scattered_rows(
    make: Maker, shape: Sequence[int], dim: int, rows: int, spread: int | None = None, **more: Any
) -> Arguments:
    """One index for a whole row, expanded to the shape of ``src``."""
    src = list(shape)
    src[dim] = rows
    sizes = [rows if d == dim else 1 for d in range(len(src))]
    index = make.integers(0, spread or shape[dim], *sizes).expand(src)
    arguments = {"self": make.normal(*shape), "dim": dim, "index": index}
    return {**arguments, "src": make.normal(*src), **more}


def routed_rows(make: Maker, tokens: int, per_token: int, width: int) -> Arguments:
    """The outputs of experts, ``per_token`` for a token, scattered to the tokens."""
    arguments = scattered_rows(make, [tokens, width], 0, tokens * per_token)
    index = routed(make, tokens, per_token).view(-1, 1)
    return {**arguments, "index": index.expand_as(arguments["src"])}


def scattered_batches(make: Maker, **more: Any) -> Arguments:
    """One index for a row of the last dimension, another one in each batch."""
    index = make.integers(0, 6, 3, 70, 1).expand(3, 70, 24)
    arguments = {"self": make.normal(3, 6, 24), "dim": 1, "index": index}
    return {**arguments, "src": make.normal(3, 70, 24), **more}


def sparse_matrix(
    make: Maker,
    rows: int,
    columns: int,
    entries: int,
    layout: str = "coo",
    spread: int | None = None,
) -> torch.Tensor:
    """Entries at random places of a matrix, of which some may be the same.

    Args:
        make: gives places and values.
        rows: of the matrix.
        columns: of the matrix.
        entries: their number; fewer stay where those of one place are added up.
        layout: ``"coo"``, in which none are added up; ``"coalesced"``, or the compressed ``"csr"``,
            ``"csc"`` and ``"csr_int32"``, whose positions have 32 bits; or ``"bsr"`` of 2 by 2.
        spread: the first rows, among which the entries lie.
    """
    places = [make.integers(0, spread or rows, entries), make.integers(0, columns, entries)]
    with warnings.catch_warnings():
        # PyTorch says once that compressed rows are in beta, and 2.11 and 2.12 that nothing is
        # checked, even where it is.
        warnings.simplefilter("ignore", UserWarning)
        matrix = torch.sparse_coo_tensor(
            torch.stack(places),
            make.normal(entries),
            (rows, columns),
            check_invariants=True,
            device=make.device,
        )
        if layout == "coo":
            return matrix
        matrix = matrix.coalesce()
        if layout == "coalesced":
            return matrix
        if layout == "csc":
            return matrix.to_sparse_csc()
        if layout == "bsr":
            return matrix.to_dense().to_sparse_bsr((2, 2))
        matrix = matrix.to_sparse_csr()
        if layout == "csr":
            return matrix
        ends, others = matrix.crow_indices().int(), matrix.col_indices().int()
        return torch.sparse_csr_tensor(
            ends, others, matrix.values(), size=matrix.shape, device=make.device
        )


def sparse_call(
    make: Maker,
    layout: str,
    sizes: Sequence[int] = (6, 5, 3),
    entries: int = 30,
    spread: int | None = None,
    *,
    names: Sequence[str],
    adds: bool = False,
    vector: bool = False,
    second: bool = False,
    change: Callable[[torch.Tensor], torch.Tensor] | None = None,
    **more: Any,
) -> Arguments:
    """The call of a product of a sparse matrix and a dense one.

    Args:
        make: gives places and values.
        layout: of the sparse matrix, as for :func:`sparse_matrix`.
        sizes: m, k and n of factors (m, k) and (k, n).
        entries: as for :func:`sparse_matrix`.
        spread: as for :func:`sparse_matrix`.
        names: the factors' names.
        adds: the call has a ``self``, to which the product is added.
        vector: the second factor is (k,), and n is not used.
        second: the second factor is the sparse one.
        change: changes the dense factor.
        more: other arguments.
    """
    m, k, *n = sizes[:2] if vector else sizes
    matrix = sparse_matrix(make, *((k, n[0]) if second else (m, k)), entries, layout, spread)
    dense = make.normal(m, k) if second else make.normal(k, *n)
    dense = change(dense) if change else dense
    call = dict(zip(names, (dense, matrix) if second else (matrix, dense)))
    if adds:
        call["self"] = make.normal(m, *n)
    return {**call, **more}


Assigned = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""The tensor that is written to, the place of each element (row-major), and the elements."""


def places(tensor: torch.Tensor) -> torch.Tensor:
    """The row-major position of each element."""
    return torch.arange(tensor.numel(), device="cpu").view(tensor.shape)


def padded(make: Maker, shape: Sequence[int], padding: Sequence[int]) -> Arguments:
    """The backward of a padding; of the last dimension first, before and after."""
    result = list(shape)
    for axis, (before, after) in enumerate(zip(padding[::2], padding[1::2])):
        result[-1 - axis] += before + after
    grad_output, self = make.normal(*result), make.normal(*shape)
    return {"grad_output": grad_output, "self": self, "padding": list(padding)}


def resized(
    make: Maker,
    batch: Sequence[int],
    size: Sequence[int],
    out: Sequence[int],
    align_corners: bool = False,
    *scales: float | None,
) -> Arguments:
    """The backward of a resize of ``size`` to ``out`` with ``batch`` (N, C) before."""
    names = ("scales",) if len(size) == 1 else ("scales_d", "scales_h", "scales_w")[-len(size) :]
    return {
        "grad_output": make.normal(*batch, *out),
        "output_size": list(out),
        "input_size": [*batch, *size],
        "align_corners": align_corners,
        **dict(zip(names, scales)),
    }
