"""The interfaces to a mode: how each of them spells the mode's options, and what to do next there.

Messages use the words that their reader types: an option of pytest for a user of pytest.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_ARGUMENT = re.compile(
    r"\b(warn_only|strict|substitute|intercept|simulate)=(True|False|'\w+'|\"\w+\")"
)
"""An argument of the mode in a message, as Python has it."""


@dataclass(frozen=True)
class Interface:
    """The interface through which a mode was started.

    Args:
        name: the name in a report's JSON.
        allow: the ways to accept an operator that may vary; ``OP`` stands for its name.
        no_call: the next step where no call ran on a GPU.
        prove: the next step where no call may vary.
        see_rest: the next step where calls were not seen.
        fill: the next step where filling new memory costs something.
        on_gpu: the way to run on a GPU what was audited.
        flags: the spelling of an argument that is a bool, by its name and value.
        options: the text before the value of another argument, by its name.
        call: the place of an argument for which nothing else is typed.
    """

    name: str
    allow: str
    no_call: str
    prove: str
    see_rest: str = "to see what the rest does, `detmode record` two runs and `detmode diff` them"
    fill: str = ""
    on_gpu: str = "`detmode run` the program on a GPU"
    flags: Mapping[tuple[str, bool], str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    call: str = "{}"

    def how_to_allow(self, operator: str) -> str:
        """Return how a program accepts an operator that may vary."""
        return self.allow.replace("OP", operator)

    def option(self, name: str, value: object) -> str:
        """Return an argument of the mode as it is typed here.

        >>> COMMAND.option("simulate", "cuda")
        '--simulate cuda'
        """
        if isinstance(value, bool) and (name, value) in self.flags:
            return self.flags[name, value]
        if name in self.options:
            return f"{self.options[name]}{value}"
        return self.call.format(
            f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
        )

    def name_of(self, argument: str) -> str:
        """Return the name by which an argument of the mode is typed here."""
        return self.options.get(argument, argument).rstrip(" =")

    def in_words(self, message: str) -> str:
        """Return a message about arguments of the mode with the options that are typed here.

        >>> COMMAND.in_words("overrides: no operator is named 'x'")
        "--override: no operator is named 'x'"
        """
        first = re.match(r"\w*", message)
        if first and first.group() in self.options:
            message = f"{self.name_of(first.group())}{message[first.end() :]}"
        return _ARGUMENT.sub(lambda match: self._from_source(*match.groups()), message)

    def _from_source(self, name: str, value: str) -> str:
        return self.option(name, ast.literal_eval(value))

    def options_of(self, call: str) -> str:
        """Return the options that give a mode the arguments of a call, as text.

        >>> COMMAND.options_of("DeterministicMode(strict=True, overrides={'aten::histc': 'allow'})")
        '--strict --override aten::histc=allow'
        """
        try:
            arguments = _arguments_of(call)
        except (SyntaxError, TypeError, ValueError):
            return call  # such as one with a table of rules
        overrides = arguments.pop("overrides", {})
        words = [self.option(name, value) for name, value in arguments.items()]
        words += [self.option("overrides", f"{op}={action}") for op, action in overrides.items()]
        return " ".join(words) or "none"


def _arguments_of(call: str) -> dict[str, Any]:
    """Return the arguments of a call that are literals; raise an error if it is no such call."""
    node = ast.parse(call, mode="eval").body
    if not isinstance(node, ast.Call):
        raise TypeError(call)
    return {str(item.arg): ast.literal_eval(item.value) for item in node.keywords}


_FLAGS = {
    ("warn_only", True): "--warn-only",
    ("strict", True): "--strict",
    ("strict", False): "no --strict",
    ("substitute", False): "--no-substitute",
}
_OPTIONS = {
    "overrides": "--override ",
    "simulate": "--simulate ",
    "schedule_seed": "--schedule-seed ",
    "intercept": "--intercept ",
    "recheck": "--recheck ",
}
PYTHON = Interface(
    name="python",
    allow='with detmode.allow("OP"), or overrides={"OP": "allow"}',
    no_call="`detmode audit` says what would happen on CUDA, on any machine",
    prove="to prove it, `detmode record --deterministic` two runs and `detmode diff` them",
    fill="to save filling new memory, `detmode record` says whether anything reads it",
    on_gpu="run it in a DeterministicMode block on a GPU",
)
COMMAND = Interface(
    name="command",
    allow='--override OP=allow, or with detmode.allow("OP") in the program',
    no_call=PYTHON.no_call,
    prove="to prove it, `detmode run --twice`",
    fill=PYTHON.fill,
    flags=_FLAGS,
    options=_OPTIONS,
)
NOTEBOOK = Interface(
    name="notebook",
    allow='%%deterministic --override OP=allow, or with detmode.allow("OP") in the cell',
    no_call="`%%deterministic --simulate cuda` treats CPU tensors as CUDA tensors",
    prove="to prove it, call a function under detmode.testing.assert_reproducible",
    see_rest="call what was not seen under detmode.testing.assert_reproducible",
    flags=_FLAGS,
    options=_OPTIONS,
)
TRAINER = Interface(
    name="trainer",
    allow='with detmode.allow("OP") in the model, or DeterministicCallback(DeterministicMode('
    'overrides={"OP": "allow"}))',
    no_call=PYTHON.no_call,
    prove="to prove it, `detmode record` two trainings and `detmode diff` them",
    fill=PYTHON.fill,
    call="DeterministicCallback(DeterministicMode({}))",
)
PYTEST = Interface(
    name="pytest",
    allow='--detmode-override=OP=allow, or with detmode.allow("OP") in the test',
    no_call="--detmode-simulate=cuda treats CPU tensors as CUDA tensors",
    prove="to prove it, mark tests with @pytest.mark.deterministic, which repeats them",
    see_rest="mark tests with @pytest.mark.deterministic, which compares what they return",
    flags={
        ("warn_only", True): "--detmode=warn",
        ("strict", True): "--detmode=strict",
        ("strict", False): "--detmode=error",
    },
    options={
        "overrides": "--detmode-override=",
        "simulate": "--detmode-simulate=",
        "recheck": "--detmode-recheck=",
    },
)
MARKER = Interface(
    name="marker",
    allow='with detmode.allow("OP") in the test, or '
    '@pytest.mark.deterministic(overrides={"OP": "allow"})',
    no_call='@pytest.mark.deterministic(simulate="cuda") treats CPU tensors as CUDA tensors',
    prove="to prove it, return a tensor from the test: its repeats are compared",
    see_rest=PYTEST.see_rest,
    call="@pytest.mark.deterministic({})",
)
INTERFACES = {
    interface.name: interface for interface in (PYTHON, COMMAND, NOTEBOOK, TRAINER, PYTEST, MARKER)
}
"""By the name in a report's JSON."""
