"""Arguments are validated by PyTorch's shape rules; their Python forms fail in their own ways."""

import contextlib
import gc
import re
import weakref

import pytest
import torch

from detmode import DeterministicMode, Substitute
from detmode.mode.handled import Handled
from detmode.mode.messages import alert_text
from detmode.mode.overload_info import OverloadInfo
from detmode.mode.substitution import validate
from tests.shared.programs import NAMESPACE, table_of

OPERATORS = getattr(torch.ops, NAMESPACE)
SQUARE, ROW = torch.ones(3, 3), torch.ones(3)
INDEX, TABLE = torch.tensor([0, 1]), torch.tensor([[0, 1]])
REJECTED = [
    (torch.ops.aten.index_add.default, (SQUARE, 0, TABLE, SQUARE)),
    (torch.ops.aten.index_add.default, (SQUARE, 0, INDEX, SQUARE)),
    (torch.ops.aten.index_copy.default, (SQUARE, 0, TABLE, SQUARE)),
    (torch.ops.aten.index_copy.default, (SQUARE, 0, INDEX, SQUARE)),
    (torch.ops.aten.index_copy.default, (SQUARE, 0, INDEX, ROW)),
]


@pytest.mark.parametrize(("func", "given"), REJECTED)
def test_errors_are_of_the_types_of_aten(func, given):
    """PyTorch's shape rules and launchers reject arguments by the type that ATen raises."""
    with pytest.raises(Exception) as by_aten:  # noqa: PT011 (any that ATen raises)
        func(*given)
    with DeterministicMode(simulate="cuda"), pytest.raises(by_aten.type):
        func(*given)


@pytest.mark.parametrize(
    "values", [torch.ones(3, 2), torch.ones(2, 3)], ids=["PyTorch", "launcher"]
)
def test_errors_keep_nothing_alive(values, monkeypatch):
    """The tensors of a refused call are freed with its error, whoever has refused it."""
    func, given = torch.ops.aten.index_add.default, [torch.ones(3, 3), 0, INDEX, values.clone()]

    def without_memory(*_, **__):
        raise MemoryError

    monkeypatch.setattr("detmode.rules.index.launch.move_indexed", without_memory)
    alive = weakref.ref(given[-1])
    gc.disable()
    try:
        with DeterministicMode(simulate="cuda"), contextlib.suppress(RuntimeError, MemoryError):
            func(*given)
            raise AssertionError("the call is refused")
        given.clear()
        assert alive() is None
    finally:
        gc.enable()


RAISED = [
    (AssertionError("dim 3 out of bounds (-1, 0)"), IndexError),
    (AssertionError("sizes differ"), RuntimeError),
    (ValueError("expected a positive size"), ValueError),
    (ValueError("too many values to unpack (expected 4)"), None),
    (NotImplementedError("no meta kernel"), None),
]


@pytest.mark.parametrize(("error", "expected"), RAISED, ids=lambda value: str(value)[:30])
def test_errors_of_meta_functions(library, error, expected):
    """Assertions become ATen's types; accidents are left to the launcher."""

    def shapes(self):
        raise error

    library.define("checked(Tensor self) -> Tensor")
    library.impl("checked", shapes, "Meta")
    call = Handled(OverloadInfo(OPERATORS.checked.default), (torch.ones(2),), {})
    if expected is None:
        validate(call)
    else:
        with pytest.raises(expected, match=re.escape(str(error))):
            validate(call)


ONES = torch.ones(3, 3)
DIFFERING = {
    "shape": ((ONES, []), (torch.ones(9, 1), [])),
    "strides": ((ONES, []), (ONES.t(), [])),
    "dtype": ((ONES, []), (ONES.double(), [])),
    "shape in a list": ((ONES, [ONES]), (ONES, [ONES[0]])),
    "strides in a list": ((ONES, [ONES]), (ONES, [ONES.t()])),
    "dtype in a list": ((ONES, [ONES]), (ONES, [ONES.int()])),
    "length of a list": ((ONES, [ONES]), (ONES, [ONES, ONES])),
    "number": ((ONES, [], 1), (ONES, [], 2)),
    "type of a number": ((ONES, [], 1), (ONES, [], True)),
    "optional": ((ONES, [], 1), (ONES, [], 1, 1)),
    "text": ((ONES, [], 1, None, "sum"), (ONES, [], 1, None, "mean")),
}


@pytest.mark.parametrize("differing", DIFFERING)
def test_a_call_that_passed_speaks_for_its_like_only(library, differing):
    """A call is validated that differs from one that passed in anything but its tensors' values."""

    def shapes(*given):
        seen.append(given)
        if len(seen) > 1:
            raise RuntimeError("refused by its shapes")
        return given[0].clone()

    seen, (passes, fails) = [], DIFFERING[differing]
    library.define(
        "chosen(Tensor self, Tensor[] more, Scalar n=1, int? k=None, str s='') -> Tensor"
    )
    library.impl("chosen", shapes, "Meta")
    rules = table_of(
        f"{NAMESPACE}::chosen", Substitute(lambda self, *_, **__: self, launches=False)
    )
    with DeterministicMode(simulate="cuda", rules=rules):
        OPERATORS.chosen(*passes)
        OPERATORS.chosen(passes[0] + 1, *passes[1:])
        assert len(seen) == 1
        with pytest.raises(RuntimeError, match="refused by its shapes"):
            OPERATORS.chosen(*fails)


def test_a_custom_operator_without_a_fake_implementation():
    """Its arguments are left to the launcher, as those of any operator without a meta kernel."""

    @torch.library.custom_op(f"{NAMESPACE}::unfaked", mutates_args=())
    def unfaked(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    validate(Handled(OverloadInfo(OPERATORS.unfaked.default), (torch.ones(2),), {}))


@pytest.mark.parametrize("warn_only", [False, True])
@pytest.mark.parametrize("alerts_in", ["Python", "C++"])
def test_shape_functions_run_under_the_flag(library, alerts_in, warn_only):
    """The flag, which is of the whole process, is lowered only where a C++ alert is in the way."""
    found = []

    def shapes(self):
        found.append(torch.are_deterministic_algorithms_enabled())
        if alerts_in == "Python":
            torch._prims_common.alert_not_deterministic("alerting")
        elif torch.are_deterministic_algorithms_enabled():
            raise RuntimeError(alert_text("alerting", warn=False))
        return torch.empty_like(self)

    library.define("alerting(Tensor self) -> Tensor")
    library.impl("alerting", shapes, "Meta")
    with DeterministicMode(warn_only):
        alerting = OverloadInfo(OPERATORS.alerting.default)
        validate(Handled(alerting, (torch.ones(len(found) + 2),), {}))
        assert torch.are_deterministic_algorithms_enabled()
        with pytest.raises(RuntimeError) if not warn_only else pytest.warns(UserWarning):
            torch._prims_common.alert_not_deterministic("the program's own")
    assert found == [True] if alerts_in == "Python" else [True, False]
