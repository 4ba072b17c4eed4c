"""A call of a compiled function under the mode, beside the same call without it and beside eager.

Everything runs on the CPU, in one thread, and what is compared takes turns in one process: whole
functions, the host's share of one call of an operator inside compiled code, and, in processes of
their own with empty caches, the first call, which compiles. Prints tables and writes them with
their provenance as JSON into ``benchmarks/results/compiled/``, after each line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest import mock

import results
import torch
from provenance import Measured, add_options, provenance
from results import NOT_TIMED, number, over, table
from timing import Spread, Timed, in_turns
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.benchmark import Timer

from detmode import RUN_TO_RUN, DeterministicMode, Rule, Substitute, default_rules

FOLDER = results.FOLDER / "compiled"
SIDES = ("eager", "compiled", "compiled, in the mode", "eager, in the mode")
_, COMPILED, OURS, _ = SIDES
PLAIN = "without the mode"
RATIO = 1.05
"""The target of compiled in the mode over compiled, where no operator is listed that varies."""
CALLS = 16
"""Calls that the longer of two functions makes more, by which one call is timed."""
BATCH = 4e-3
"""Seconds that a batch of calls takes about; what takes longer is called once."""


def pointwise(x: Tensor) -> Tensor:
    for _ in range(30):
        x = x.sin() * 1.01
    return x


class Head(nn.Module):
    """Maps features (N, C, H, W) to the classes of pixels of twice the size."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, channels, 3, padding=1)
        self.classify = nn.Conv2d(channels, classes, 1)

    def forward(self, features: Tensor) -> Tensor:
        logits = self.classify(F.relu(self.mix(features)))
        return F.interpolate(logits, scale_factor=2, mode="bilinear")


class Encoder(nn.Module):
    """Maps tokens (N, T) to their cross entropy with targets (N, T)."""

    def __init__(self, vocabulary: int, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True)
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.logits = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = self.logits(self.blocks(self.tokens(tokens)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Bert(nn.Module):
    """The BERT of transformers with random weights, as :class:`Encoder`."""

    def __init__(self, vocabulary: int, width: int, depth: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertForMaskedLM

        self.model = BertForMaskedLM(
            BertConfig(
                vocab_size=vocabulary,
                hidden_size=width,
                num_hidden_layers=depth,
                num_attention_heads=4,
                intermediate_size=4 * width,
                max_position_embeddings=128,
            )
        )

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.model(input_ids=tokens, labels=targets).loss


def language_model(*, tiny: bool) -> nn.Module:
    """BERT, or without transformers a model of PyTorch's own blocks."""
    sizes = (30, 16, 1) if tiny else (1000, 256, 2)
    try:
        return Bert(*sizes)
    except ImportError:
        return Encoder(*sizes)


@dataclass(frozen=True)
class Whole:
    """Something that is timed as a whole.

    Args:
        function: the function to compile.
        call: calls it, compiled or not.
    """

    function: Callable[..., Any]
    call: Callable[[Callable[..., Any]], object]


def _pointwise(tiny: bool) -> Whole:
    x = torch.randn(64)
    return Whole(pointwise, lambda function: function(x))


def _products(tiny: bool) -> Whole:
    x = torch.randn(8, 8) if tiny else torch.randn(128, 128) / 12
    return Whole(chain(torch.mm, 16), lambda function: function(x, x))


def _block(tiny: bool) -> Whole:
    width = 16 if tiny else 256
    block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True)
    return _differentiated(block, torch.randn(2, 5, width) if tiny else torch.randn(4, 64, width))


def _head(tiny: bool) -> Whole:
    head = Head(4, 3) if tiny else Head(32, 21)
    return _differentiated(head, torch.randn(1, 4, 5, 6) if tiny else torch.randn(2, 32, 32, 32))


def _differentiated(model: nn.Module, x: Tensor) -> Whole:
    def call(function: Callable[..., Any]) -> None:
        model.zero_grad()
        function(x).square().mean().backward()

    return Whole(model, call)


def _step(tiny: bool) -> Whole:
    model = language_model(tiny=tiny)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    shape, below = ((2, 5), 30) if tiny else ((8, 64), 1000)
    tokens, targets = torch.randint(below, shape), torch.randint(below, shape)

    def call(function: Callable[..., Any]) -> None:
        optimizer.zero_grad()
        function(tokens, targets).backward()
        optimizer.step()

    return Whole(model, call)


WHOLE: dict[str, tuple[Callable[[bool], Whole], float | None]] = {
    "60 pointwise operators": (_pointwise, RATIO),
    "16 products of matrices": (_products, None),
    "a transformer block, forward and backward": (_block, None),
    "a segmentation head, forward and backward": (_head, None),
    "a training step of a transformer": (_step, RATIO),
}
"""Functions timed as a whole, with the target of compiled in the mode over compiled."""
FIRST = ("60 pointwise operators", "a transformer block, forward and backward")
"""Of which of them the first call is timed."""


def chain(function: Callable[..., Tensor], length: int) -> Callable[..., Tensor]:
    """Return a function that calls ``function`` so often, each time on the last result.

    Dynamo limits the graphs of each code object, so that each chain has a code object of its own.
    """

    def chained(x: Tensor, *others: Any) -> Tensor:
        for _ in range(length):
            x = function(x, *others)
        return x

    return FunctionType(chained.__code__.replace(), globals(), closure=chained.__closure__)


def _put(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
    return x.index_put((index,), values, accumulate=True)


INDEX, VALUES = torch.arange(4), torch.ones(4)
LISTED: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]] = {
    "aten::cumsum": (torch.cumsum, (0,)),
    "aten::index_add": (torch.index_add, (0, INDEX, VALUES)),
    "aten::index_put": (_put, (INDEX, VALUES)),
    "aten::scatter_add": (torch.scatter_add, (0, INDEX, VALUES)),
}
"""Listed operators: what calls them, and its arguments after the first, a tensor of 64 numbers."""
ACTIONS = ("substitute", "native", "allow")


def mode_for(op: str, action: str) -> DeterministicMode:
    """Return a mode that takes this action on the operator, whose substitute launches nothing.

    It only allocates its result, where it is given none to write: what is timed is the way there,
    and what a launch costs the host is timed by ``families.py --part host``.
    """
    because = "the way to a call is timed"
    rule = Rule(op=op, action=Substitute(_launch), guarantee=RUN_TO_RUN, because=because)
    return DeterministicMode(rules=default_rules() + [rule], overrides={op: action})


def _launch(self: Tensor, *, out: Tensor | None = None, **others: Any) -> Tensor:
    return torch.empty_like(self) if out is None else out


def listed(op: str, action: str, length: int) -> dict[str, Timed]:
    """Return what calls a listed operator so often, without the mode and compiled in it.

    Without the mode it is eager: the compiler would fuse the calls.
    """
    function, others = LISTED[op]
    chained, x, mode = chain(function, length), torch.randn(64), mode_for(op, action)
    ours = partial(torch.compile(chained), x, *others)
    return {PLAIN: Timed(partial(chained, x, *others)), OURS: Timed(ours, lambda: mode)}


def product(length: int) -> dict[str, Timed]:
    """Return what multiplies matrices so often, compiled without the mode and in it."""
    # Simulated: so that the rows for a GPU are asked.
    chained, x, mode = chain(torch.mm, length), torch.eye(8), DeterministicMode(simulate="cuda")
    call = partial(torch.compile(chained), x, x)
    return {PLAIN: Timed(call), OURS: Timed(call, lambda: mode)}


ONE: dict[str, tuple[Callable[[int], dict[str, Timed]], float]] = {
    **{
        f"{op}, {action}": (partial(listed, op, action), 12e-6)
        for op in LISTED
        for action in ACTIONS
    },
    "aten::mm, not listed for dense tensors": (product, 5e-6),
}
"""Functions timed call by call, with the target of its seconds over those without the mode."""


def batches(timed: Mapping[str, Timed], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of a call, for each thing and round, in turning order.

    What takes microseconds is called many times in a row: ``timing.interleaved`` times single calls
    among others. The timer calls it before that, so that Dynamo looks for the right graph first.
    """
    calls = {name: _calls(each) for name, each in timed.items()}
    times: dict[str, list[float]] = {name: [] for name in timed}
    for _, name in in_turns(list(timed), rounds):
        with timed[name].around():
            times[name].append(_seconds(timed[name].run, calls[name]))
    return times


def _calls(timed: Timed) -> int:
    """Return the number of calls of a batch; the first ones compile."""
    with timed.around():
        for _ in range(3):
            timed.run()
        return max(1, int(BATCH / _seconds(timed.run, 1)))


def _seconds(call: Callable[[], object], calls: int) -> float:
    # Of this thread, so that others on the machine count little.
    return Timer("call()", timer=time.thread_time, globals={"call": call}).timeit(calls).median


def whole(name: str, rounds: int, tiny: bool) -> dict[str, Spread]:
    """Time a whole function on every side."""
    torch.manual_seed(0)
    made, mode = WHOLE[name][0](tiny), DeterministicMode()
    eager, compiled = (
        partial(made.call, function) for function in (made.function, torch.compile(made.function))
    )
    sides = (
        Timed(eager),
        Timed(compiled),
        Timed(compiled, lambda: mode),
        Timed(eager, lambda: mode),
    )
    return {
        side: Spread.of(times) for side, times in batches(dict(zip(SIDES, sides)), rounds).items()
    }


def one_call(name: str, rounds: int) -> dict[str, Spread]:
    """Time one call: a function that makes many against one that makes a single one."""
    make = ONE[name][0]
    few, many = make(1), make(1 + CALLS)
    timed = {(side, size): each for size, of in enumerate((few, many)) for side, each in of.items()}
    times = batches(timed, rounds)
    return {
        side: Spread.of(
            [(long - short) / CALLS for short, long in zip(times[side, 0], times[side, 1])]
        )
        for side in few
    }


def first_call(name: str, processes: int, tiny: bool) -> dict[str, Spread]:
    """Time the first call, which compiles, in so many processes a side, each with empty caches."""
    times: dict[str, list[float]] = {COMPILED: [], OURS: []}
    for _, side in in_turns(list(times), processes):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--first", name, side, *["--quick"] * tiny]
            environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
            times[side].append(float(subprocess.check_output(command, env=environment)))
    return {side: Spread.of(each) for side, each in times.items()}


def seconds_of_first(name: str, side: str, tiny: bool) -> float:
    """Seconds from ``torch.compile`` to the end of the first call; once in a process."""
    torch.manual_seed(0)
    made = WHOLE[name][0](tiny)
    start = time.perf_counter()
    with DeterministicMode() if side == OURS else contextlib.nullcontext():
        made.call(torch.compile(made.function))
    return time.perf_counter() - start


@dataclass
class Figures(Measured):
    """The measurements of one run.

    Args:
        provenance: as in :class:`Measured`.
        rounds: the number of times that each side was timed.
        whole: seconds by the name in :data:`WHOLE` and side.
        one: seconds of a call by the name in :data:`ONE` and side.
        first: seconds of the first call by the name in :data:`WHOLE` and side.
    """

    rounds: int
    whole: dict[str, dict[str, Spread]] = field(default_factory=dict)
    one: dict[str, dict[str, Spread]] = field(default_factory=dict)
    first: dict[str, dict[str, Spread]] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The CPU, on which everything runs."""
        return str(self.provenance["cpu"])

    @classmethod
    def read(cls, path: Path) -> Figures:
        """Read what :meth:`write` wrote."""
        found = json.loads(path.read_text(encoding="utf-8"))
        for kind in ("whole", "one", "first"):
            found[kind] = {
                name: {side: Spread(**time) for side, time in times.items()}
                for name, times in found[kind].items()
            }
        return cls(**found)


def committed(folder: Path = FOLDER) -> list[Figures]:
    """The committed results, by file name."""
    return [Figures.read(path) for path in sorted(folder.glob("*.json"))]


def tables(figures: Figures, form: str) -> list[str]:
    """The tables of what was measured."""
    found = []
    if figures.whole:
        lines = [
            (
                name,
                *(str(times[side]) for side in SIDES),
                *_judged(over(times[OURS], times[COMPILED]), WHOLE[name][1]),
            )
            for name, times in figures.whole.items()
        ]
        found += [
            "Whole functions, in microseconds: median (quartiles).",
            table(("function", *SIDES, "in the mode over compiled", "target"), lines, form),
        ]
    if figures.one:
        lines = []
        for name, times in figures.one.items():
            more = times[OURS].median - times[PLAIN].median
            lines.append(
                (name, *map(str, times.values()), *_judged(more * 1e6, ONE[name][1] * 1e6))
            )
        heads = ("one call of", PLAIN, "compiled, in the mode", "more", "target")
        found += [
            "One call inside compiled code, in microseconds: median (quartiles). Without the mode "
            "a listed operator is timed in eager code, since the compiler would fuse it, and a "
            "product in compiled code. The substitute only allocates its result.",
            table(heads, lines, form),
        ]
    if figures.first:
        lines = [
            (
                name,
                *(f"{times[side].median:.2f}" for side in (COMPILED, OURS)),
                number(over(times[OURS], times[COMPILED])),
            )
            for name, times in figures.first.items()
        ]
        found += [
            "The first call, in seconds, which compiles with empty caches: medians.",
            table(("function", COMPILED, OURS, "ratio"), lines, form),
        ]
    return found


def _judged(figure: float | None, target: float | None) -> tuple[str, str]:
    if figure is None or target is None:
        return number(figure), NOT_TIMED
    return number(figure), f"{number(target)}, {'met' if figure <= target else 'missed'}"


def caption(figures: Figures) -> str:
    """Say what the figures were measured with and on."""
    found = figures.provenance
    return (
        f"{found['cpu']}, one thread, PyTorch {found['torch']}, detmode {found['commit']}, "
        f"{found['date']}; {figures.rounds} rounds in turning order."
    )


def documented(found: Sequence[Figures]) -> str:
    """The section of ``docs/compiled-code.md``: every CPU that was measured."""
    if not found:
        return "Not yet measured."
    return "\n\n".join(part for each in found for part in (caption(each), *tables(each, "github")))


def lines(figures: Figures, options: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """Return the missing lines among those asked for, and their measurements."""

    def measure(kind: dict[str, Any], name: str, run: Callable[[], dict[str, Spread]]) -> None:
        kind[name] = run()

    rounds, tiny = options.rounds, options.quick
    asked = [
        *((figures.one, name, "", partial(one_call, name, rounds)) for name in ONE),
        *((figures.whole, name, "", partial(whole, name, rounds, tiny)) for name in WHOLE),
        *(
            (
                figures.first,
                name,
                "first call: ",
                partial(first_call, name, options.processes, tiny),
            )
            for name in FIRST
        ),
    ]
    return {
        said + name: partial(measure, kind, name, run)
        for kind, name, said, run in asked
        if name not in kind and options.only in said + name
    }


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    found.add_argument("--rounds", type=int, default=40, help="how often each side is timed")
    found.add_argument("--processes", type=int, default=2, help="that time a first call, a side")
    found.add_argument(
        "--only", default="", metavar="TEXT", help="only lines that have it in their names"
    )
    found.add_argument("--quick", action="store_true", help="tiny sizes, which measure nothing")
    found.add_argument("--first", nargs=2, metavar=("NAME", "SIDE"), help=argparse.SUPPRESS)
    add_options(found, FOLDER)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    # The compiler writes the number of threads into its code.
    torch.set_num_threads(1)
    if options.first:
        print(seconds_of_first(*options.first, options.quick))
        return 0
    figures = Figures(provenance(options.commit), options.rounds)
    if not figures.begin(options):
        return 2
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder),
    ):
        asked = lines(figures, options)
        figures.fill(iter(asked.items()), len(asked), options)
    print("\n\n".join([*tables(figures, "simple"), caption(figures)]))
    print(f"written to {figures.write(options.output)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
