"""Attributes of foreign objects, replaced while somebody needs the replacement."""

import gc
import random
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from detmode.environment.lock.choices import Choices
from detmode.process.patched import Patched
from detmode.process.undo import Undo


def doubled(plain: Callable[[], int]) -> Callable[[], int]:
    return lambda: 2 * plain()


def one() -> int:
    return 1


@pytest.fixture
def place() -> SimpleNamespace:
    return SimpleNamespace(number=one)


@pytest.fixture
def patched(place: SimpleNamespace) -> Patched:
    return Patched(lambda: place, "number", doubled)


@pytest.mark.parametrize("leaving", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_any_order(place: SimpleNamespace, patched: Patched, leaving: tuple[int, ...]) -> None:
    """One replacement serves all users, and the last one to leave restores the attribute."""
    for user in range(3):
        patched.enter(user)
        assert place.number() == 2
    for user in leaving[:-1]:
        patched.leave(user)
        patched.leave(user)
        assert place.number() == 2
    patched.leave(leaving[-1])
    assert place.number is one


def test_what_another_has_put_there_stays(place: SimpleNamespace, patched: Patched) -> None:
    """A wrapper of the replacement stays, and calls what was there before; once, in later uses."""
    patched.enter(1)
    replacement = place.number
    place.number = wrapper = lambda: 10 + replacement()
    patched.leave(1)
    assert (place.number, wrapper()) == (wrapper, 11)
    patched.enter(2)
    assert place.number() == 22
    patched.leave(2)
    assert (place.number, wrapper()) == (wrapper, 11)


def test_what_another_puts_back(place: SimpleNamespace, patched: Patched) -> None:
    """A replacement that another library puts back too late does nothing, and is not stacked."""
    patched.enter(1)
    with mock.patch.object(place, "number", return_value=5):
        patched.leave(1)
        assert place.number() == 5
    assert place.number() == 1
    patched.enter(2)
    assert place.number() == 2
    patched.leave(2)
    assert place.number is one


def test_a_new_function_is_replaced_too(place: SimpleNamespace, patched: Patched) -> None:
    """After another look, a function that has come meanwhile is replaced, and is what is left."""
    patched.enter(1)
    place.number = three = lambda: 3
    patched.look_again()
    assert place.number() == 6
    patched.leave(1)
    assert place.number is three
    patched.look_again()
    assert place.number is three


def test_two_names_of_one_function(place: SimpleNamespace) -> None:
    """One function under two names is one while it is replaced: Dynamo asks if two seeds are."""
    alias = SimpleNamespace(number=one)
    both = [Patched(lambda: place, "number", doubled), Patched(lambda: alias, "number", doubled)]
    for attribute in both:
        attribute.enter(1)
    assert place.number is alias.number
    place.number, replacement = (lambda: 10 + replacement()), place.number  # as Dynamo wraps one
    for attribute in both:
        attribute.enter(2)
    assert (place.number(), alias.number()) == (22, 2)
    for user in (1, 2):
        for attribute in both:
            attribute.leave(user)
    assert (place.number(), alias.number) == (11, one)


def test_what_is_not_there(place: SimpleNamespace) -> None:
    """An object or attribute that is not there is not replaced, until it is."""
    loaded: list[Any] = []
    patched = Patched(lambda: loaded[0] if loaded else None, "number", doubled)
    missing = Patched(lambda: place, "nothing", doubled)
    for attribute in (patched, missing):
        attribute.enter(1)
    loaded.append(place)
    patched.look_again()
    assert place.number() == 2
    for attribute in (patched, missing):
        attribute.leave(1)
    assert vars(place) == {"number": one}


def test_methods() -> None:
    """A static or inherited method is restored as such."""

    class Base:
        @staticmethod
        def number() -> int:
            return 1

        def method(self) -> int:
            return 1

    class Derived(Base):
        pass

    static = Patched(lambda: Base, "number", lambda plain: lambda *_: 2 * plain())
    inherited = Patched(lambda: Derived, "method", lambda plain: lambda self: 2 * plain(self))
    before = vars(Base)["number"]
    for attribute in (static, inherited):
        attribute.enter(1)
    assert (Base.number(), Derived().method(), Base().method()) == (2, 2, 1)
    for attribute in (static, inherited):
        attribute.leave(1)
    assert vars(Base)["number"] is before
    assert "method" not in vars(Derived)


def test_nothing_is_kept(place: SimpleNamespace, patched: Patched) -> None:
    """Users do not outlive their use; one replacement waits for the next."""
    replacements = set()
    for _ in range(3):
        undo = Undo()
        patched.until(undo)
        replacements.add(place.number)
        kept = weakref.ref(undo)
        undo.run()
        del undo
        gc.collect()
        assert kept() is None
        assert place.number is one
    assert len(replacements) == 1


def test_threads(place: SimpleNamespace, patched: Patched) -> None:
    """Users of many threads at once find the replacement, and nothing is left of it."""
    wrong: list[int] = []

    def use() -> None:
        for _ in range(300):
            user = object()
            patched.enter(user)
            if place.number() != 2:
                wrong.append(1)
            patched.leave(user)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert (wrong, place.number, patched.users) == ([], one, ())


@pytest.mark.parametrize("module", [torch, torch.random])
def test_a_seed_of_the_system(module: ModuleType) -> None:
    """A seed that ``torch.seed`` draws from the system is noted, with the value that it returns."""
    state = torch.get_rng_state()
    try:
        with Choices() as choices:
            drawn = module.seed()
    finally:
        torch.set_rng_state(state)
    assert str(choices.sections["generators"]["torch"]).startswith(f"{drawn} (state ")


def test_who_notes_seeds_may_leave_first() -> None:
    """All that are there note a seed, and those that have left none."""
    first, second = Choices(), Choices()
    first.__enter__()
    second.__enter__()
    random.seed(3)
    first.__exit__(None, None, None)
    torch.manual_seed(4)
    second.__exit__(None, None, None)
    seeds, more = (choices.sections["generators"] for choices in (first, second))
    assert (set(seeds), set(more)) == ({"python"}, {"python", "torch"})
    assert seeds["python"] == more["python"]
