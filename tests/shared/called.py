"""Calls of PyTorch's functions and modules that meet the rule table, by their names.

``tools/write_expected.py called`` writes ``detmode/table/called_as.txt`` from it. The samples are
those that PyTorch has for its own tests of operators and of modules; a module that has none there
calls the functions that its source names.
"""

import contextlib
import inspect
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from timing import tensors_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from detmode import DeterministicMode
from detmode.rules import default_rules
from detmode.table.called_as import LINES, NONE
from detmode.table.rule_table import forwards_of
from tests.shared.opinfo import operators, run, samples_of
from tests.shared.substituted import LARGE, VERSION

__all__ = ["LINES", "found", "pinned", "text_of"]

SAMPLES = 40
"""Of each function; modules have fewer."""
HEAD = (
    "# Written with PyTorch {}: a function or a module, what a mode sees of it in forward, and what"
    " of that and its backward is listed.\n"
)
MORE: dict[str, Callable[[], torch.Tensor]] = {
    **{
        f"interpolate.{mode}": lambda mode=mode: F.interpolate(
            torch.ones(1, 1, 4, 4, requires_grad=True), (2, 3), mode=mode, antialias=True
        )
        for mode in ("bilinear", "bicubic", "lanczos")
    },
    "bincount": lambda: torch.bincount(torch.tensor([0, 1]), torch.ones(2)),
    "cumprod": lambda: torch.ones(9, requires_grad=True).cumprod(0),
    "__setitem__": lambda: torch.ones(9).__setitem__(torch.tensor([0, 1]), torch.ones(2)),
}
"""Calls for which PyTorch's tests have no sample that meets what users' calls meet."""
_PRODUCTS = ("addmm", "mm", "bmm")
_ATTENTION = tuple(
    f"_scaled_dot_product_{kind}_attention" for kind in ("cudnn", "efficient", "flash")
)
_GRIDS = ("grid_sampler_2d", "grid_sampler_3d")
ELSEWHERE = {
    **dict.fromkeys(("Linear", "LazyLinear", "linear"), (_PRODUCTS[:2], _PRODUCTS[:2])),
    **dict.fromkeys(("matmul", "einsum"), (_PRODUCTS[1:], _PRODUCTS[1:])),
    **dict.fromkeys(
        (
            *("scaled_dot_product_attention", "multi_head_attention_forward"),
            *("MultiheadAttention", "Transformer", "TransformerDecoder", "TransformerDecoderLayer"),
            *("TransformerEncoder", "TransformerEncoderLayer"),
        ),
        (_ATTENTION, tuple(f"{name}_backward" for name in _ATTENTION)),
    ),
    **dict.fromkeys(
        ("RNN", "LSTM", "GRU", "rnn_tanh", "rnn_relu", "lstm", "gru"),
        (("_cudnn_rnn",), ("_cudnn_rnn", "_cudnn_rnn_backward")),
    ),
    **dict.fromkeys(
        ("grid_sample", "grid_sampler"),
        (_GRIDS, tuple(f"{name}_backward" for name in (*_GRIDS, "cudnn_grid_sampler"))),
    ),
    **dict.fromkeys(
        ("MaxPool2d", "max_pool2d"),
        (("max_pool2d_with_indices",), ("max_pool2d_with_indices_backward",)),
    ),
}
"""Operators, forward and listed, that vary on CUDA or MPS only, which no call on a CPU shows."""


class _Forward(TorchDispatchMode):
    """Notes the operators that are called outside of backward."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch._C._current_autograd_node() is None:
            self.operators.add(func._schema.name)
        return func(*args, **(kwargs or {}))


def _calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield functions and modules by their bare names, with a call of each, backward too."""
    for op in operators():
        if torch.float32 in op.supported_dtypes("cpu"):
            for sample in islice(samples_of(op, torch.float32), SAMPLES):
                inputs = tensors_of((sample.input, sample.args, sample.kwargs))
                if sum(tensor.numel() for tensor in inputs) <= LARGE:
                    yield _bare(op.name), lambda op=op, sample=sample: run(op, sample)
    from torch.testing._internal.common_modules import module_db

    options = {"device": "cpu", "dtype": torch.float32, "requires_grad": True, "training": True}
    for info in module_db:
        for inputs in info.module_inputs_func(info, **options):
            if inputs.forward_input is not None:
                yield _bare(info.name), lambda info=info, inputs=inputs: _run(info, inputs)
    for name, call in MORE.items():
        yield name.partition(".")[0], lambda call=call: _backward(call())


def found() -> dict[str, str]:
    """The operators that each calls in forward, and those of it and its backward with rules."""
    table = default_rules()
    forward, listed = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    with warnings.catch_warnings():
        # PyTorch's samples call what is deprecated.
        warnings.simplefilter("ignore")
        for name, call in _calls():
            seen = _Forward()
            with contextlib.suppress(Exception), DeterministicMode(simulate="cuda") as mode, seen:
                call()
            listed[name] |= {
                row.overload.partition(".")[0]
                for row in mode.records
                if row.family != "uninitialized_memory"
            }
            forward[name] |= {
                op
                for op in seen.operators
                if op in listed[name]
                or table.forwards_among((op,))
                or op in _forwards(listed[name])
            }
    for name in [name for name in forward if not listed[name]]:
        del forward[name], listed[name]
    for name, function in _functions_of_modules():
        if name not in forward and function in forward:
            forward[name], listed[name] = forward[function], listed[function]
    for name, called in ELSEWHERE.items():
        forward[name], listed[name] = ({f"aten::{op}" for op in ops} for ops in called)
    return {
        name: " ".join(",".join(sorted(ops)) or NONE for ops in (forward[name], listed[name]))
        for name in forward
    }


def _forwards(operators: set[str]) -> set[str]:
    """The forwards of the backward operators among some."""
    return {forward for operator in operators for forward in forwards_of(operator)}


def _functions_of_modules() -> Iterator[tuple[str, str]]:
    """Yield the modules of ``torch.nn`` with the functions that their ``forward`` names."""
    for name, cls in vars(nn).items():
        if inspect.isclass(cls) and issubclass(cls, nn.Module):
            with contextlib.suppress(OSError, TypeError):
                for function in re.findall(r"\bF\.(\w+)\(", inspect.getsource(cls.forward)):
                    yield name, function


def _run(info: Any, inputs: Any) -> None:
    made, given = inputs.constructor_input, inputs.forward_input
    _backward(info.module_cls(*made.args, **made.kwargs)(*given.args, **given.kwargs))


def _backward(result: Any) -> None:
    outputs = [tensor for tensor in tensors_of(result) if tensor.requires_grad]
    if outputs:
        torch.autograd.backward([output.sum() for output in outputs])


def _bare(name: str) -> str:
    return name.removeprefix("nn.functional.").removeprefix("nn.")


def pinned() -> dict[str, str]:
    """The same as the file has it."""
    lines = LINES.read_text(encoding="utf-8").splitlines()[1:]
    return {name: calls for name, _, calls in (line.partition(" ") for line in lines)}


def text_of(lines: dict[str, str]) -> str:
    """The file's text, sorted."""
    return HEAD.format(VERSION) + "".join(f"{name} {lines[name]}\n" for name in sorted(lines))
