"""Messages and reports use the words of the interface through which a mode was started."""

import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from detmode import DeterministicMode, Refuse, RuleTable
from detmode.process.interface import INTERFACES, Interface
from tests.shared.programs import cumsum, histc, index_add, rule

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


def silent() -> torch.Tensor:
    return torch.relu(torch.ones(2))


def unsettling() -> None:
    torch.use_deterministic_algorithms(False)
    cumsum()


ROWS = RuleTable([rule("aten::histc", Refuse(), alert="histc"), rule("aten::relu", Refuse())])
SITUATIONS: dict[str, tuple[dict[str, Any], Callable[[], object]]] = {
    "refused": ({"rules": ROWS}, histc),
    "warned about": ({"rules": ROWS, "warn_only": True}, histc),
    "silent": ({"rules": ROWS}, silent),
    "silent and strict": ({"rules": ROWS, "strict": True}, silent),
    "overridden": ({"overrides": {"torch.cumsum": "error"}}, cumsum),
    "allowed": ({"overrides": {"torch.cumsum": "allow"}}, cumsum),
    "without substitutes": ({"overrides": {"aten::index_add": "warn"}}, index_add),
    "settings": ({"intercept": "listed"}, unsettling),
    "covered": ({}, cumsum),
    "not met": ({"simulate": None}, lambda: None),
    "simulated, not met": ({}, lambda: None),
}
"""The arguments of a mode, and what is called under it."""

_ARGUMENTS = "(warn_only|strict|substitute|overrides|simulate|intercept)"
_OPTION = r"(?<![\w-])--(?!detmode)\w"
OTHERS = {
    "python": rf"(?<!detmode record ){_OPTION}|--detmode|%%|pytest|Callback",
    "command": rf"\b{_ARGUMENTS}[=:{{]|%%|--detmode|pytest|Callback",
    "notebook": rf"\b{_ARGUMENTS}[=:{{]|--detmode|pytest|Callback|`detmode",
    "trainer": rf"(?<!Mode\()\b{_ARGUMENTS}=|{_OPTION}|--detmode|%%|pytest",
    "pytest": rf"(?<!detmode-)\b{_ARGUMENTS}[=:{{]|{_OPTION}|%%|Callback|`detmode",
    "marker": rf"(?<!deterministic\()\b{_ARGUMENTS}=|{_OPTION}|--detmode|%%|Callback|`detmode",
}
"""By interface: the words of others."""


def said(interface: Interface, options: dict[str, Any], call: Callable[[], object]) -> str:
    """The text of a mode on a call: errors and warnings, after PyTorch's own, and reports."""
    mode = DeterministicMode(**{"simulate": "cuda", **options})
    mode.start_through(interface)
    texts = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with mode:
                call()
        except RuntimeError as error:
            texts.append(str(error))
    texts += [str(warning.message) for warning in caught]
    report = mode.report()
    own = [text.rpartition("\n")[2] for text in texts]
    return "\n".join([*own, report.text(long=True), report.page().facts[0]])


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("interface", INTERFACES.values(), ids=list(INTERFACES))
def test_no_word_of_another_interface(interface: Interface, situation: str) -> None:
    """Remedies and next steps are what is typed where the mode was started."""
    if (interface.name, situation) == ("pytest", "settings"):
        return  # it has no option for listed calls
    text = said(interface, *SITUATIONS[situation])
    assert re.search(OTHERS[interface.name], text) is None, text


@pytest.mark.parametrize(
    "wrong",
    [{"warn_only": True, "strict": True}, {"overrides": {"aten::no": "warn"}}, {"recheck": 2.0}],
)
@pytest.mark.parametrize("name", ["command", "notebook", "pytest"])
def test_refused_arguments(name: str, wrong: dict[str, Any]) -> None:
    """An error about an argument names the option that was typed."""
    with pytest.raises(ValueError, match="leave one|aten::no|from 0 to 1") as raised:
        DeterministicMode(**wrong)
    text = INTERFACES[name].in_words(str(raised.value))
    assert re.search(OTHERS[name], text) is None, text
    assert text.startswith("--"), text


def test_a_copy_speaks_as_its_mode() -> None:
    """A mode that is pickled, as for a process that is started, keeps its interface."""
    mode = DeterministicMode()
    mode.start_through(INTERFACES["trainer"])
    assert pickle.loads(pickle.dumps(mode)).report().interface.name == "trainer"
