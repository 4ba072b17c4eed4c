"""Make a family from its operators: ``python tools/new_rule.py unfold --op aten::unfold_backward``.

What the operators' schemas and the facts about PyTorch's alerts tell is written out. What only the
author knows is marked ``FILL IN``, and the family's tests name each mark that is left.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import jinja2
import torch

from detmode.rules import default_rules, families
from detmode.table.names import misnamed
from detmode.table.rule_table import resolve
from detmode.table.variants import functional_signature, variant_of

ROOT = Path(__file__).parent.parent
FACTS = ROOT / "tests" / "facts" / "alerts.json"
TYPES = {
    "Tensor": "Tensor",
    "int": "int",
    "float": "float",
    "number": "float",
    "bool": "bool",
    "str": "str",
    "ScalarType": "torch.dtype",
    "Layout": "torch.layout",
    "Device": "torch.device",
    "MemoryFormat": "torch.memory_format",
    "Generator": "torch.Generator",
}
"""Types of schemas as Python has them."""
CTYPES = {"int": "int64_t", "float": "double", "number": "double", "bool": "bool"}
"""Types that a launch passes for them."""
VALUES = {"size": 2, "stride": 1, "step": 1, "padding": 1, "dilation": 1, "dim": 1}
"""Values that operators often take, by a word of the argument's name."""
SIZES = re.compile(r"(input|self)_sizes?")
_SHAPES = [(4, 6), (7,), (2, 4, 7), (2, 4, 9), (2, 4, 7, 6, 5)]
_ODD_SHAPES = [(63, 101), (101,), (1, 4, 63), (1, 12, 9), (1, 4, 63, 101, 9)]
"""Shapes where the input is no batch of images; 9 columns are what blocks of 2 x 2 give."""
INDICES = re.compile(r"index|indices|target|offset|bag")
# What PyTorch's caller names say beside the operator's name.
_NOISE = {"", "cuda", "gpu", "cpu", "out", "template", "kernel", "with", "indices", "output"}
_NOISE |= {"floating", "point", "input"}


@dataclass(frozen=True)
class Operator:
    """The launcher, samples and row of one functional operator, as far as its schema tells."""

    func: torch._ops.OpOverload
    shape: tuple[int, ...] = ()
    """A shape of its input that ATen takes, or a plausible one."""
    odd: tuple[int, ...] = ()
    """The same with sizes that no block has."""

    @cached_property
    def op(self) -> str:
        """As rules name it."""
        return self.func.name()

    @cached_property
    def base(self) -> str:
        """``"unfold_backward"``: the names of its launcher and its CUDA kernel."""
        return self.op.partition("::")[2].replace(".", "_").lstrip("_")

    @property
    def allocation(self) -> str:
        """An expression that allocates its result."""
        sizes = next((name for name in self.names if SIZES.fullmatch(name)), None)
        return f"new_empty({self.like}, {sizes})" if sizes else f"empty_like({self.like})"

    @property
    def case(self) -> str:
        """The function that makes its samples: ``_{case}("odd", ...)``."""
        return self.base.removesuffix("_backward")

    @property
    def allocates(self) -> str:
        """The function that :attr:`allocation` calls."""
        return self.allocation.partition("(")[0]

    @cached_property
    def arguments(self) -> list[torch._C.Argument]:
        return list(self.func._schema.arguments)

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.arguments]

    @property
    def tensors(self) -> list[str]:
        return [each.name for each in self.arguments if str(each.type) == "Tensor"]

    @property
    def like(self) -> str:
        """The argument that the result is allocated like."""
        return "self" if "self" in self.tensors else self.tensors[0]

    @property
    def results(self) -> list[str]:
        """The names of the tensors that the operator gives."""
        one = "grad_input" if self.base.endswith("_backward") else "result"
        returned = self.func._schema.returns
        names = [each.name for each in returned]
        return [name or (one if len(names) == 1 else f"{one}_{i}") for i, name in enumerate(names)]

    @property
    def spatial(self) -> int:
        """2 for an operator whose name says ``2d``; 0 where it says nothing."""
        said = re.search(r"([123])d", self.base)
        return int(said[1]) if said else 0

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Plausible shapes of its input, the likeliest first."""
        return [(2, 4, *(7, 6, 5)[: self.spatial or 2]), *_SHAPES]

    @property
    def odd_shapes(self) -> list[tuple[int, ...]]:
        """The same with sizes that no block has."""
        return [(1, 4, *(63, 101, 9)[: self.spatial or 2]), *_ODD_SHAPES]

    @property
    def has_channels(self) -> bool:
        """True if its input has a form in channels_last."""
        return len(self.shape) in (4, 5)

    @property
    def takes_dim(self) -> bool:
        return "dim" in self.names

    @property
    def variants(self) -> tuple[str, ...]:
        """Other samples that are made of one of :attr:`shape`."""
        last = ("channels_last",) if self.has_channels else ()
        # The variant counts from the end of the first tensor, which sizes need not be those of.
        sized = any(map(SIZES.fullmatch, self.names))
        dim = ("negative_dim",) if self.takes_dim and not sized else ()
        return ("non_contiguous", *last, *dim, "cpu")

    @property
    def returned(self) -> str:
        """The type of what its launcher returns."""
        names = ["Tensor"] * len(self.results)
        return names[0] if len(names) == 1 else f"tuple[{', '.join(names)}]"

    @staticmethod
    def prompt(argument: torch._C.Argument) -> str:
        """A prompt for the launcher's docstring about an argument."""
        if "Tensor" in str(argument.type):
            return "its shape and dtypes"
        return {"int": "its unit and range", "bool": "what it chooses"}.get(
            str(argument.type), "what it says"
        )

    @cached_property
    def signature(self) -> list[str]:
        """The parameters of the launcher, one a line."""
        lines: list[str] = []
        for each in self.arguments:
            if each.kwarg_only and "*" not in lines:
                lines.append("*")
            line = f"{each.name}: {annotation(str(each.real_type))}"
            if each.has_default_value():
                value = each.default_value
                line += f" = {tuple(value) if isinstance(value, list) else value!r}"
            lines.append(line)
        return lines

    def parameters(self) -> str:
        """The parameters of the CUDA kernel, as clang-format breaks them."""
        found = []
        for each in self.arguments:
            if str(each.type) == "Tensor":
                ctype = "int64_t" if INDICES.search(each.name) else "scalar_t"
                found.append(f"const {ctype}* __restrict__ {each.name}")
            elif str(each.type) in CTYPES:
                found.append(f"{CTYPES[str(each.type)]} {each.name}")
        pointers = [each for each in found if "*" in each]
        sizes = [each for each in found if "*" not in each]
        written = [f"scalar_t* __restrict__ {name}" for name in self.results]
        start = f"__global__ void {self.base}("
        # A parameter is not broken: its spaces are put back afterwards.
        text = " ".join(
            f"{each.replace(' ', chr(160))}," for each in [*pointers, *written, *sizes, "int64_t n"]
        )
        lines = textwrap.wrap(
            text[:-1] + ")\xa0{",
            100,
            initial_indent=start,
            subsequent_indent=" " * len(start),
            break_long_words=False,
        )
        return "\n".join(lines).replace(chr(160), " ")

    def passed(self) -> list[str]:
        """The names that the launch passes to the CUDA kernel, in the order of its parameters."""
        simple = [each.name for each in self.arguments if str(each.type) in CTYPES]
        return [*self.tensors, *self.results, *simple]

    @cached_property
    def forward(self) -> torch._ops.OpOverload | None:
        """The operator whose backward this is, where this one's arguments say how to call it."""
        name = self.op.partition(".")[0].replace("::_", "::")
        func = resolve(name.removesuffix("_backward")) if name.endswith("_backward") else None
        if func is None or func._schema.arguments[0].name not in ("self", "input"):
            return None
        needed = [each for each in func._schema.arguments[1:] if not each.has_default_value()]
        return func if all(self._own(each.name) for each in needed) else None

    def _own(self, name: str) -> str | None:
        """The argument by which this operator knows one of its forward's."""
        return next((own for own in self.names if own in (name, name[:3])), None)

    def sample_lines(self) -> list[str]:
        """The body of the function that makes its arguments of a shape."""
        given: dict[str, str] = {}
        lines: list[str] = []
        names, forward = self.names, self.forward
        if forward is not None:
            taken = {
                each.name: self._own(each.name)
                for each in forward._schema.arguments[1:]
                if self._own(each.name)
            }
            for each in self.arguments:
                if each.name in taken.values():
                    lines.append(f"{each.name} = {self._value(each)}")
                    given[each.name] = each.name
            returned = [each.name or "output" for each in forward._schema.returns]
            call = ", ".join(["values", *(f"{name}={own}" for name, own in taken.items())])
            lines.append("input = make.normal(*shape)")
            lines.append("values = input.cpu().double()")
            function = f"torch.ops.{forward!s}"
            lines.append(f"{', '.join(returned)} = {function}({call})")
            given |= {name: f"{name}.to(make.device)" for name in returned[1:] if name in names}
            grad = next((name for name in names if name.startswith("grad")), None)
            if grad is not None:
                given[grad] = f"make.normal(*{returned[0]}.shape)"
            given |= {name: "input" for name in ("self", "input") if name in names}
        for each in self.arguments:
            if each.name not in given and (each.name == "dim" or not each.has_default_value()):
                given[each.name] = self._value(each)
        items = [f'    "{name}": {given[name]},' for name in names if name in given]
        return [*lines, "return {", *items, "}"]

    def _value(self, argument: torch._C.Argument) -> str:
        """An expression of the right kind."""
        kind = str(argument.type)
        if kind.startswith("Optional"):
            return "None"
        if kind == "Tensor":
            if INDICES.search(argument.name):
                return "make.integers(0, 2, *shape)"
            return "make.normal(*shape)"
        if kind == "List[int]" and SIZES.fullmatch(argument.name):
            return "list(shape)"
        words = argument.name.split("_")
        number = next((VALUES[word] for word in reversed(words) if word in VALUES), 1)
        count = max(argument.N or self.spatial, 1)
        simple = {"bool": "False", "str": '"sum"', "float": "1.0"}
        if kind in ("List[int]", "List[bool]", "List[float]"):
            return f"[{', '.join([simple.get(kind[5:-1], str(number))] * count)}]"
        if kind.startswith("List[Optional[Tensor]]") or kind == "List[Tensor]":
            return "[make.integers(0, 2, 5)]" if "ind" in argument.name else "[make.normal(*shape)]"
        return simple.get(kind, str(number))

    @cached_property
    def alert(self) -> tuple[str | tuple[str, str] | None, str | None]:
        """PyTorch's caller name on CUDA as rows have it, and the first version that has it."""
        words = [word for word in self.base.split("_") if word]
        facts = json.loads(FACTS.read_text())
        first, *_, latest = facts["versions"]
        since = {
            name: row["since"]
            for row in facts["rows"]
            if (row["library"], row["until"]) == ("cuda", latest)
            for name in row["callers"]
            if [w for w in re.split("[ _]+", name) if w.lower() not in _NOISE] == words
        }
        if not since:
            return None, None
        pair = sorted(since, key=lambda name: "_out" in name)
        alert = (pair[0], pair[1]) if len(pair) > 1 else pair[0]
        newest = max(since.values(), key=facts["versions"].index)
        return alert, newest if newest != first else None


def annotation(kind: str) -> str:
    """A schema's type in Python's words."""
    outer, _, inner = kind.partition("[")
    if outer == "Optional":
        return f"{annotation(inner[:-1])} | None"
    if outer == "List":
        return f"Sequence[{annotation(inner[:-1])}]"
    return TYPES.get(kind, "object")


def operator(op: str) -> Operator:
    """The operator by name.

    Raises:
        ValueError: it is unknown, a variant of another operator, gives no tensor, or is listed in a
            family.
    """
    op = op if "::" in op else f"aten::{op}"
    namespace = op.partition("::")[0]
    with contextlib.suppress(ImportError):
        importlib.import_module(namespace)  # torchvision's import registers its operators
    func = resolve(op)
    if func is None:
        raise ValueError(misnamed(op) or f"nothing installed has {op!r}: install {namespace}")
    if variant_of(func) != "functional":
        base = func._schema.name.removesuffix("_")
        others = [resolve(f"{base}.{name}") for name in (func._overloadname, "default")]
        same = [x for x in others if x and functional_signature(x) == functional_signature(func)]
        raise ValueError(
            f"{op} is a variant, which follows from the functional operator: give --op "
            f"{same[0].name() if same else base}"
        )
    rows = default_rules().get(func)
    if rows:
        raise ValueError(
            f"{op} is listed in the family {rows[0].family!r}: add rows in "
            f"detmode/rules/{rows[0].family}/__init__.py"
        )
    found = Operator(func)
    if not found.tensors or not all(str(each.type) == "Tensor" for each in func._schema.returns):
        raise ValueError(f"{op} takes or gives no plain tensors; write its family by hand")
    return found


# In a process of its own: ATen's backward operators may crash on arguments that do not fit.
_FITS = """
import importlib, json, sys, torch
from detmode.table.rule_table import resolve
from detmode.table.samples import Maker
op, lines, shapes = json.load(sys.stdin)
if not op.startswith("aten::"):
    importlib.import_module(op.partition("::")[0])
scope = {"torch": torch}
exec("\\n    ".join(["def arguments(make, *shape):", *lines]), scope)
for shape in shapes:
    try:
        resolve(op)(**scope["arguments"](Maker(torch.float32), *shape))
    except Exception:
        continue
    print(json.dumps(shape), flush=True)
"""


def fitting(operator: Operator) -> Operator:
    """The operator with the first of the shapes that ATen takes, or else the likeliest."""
    candidates = operator.shapes + operator.odd_shapes
    asked = json.dumps([operator.op, operator.sample_lines(), candidates])
    command = [sys.executable, "-c", _FITS]
    ran = subprocess.run(command, cwd=ROOT, input=asked, capture_output=True, text=True)
    taken = [tuple(json.loads(line)) for line in ran.stdout.splitlines()]
    shape, odd = (
        next((shape for shape in shapes if shape in taken), shapes[0])
        for shapes in (operator.shapes, operator.odd_shapes)
    )
    return replace(operator, shape=shape, odd=odd)


def make_family(
    name: str, operators: list[Operator], *, root: Path = ROOT, kernels: bool = True
) -> Path:
    """Write the family's files and return its folder.

    Args:
        name: of the family, a Python name in lower case.
        operators: the operators that it covers.
        root: the source tree that gets it.
        kernels: with a launcher and a `.cu` file; without, a family of Native and Refuse rows.

    Raises:
        ValueError: the name cannot be a family's, or there is such a family.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"a family's name is like 'upsample' or 'max_pool3d', got {name!r}")
    family = root / "detmode" / "rules" / name
    if name in families() or family.exists():
        raise ValueError(f"there is a family {name!r} already: choose another name, or remove it")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "template"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quoted"] = quoted
    operators = [*map(fitting, operators)]
    texts = {
        file: environment.get_template(f"{file}.jinja").render(
            name=name, operators=operators, kernels=kernels
        )
        for file in ("__init__.py", "launch.py", "kernels.cu", "samples.py")
        if kernels or file in ("__init__.py", "samples.py")
    }
    family.mkdir()
    for file, text in texts.items():
        (family / file).write_text(text, encoding="utf-8")
    return family


def quoted(value: str | tuple[str, ...]) -> str:
    """A text or a tuple of texts as ruff writes them."""
    if isinstance(value, str):
        return json.dumps(value)
    return f"({', '.join(map(json.dumps, value))}{',' if len(value) == 1 else ''})"


# In a process of its own: ATen's backward operators may crash on arguments that do not fit.
_CALL = """
import sys
from detmode.verify.cases import call, samples_of
for sample in samples_of(sys.argv[1]).cases:
    try:
        call(sample, sample.arguments(sample.dtypes[0]))
    except Exception as error:
        print(f"  {sample.name}: {type(error).__name__}: {str(error).splitlines()[0]}")
"""


def rejected(name: str, root: Path = ROOT) -> str:
    """The samples of a family that ATen's CPU operators reject, each with the error; or nothing."""
    ran = subprocess.run(
        [sys.executable, "-c", _CALL, name], cwd=root, capture_output=True, text=True
    )
    return ran.stdout if ran.returncode == 0 else f"{ran.stdout}  {ran.stderr.strip()[-300:]}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="of the family, such as grid_sampler")
    parser.add_argument(
        "--op",
        action="append",
        required=True,
        metavar="OP",
        help="an operator that it covers, such as aten::unfold_backward; may be given again",
    )
    parser.add_argument(
        "--no-kernels", action="store_true", help="only rows: PyTorch's own path, or a refusal"
    )
    options = parser.parse_args()
    try:
        operators = [operator(op) for op in dict.fromkeys(options.op)]
        family = make_family(options.name, operators, kernels=not options.no_kernels)
    except ValueError as error:
        print(f"new_rule: error: {error}", file=sys.stderr)
        return 2
    wrong = rejected(options.name)
    where = family.relative_to(ROOT)
    if wrong:
        print(f"{where}/samples.py: ATen rejects these on the CPU; correct them:\n{wrong}", end="")
    else:
        print(f"{where}/samples.py: ATen takes every sample on the CPU")
    print(f"{where}: write what is marked FILL IN, then run")
    print(f"  python tools/generate_docs.py && tox -e family -- {options.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
