"""The forms of calls, and what tells the variants of a form: functions compiled from text.

See :mod:`detmode.mode.plans`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, cast

import torch
from torch import Tensor

from detmode.cuda.memory import COMPONENTS, components, form_of
from detmode.mode.handled import Handled

# A version of PyTorch without them would have no plans.
GUARDS: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)


FormFunction = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Returns the form of a call, given its arguments."""


def form_function(func: torch._ops.OpOverload, number: int, takes_sparse: bool) -> FormFunction:
    """Return what returns the forms of an overload's calls.

    Args:
        func: the overload.
        number: of the calls' positional arguments.
        takes_sparse: whether it has a substitute for sparse tensors: their layouts and numbers of
            entries then belong to the form, of which there may be ever new ones.
    """
    arguments = func._schema.arguments
    values = [(argument.type, f"args[{i}]") for i, argument in enumerate(arguments[:number])]
    values += [(a.type, f"kwargs.get({a.name!r})") for a in arguments if a.kwarg_only]
    sizes = "sizes({})" if takes_sparse else "{}.shape"
    parts = ", ".join(_part(str(kind), value, sizes) for kind, value in values)
    function = eval(f"lambda args, kwargs: ({number}, {parts})", {"sizes": _sizes_of})
    return cast("FormFunction", function)


def _part(kind: str, value: str, sizes: str) -> str:
    """Return what an argument, of some type of a schema, adds to a form."""
    if kind == "Tensor":
        return sizes.format(value)
    if kind == "Optional[Tensor]":
        return f"{value} is None"
    if "List" in kind:
        if "Tensor" in kind:
            return f"len({value})"
        return f"tuple({value})" if kind[0] == "L" else f"{value} is None or tuple({value})"
    if "number" in kind or "float" in kind:
        # 1, 1.0 and True are equal, and so are 0.0 and -0.0.
        return f"repr({value})"
    return value


def _sizes_of(tensor: Tensor) -> Any:
    """Return a tensor's sizes, with the layout and the number of entries of a sparse one."""
    layout = tensor.layout
    if COMPONENTS.get(layout):
        return layout, tensor.shape, tensor._nnz()
    return tensor.shape


def matcher(call: Handled, writes: Sequence[int]) -> Callable[..., Any]:
    """Return a function that tells the calls of a variant, once their form is known.

    It returns the tensors of a call, those in which its sparse ones lie in their place, and then
    the addresses of their first elements. Those that are written share memory with no other.
    """
    return _Matcher(call, writes).function()


class _Matcher:
    """The text of the function."""

    def __init__(self, call: Handled, writes: Sequence[int]) -> None:
        self._writes = writes
        # The tensors of the call; those in which their elements lie, and what returns the latter.
        self._tensors: dict[str, Tensor] = {}
        self._dense: dict[str, Tensor] = {}
        self._lines: list[str] = []
        self._constants: list[Any] = []
        self._conditions: list[str] = []
        for number, value in enumerate(call.args):
            self._look_at(f"args[{number}]", value)
        for name in call.signature.names:
            if name in call.kwargs:
                self._look_at(f"kwargs[{name!r}]", call.kwargs[name])

    def _look_at(self, name: str, value: Any) -> None:
        """Note the tensors of an argument, and where others have some."""
        if isinstance(value, Tensor):
            self._tensors[name] = value
            if value.layout is torch.strided:
                self._dense[name] = value
            else:
                self._take_apart(name, value)
        elif isinstance(value, (list, tuple)):
            for number, part in enumerate(value):
                if part is None:
                    self._conditions.append(f"{name}[{number}] is None")
                self._look_at(f"{name}[{number}]", part)

    def _take_apart(self, name: str, value: Tensor) -> None:
        """Note the components of a sparse tensor, and what they and its keys do not tell."""
        self._conditions.append(f"{name}.layout is {self._name(value.layout)}")
        if value.layout is torch.sparse_coo:
            self._conditions.append(f"{name}.is_coalesced() is {value.is_coalesced()}")
        for method, component in zip(COMPONENTS[value.layout], components([value])):
            self._dense[f"s{len(self._lines)}"] = component
            self._lines.append(f"s{len(self._lines)} = {name}.{method}()")

    def function(self) -> Callable[..., Any]:
        self._guard()
        taken = ", ".join(self._dense)
        addresses = [f"p{number}" for number in range(len(self._dense))]
        parts = {name: part for name, part in self._dense.items() if name not in self._tensors}
        lines = [
            f"if not ({' and '.join(self._conditions)}): return None",
            *self._lines,
            *([f"if not {self._guarded(parts)}: return None"] if parts else []),
            *(f"{p} = {name}.data_ptr()" for p, name in zip(addresses, self._dense)),
            f"if {' or '.join(self._differences())}: return None",
            f"return {taken}, {', '.join(addresses)}",
        ]
        names = ", ".join(f"c{number}" for number in range(len(self._constants)))
        body = "\n        ".join(lines)
        text = (
            f"def make({names}):\n    def match(args, kwargs):\n        {body}\n    return match\n"
        )
        namespace: dict[str, Any] = {}
        exec(_compile(text), namespace)
        return cast("Callable[..., Any]", namespace["make"](*self._constants))

    def _guard(self) -> None:
        tensors = list(self._tensors.values())
        # First: what is no tensor has no layout.
        self._conditions.insert(0, self._guarded(self._tensors))
        if any(tensor.requires_grad for tensor in tensors):
            is_enabled = torch.is_grad_enabled
            self._conditions.append(f"{self._name(is_enabled)}() is {is_enabled()}")
        if tensors[0].is_cuda:
            current = self._name(torch._C._cuda_getDevice)
            self._conditions.append(f"{current}() == {tensors[0].get_device()}")

    def _guarded(self, tensors: Mapping[str, Tensor]) -> str:
        """Return a condition: dtypes, sizes, strides, devices and dispatch keys of tensors."""
        values = tensors.values()
        sizes = [list(t.shape) for t in values]
        strides = [
            list(t.stride()) if t.layout is torch.strided else [None] * t.dim() for t in values
        ]
        guards = GUARDS(*values, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        return f"{self._name(guards.check)}({', '.join(tensors)})"

    def _differences(self) -> Iterator[str]:
        """Return what tells other alignments, and memory that is written and shared."""
        begins = [tensor.data_ptr() % 16 for tensor in self._dense.values()]
        aligned = [f"p{number}" for number, begin in enumerate(begins) if not begin]
        if aligned:
            yield f"({' | '.join(aligned)}) & 15"
        yield from (f"p{number} & 15 != {begin}" for number, begin in enumerate(begins) if begin)
        if not self._writes:
            return
        ends = [
            f"p{number} + {self._name(form_of(tensor).nbytes)}"
            for number, tensor in enumerate(self._dense.values())
        ]
        for target in self._writes:
            for source in range(len(ends)):
                if source != target:
                    yield f"p{target} < {ends[source]} and p{source} < {ends[target]}"

    def _name(self, constant: Any) -> str:
        self._constants.append(constant)
        return f"c{len(self._constants) - 1}"


@functools.lru_cache(1 << 10)
def _compile(text: str) -> CodeType:
    return compile(text, "<detmode form>", "exec")
