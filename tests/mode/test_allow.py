"""``allow``: operators exempted in a block, and in the backward of what is called in it."""

from contextlib import ExitStack, nullcontext

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from detmode import allow
from detmode.cuda import native
from detmode.sites.forward_memory import forward_memory
from detmode.sites.native_memory import process
from tests.shared.programs import Other, actions, enlarged, histc, image, in_another_thread, put

FORWARD = "aten::upsample_bicubic2d"
BACKWARD = "aten::upsample_bicubic2d_backward"


@pytest.fixture(params=["all", "listed"])
def mode(mode, request):
    """Modes that intercept all calls, or listed ones alone."""
    return lambda *args, **options: mode(*args, **{"intercept": request.param, **options})


def up(x):
    return enlarged(x, "bicubic")


@pytest.mark.parametrize(
    "name",
    [
        *("aten::put", "aten::put_", "aten::put_.default", "aten::p*", "*"),
        *(torch.ops.aten.put, torch.ops.aten.put_.default),
    ],
    ids=str,
)
def test_names(mode, name):
    """A region names operators as overrides do; outside it, they are refused as before."""
    with mode() as made:
        with allow("aten::histc", name):
            assert put().tolist() == [1, 0, 0]
        with pytest.raises(RuntimeError):
            put()
    assert actions(made) == [("aten::put_.default", "allow", 1), ("aten::put_.default", "error", 1)]


@pytest.mark.parametrize(
    "names",
    [[FORWARD], [BACKWARD], [BACKWARD + ".default"], ["aten::upsample*"], [FORWARD, "aten::put"]],
    ids=str,
)
@pytest.mark.parametrize("place", ["forward before the mode", "forward", "backward"])
def test_backward(mode, names, place):
    """Naming the forward or the backward operator exempts the backward, where either is called.

    The region may have ended when backward runs, and before the mode was entered, too.
    """

    def entered(at):
        regions = ExitStack()
        for name in names if at == place else []:
            regions.enter_context(allow(name))
        return regions

    x = image()
    with entered("forward before the mode"):
        y = up(x)
    with mode() as made:
        if place == "forward":
            with entered("forward"):
                y = up(x)
        with entered("backward"):
            y.sum().backward()
    assert actions(made) == [(BACKWARD + ".default", "allow", 1)]
    assert x.grad is not None


def test_the_backward_of_another_call_is_refused(mode):
    """A call of the same operator outside the region keeps raising in backward."""
    with mode() as made:
        before = up(image())
        with allow(FORWARD):
            inside = up(image())
        after = up(image())
        inside.sum().backward()
        for y in (before, after):
            with pytest.raises(RuntimeError, match="bicubic2d"):
                y.sum().backward()
    # All three are at the line of up(); the errors share a row.
    assert [(action, count) for _, action, count in actions(made)] == [("allow", 1), ("error", 2)]


def test_a_region_around_a_call_that_makes_no_node(mode):
    """A listed call without a node of its own leaves the one before it outside the region."""
    with mode(overrides={"aten::empty_like": "allow"}) as made:
        y = up(image())
        with allow(BACKWARD):
            torch.empty_like(y)
        with pytest.raises(RuntimeError, match="bicubic2d"):
            y.sum().backward()
    assert (BACKWARD + ".default", "error", 1) in actions(made)


def test_nested_regions(mode):
    """Inner regions add to outer ones, and end by themselves."""
    with mode():
        with allow("aten::histc"):
            with allow("aten::put"):
                put()
                histc()
            histc()
            with pytest.raises(RuntimeError, match="put_"):
                put()
        with pytest.raises(RuntimeError, match="histc"):
            histc()


def test_reentrant(mode):
    """One region object may be entered twice; it ends with the outer block."""
    region = allow("aten::put")
    with mode():
        with region:
            with region:
                put()
            put()
        with pytest.raises(RuntimeError):
            put()


def test_regions_that_end_in_another_order(mode):
    """Two regions of which the first ends first: the second goes on."""
    first, second = allow("aten::histc"), allow("aten::put")
    with mode():
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        put()
        with pytest.raises(RuntimeError, match="histc"):
            histc()
        second.__exit__(None, None, None)
        with pytest.raises(RuntimeError, match="put_"):
            put()


def test_decorator(mode):
    """As a decorator it holds in each call of the function, and in its backward."""
    exempt = allow(FORWARD)(up)
    with mode() as made:
        exempt(image()).sum().backward()
        exempt(image()).sum().backward()
    assert [action for _, action, _ in actions(made)] == ["allow"]


def test_decorated_generator(mode):
    """Of a generator it holds while that runs, and not while it waits."""

    @allow("aten::put")
    def generator(first):
        second = yield put(), first
        yield put(), second

    with mode():
        steps = generator(1)
        assert next(steps)[1] == 1
        with pytest.raises(RuntimeError, match="put_"):
            put()
        assert steps.send(2)[1] == 2
        steps.close()
        with pytest.raises(RuntimeError, match="put_"):
            put()
    assert generator.__name__ == "generator"


async def waits():
    """Across an ``await`` other tasks would run inside the region."""


async def waits_and_yields():
    """So they would here."""
    yield


@pytest.mark.parametrize(
    ("decorated", "text"),
    [
        (waits, "cannot decorate a coroutine function"),
        (waits_and_yields, "cannot decorate a coroutine function"),
        (3, "decorates a function, got int"),
    ],
)
def test_decorator_refuses(mode, decorated, text):
    """A coroutine function, or what is no function, is a TypeError."""
    with pytest.raises(TypeError, match=rf"^allow\(\) {text}"):
        allow("aten::put")(decorated)
    with mode(), pytest.raises(RuntimeError, match="put_"):
        put()


def test_decorator_in_two_threads(mode):
    """One decorated function in two threads: each has its own region."""

    @allow(BACKWARD)
    def exempt(other=None):
        if other is not None:
            other.stay()

    with Other(exempt):
        y = up(image())
        exempt()
        z = up(image())
    with mode():
        for forward in (y, z):
            with pytest.raises(RuntimeError):
                forward.sum().backward()


def test_exceptions_end_the_region(mode):
    """An exception inside ends the region and passes."""
    with mode():
        with pytest.raises(LookupError), allow("aten::put"):
            raise LookupError
        with pytest.raises(RuntimeError, match="put_"):
            put()


def test_outside_a_mode_it_changes_nothing():
    """Without a mode there is nothing to allow: PyTorch's flag decides."""
    torch.use_deterministic_algorithms(True)
    try:
        with allow("aten::put"), pytest.raises(RuntimeError, match=r"^put_ does not"):
            put()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize(
    ("around", "inside"),
    [([FORWARD], []), ([BACKWARD], []), ([], [FORWARD]), ([], [])],
    ids=["forward", "backward", "inside", "no region"],
)
def test_checkpoint(mode, around, inside, use_reentrant, line):
    """A checkpointed function has its exemption when it is run again, from a region of its own too.

    Without a region its backward is refused, at the forward call's line.
    """

    def function(t):
        with allow(*inside) if inside else nullcontext():
            return torch.nn.functional.interpolate(t * 2, scale_factor=2, mode="bicubic")  # here

    exempt = around or inside
    with mode() as made:
        with allow(*around) if around else nullcontext():
            y = checkpoint(function, image(), use_reentrant=use_reentrant)
        with nullcontext() if exempt else pytest.raises(RuntimeError, match="bicubic2d"):
            y.sum().backward()
    (record,) = made.records
    assert (record.overload, record.action) == (
        BACKWARD + ".default",
        "allow" if exempt else "error",
    )
    assert [record.site] == line(function)


# Forward makes no graph inside the outer checkpoint, of which PyTorch warns.
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("exempt", [True, False])
@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints_inside_a_checkpoint(mode, use_reentrant, depth, exempt):
    """The exemption holds however deep recomputation is nested; a call outside it is refused."""

    def nested(t, depth=depth):
        t = t * 2
        return checkpoint(nested, t, depth - 1, use_reentrant=use_reentrant) if depth else up(t)

    with mode() as made:
        with allow(FORWARD) if exempt else nullcontext():
            y = checkpoint(nested, image(), use_reentrant=use_reentrant)
        with nullcontext() if exempt else pytest.raises(RuntimeError, match="bicubic2d"):
            y.sum().backward()
        z = checkpoint(nested, image(), use_reentrant=use_reentrant)
        with pytest.raises(RuntimeError, match="bicubic2d"):
            z.sum().backward()
    assert ("allow" in {action for _, action, _ in actions(made)}) == exempt


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_forward_operator_in_a_checkpoint(mode, use_reentrant):
    """A listed forward operator is exempt when it is recomputed, too."""

    def function(t):
        return t.put(torch.tensor([0]), torch.ones(1)).sin()

    with mode() as made:
        with allow("aten::put"):
            y = checkpoint(function, torch.ones(3, requires_grad=True), use_reentrant=use_reentrant)
        y.sum().backward()
    assert {action for _, action, _ in actions(made)} == {"allow"}


@pytest.mark.parametrize("exempt", [True, False])
def test_double_backward(mode, exempt):
    """With ``create_graph`` the exemption reaches the backward of the backward.

    Without a region the first backward is refused already.
    """
    x = image()
    with mode() as made:
        with allow(FORWARD) if exempt else nullcontext():
            y = up(x).pow(2)
        with nullcontext() if exempt else pytest.raises(RuntimeError, match="bicubic2d"):
            (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            gradient.pow(2).sum().backward()
    assert {action for _, action, _ in actions(made)} == {"allow" if exempt else "error"}
    assert sum(count for *_, count in actions(made)) >= 1 + exempt


def test_other_threads_do_not_inherit(mode):
    """A region concerns the thread that enters it: a mode in another thread refuses."""

    def work():
        with mode(), pytest.raises(RuntimeError):
            put()

    with mode(), allow("aten::put"):
        in_another_thread(work)
        put()


def test_torch_func_grad(mode):
    """Under ``torch.func.grad`` the forward's name exempts its backward, inside the region."""
    gradient = torch.func.grad(lambda t: up(t).sum())
    with mode() as made:
        with allow(FORWARD):
            gradient(image().detach())
        with pytest.raises(RuntimeError, match="bicubic2d"):
            gradient(image().detach())
    assert [action for _, action, _ in actions(made)] == ["allow", "error"]


def test_many_regions_are_forgotten_on_the_safe_side(mode, monkeypatch):
    """When too many regions have ended, the oldest are forgotten, and their backward is refused."""
    monkeypatch.setattr("detmode.sites.forward_memory._INTERVALS", 8)
    outside = torch.ones(3, requires_grad=True)
    with allow(BACKWARD):
        y = up(image())
    for _ in range(len(forward_memory()._past) + 16):
        with allow("aten::histc"):
            outside * 2
    with mode(), pytest.raises(RuntimeError, match="bicubic2d"):
        y.sum().backward()


def test_notes_are_forgotten_on_the_safe_side(mode, monkeypatch):
    """When too many calls are noted, the oldest are forgotten; backward still runs or refuses."""
    monkeypatch.setattr("detmode.sites.forward_memory._NOTES", 8)

    def under_the_mode():
        with mode() as made:
            y = up(image())
            for _ in range(32):
                torch.ones(3, requires_grad=True).cumsum(0)
            with pytest.raises(RuntimeError, match="bicubic2d"):
                y.sum().backward()
        return made

    assert in_another_thread(under_the_mode).records[-1].module is None


def test_a_graph_of_another_thread_takes_over_nothing(mode):
    """Numbers of nodes repeat from thread to thread: what is allowed elsewhere is not theirs."""
    graphs = in_another_thread(lambda: [up(image()).sum() for _ in range(9)])

    def under_the_mode():
        with mode() as made:
            with allow("aten::cumprod"):
                for _ in range(9):
                    image().flatten().cumprod(0).sum()
            for graph in graphs:
                with pytest.raises(RuntimeError, match="upsample_bicubic2d_backward"):
                    graph.backward()
        return made

    made = in_another_thread(under_the_mode)
    assert actions(made)[1:] == [(BACKWARD + ".default", "error", 9)]


@pytest.mark.parametrize("mode", ["all"], indirect=True)  # listed: where the player is there
@pytest.mark.parametrize("has_player", [True, False])
def test_backward_of_a_write_to_a_view(mode, has_player, monkeypatch):
    """Writing to a view has its exemption, too: its node is inside one of the view's."""
    if not has_player:
        monkeypatch.setenv(native.VARIABLE, "0")
        monkeypatch.setattr(process, "native_memory", None)  # of an earlier block
    with mode() as made:
        x = torch.ones(2, 3, requires_grad=True) * 1
        with allow("aten::cumprod_"):
            x[0].cumprod_(0)
        x.sum().backward()
    assert len(made.records) > 1
    assert {(record.action, record.site) for record in made.records} == {
        ("allow", made.records[0].site)
    }
