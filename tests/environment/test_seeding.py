"""Seeds, workers and saved generators: what is drawn is the same, and a resumed run too."""

import io
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import detmode
from detmode.environment import seeding

PROGRAM = Path(__file__).parent / "resuming.py"


@pytest.fixture(autouse=True)
def generators_are_put_back() -> Iterator[None]:
    state = detmode.rng_state()
    yield
    detmode.set_rng_state(state)


def draw() -> tuple[float, ...]:
    """Numbers from every global generator; gauss and randn keep one of a pair for the next call."""
    return (
        random.random(),
        random.gauss(0, 1),
        float(numpy.random.rand()),
        float(numpy.random.randn()),
        torch.rand(()).item(),
        torch.randn(()).item(),
    )


class Drawing(Dataset[torch.Tensor]):
    """Each sample is its index and what its worker draws."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, *draw()], dtype=torch.float64)


def test_same_seed_same_numbers() -> None:
    """A seed decides what each global generator gives, and another seed gives other numbers.

    Drawing from the generator that comes back, the CPU's on any device, moves no global one.
    """
    detmode.seed_everything(7)
    first = draw()
    detmode.seed_everything(8)
    other = draw()
    with torch.device("meta"):
        generator = detmode.seed_everything(7)
    torch.rand(100, generator=generator)
    assert first == draw()
    assert all(a != b for a, b in zip(first, other))


@pytest.mark.parametrize("seed", [0, 2**32 - 1, numpy.int64(5)])
def test_seeds_that_all_three_take(seed: int) -> None:
    """The ends of the range and a NumPy integer."""
    assert detmode.seed_everything(seed).initial_seed() == seed == torch.initial_seed()


TYPE, RANGE = "seed must be an int, not ", r"from 0 to 2\*\*32 - 1.*but is"


@pytest.mark.parametrize(
    ("seed", "error", "words"),
    [
        (1.0, TypeError, TYPE + "float"),
        ("1", TypeError, TYPE + "str"),
        (None, TypeError, TYPE + "NoneType"),
        (True, TypeError, TYPE + "bool"),
        (-1, ValueError, RANGE),
        (2**32, ValueError, RANGE),
    ],
)
@pytest.mark.parametrize("function", [detmode.seed_everything, detmode.dataloader_kwargs])
def test_seeds_that_cannot_be(
    function: Callable[[Any], object], seed: Any, error: type[Exception], words: str
) -> None:
    """A seed that is no integer, or that NumPy would refuse, raises before anything is seeded."""
    before = random.getstate()
    with pytest.raises(error, match=words):
        function(seed)
    assert before == random.getstate()


def test_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy is optional: the rest is seeded, saved and put back."""
    with_numpy = detmode.rng_state()
    monkeypatch.setitem(sys.modules, "numpy.random", None)
    detmode.seed_everything(5)
    state = detmode.rng_state()
    assert set(state) == {"python", "torch"}
    expected = (random.random(), torch.rand(()).item())
    detmode.set_rng_state(state)
    assert expected == (random.random(), torch.rand(()).item())
    with pytest.raises(ValueError, match="NumPy cannot be imported"):
        detmode.set_rng_state(with_numpy)


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_gives_the_same_batches(workers: int) -> None:
    """Order and augmentation are the same in every run, and other in the next epoch."""

    def epochs() -> list[torch.Tensor]:
        detmode.seed_everything(1)
        loader = DataLoader(
            Drawing(), shuffle=True, num_workers=workers, **detmode.dataloader_kwargs(1)
        )
        return [torch.cat(list(loader)) for _ in range(2)]

    first, second = epochs(), epochs()
    assert torch.equal(torch.stack(first), torch.stack(second))
    assert not torch.equal(first[0], first[1])
    assert len(set(torch.cat(first)[:, 1].tolist())) == 24, "workers draw the same numbers"


def test_loader_does_not_depend_on_what_the_program_draws() -> None:
    """Numbers drawn between building a loader and using it change no batch of its workers."""
    rows = []
    for count in (0, 9):
        loader = DataLoader(Drawing(), shuffle=True, num_workers=1, **detmode.dataloader_kwargs(1))
        for _ in range(count):
            draw()
        rows.append(torch.cat(list(loader)))
    assert torch.equal(*rows)


def test_seed_worker_outside_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says where it belongs; in a thread, which shares the generators, it leaves them alone."""
    before = random.getstate()
    with pytest.raises(RuntimeError, match="worker_init_fn=detmode.seed_worker"):
        detmode.seed_worker(0)
    worker = SimpleNamespace(seed=1, worker_method="thread")
    monkeypatch.setattr(seeding, "get_worker_info", lambda: worker)
    detmode.seed_worker(0)
    assert before == random.getstate()


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def test_state_goes_through_a_checkpoint() -> None:
    """`weights_only=True` reads it, and every generator goes on as it would have."""
    draw()  # the second of a pair of normal numbers is part of the state
    state = detmode.rng_state()
    expected = [draw() for _ in range(3)]
    detmode.seed_everything(99)
    detmode.set_rng_state(saved_and_loaded(state))
    assert expected == [draw() for _ in range(3)]


@pytest.mark.parametrize("kind", ["PCG64", "Philox", "SFC64"])
def test_another_global_generator_of_numpy(kind: str) -> None:
    """NumPy's global generator may be of another kind; its state is then another one."""
    mersenne = numpy.random.get_bit_generator()
    try:
        state = detmode.rng_state()
        numpy.random.set_bit_generator(getattr(numpy.random, kind)(4))
        with pytest.raises(ValueError, match=f"of kind MT19937, but here it is {kind}"):
            detmode.set_rng_state(state)
        numpy.random.rand(3)
        state = saved_and_loaded(detmode.rng_state())
        expected = draw()
        detmode.set_rng_state(state)
        assert expected == draw()
    finally:
        numpy.random.set_bit_generator(mersenne)


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ([1], TypeError, "not list"),
        ({}, ValueError, r"lacks \['python', 'torch'\]"),
        ({"python": 0, "torch": 0, "jax": 0}, ValueError, r"has \['jax'\]"),
    ],
    ids=["list", "empty", "unknown"],
)
def test_state_from_elsewhere(state: Any, error: type[Exception], words: str) -> None:
    """A state that `rng_state` did not give is refused."""
    with pytest.raises(error, match=words):
        detmode.set_rng_state(state)


DAMAGE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "python, words are missing": ("python", lambda each: (each[0], each[1][:9], each[2])),
    "python, another version": ("python", lambda each: (9, *each[1:])),
    "python, nothing": ("python", lambda each: None),
    "torch, nothing": ("torch", lambda each: None),
    "torch, cut off": ("torch", lambda each: each[:9]),
    "torch, another dtype": ("torch", lambda each: each.float()),
    "numpy, nothing": ("numpy", lambda each: None),
    "numpy, words are missing": (
        "numpy",
        lambda each: {**each, "state": {**each["state"], "key": each["state"]["key"][:9]}},
    ),
    "numpy, fields are missing": ("numpy", lambda each: {"bit_generator": "MT19937"}),
    "cuda, nothing": ("cuda", lambda each: None),
    "cuda, an empty text": ("cuda", lambda each: [""]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_state_sets_nothing(monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """One clear error names the damaged part, and all generators stay as they are."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    name, change = DAMAGE[damage]
    state = detmode.rng_state()
    damaged = {**state, name: change(state.get(name))}
    draw()
    before = detmode.rng_state()
    for ordered in (damaged, dict(reversed(damaged.items()))):
        with pytest.raises(ValueError, match=rf"state\['{name}'\] is not what rng_state\(\) gives"):
            detmode.set_rng_state(ordered)
    after = detmode.rng_state()
    assert torch.equal(before.pop("torch"), after.pop("torch"))
    assert before == after
    detmode.set_rng_state(state)
    draw()
    assert detmode.rng_state()["python"] == before["python"]


def test_cuda_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's are saved where it is initialised, and put back on as many devices as there were."""
    assert "cuda" not in detmode.rng_state() or torch.cuda.is_initialized()
    # A state has a seed and an offset, and an older one a seed.
    there = [torch.arange(16, dtype=torch.uint8), torch.ones(8, dtype=torch.uint8)]
    done: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: there)
    monkeypatch.setattr(torch.cuda, "init", lambda: done.append("init"))
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", done.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    state = saved_and_loaded(detmode.rng_state())
    detmode.set_rng_state(state)
    assert done[0] == "init", "a seed that waits for CUDA would overwrite the states"
    assert all(torch.equal(a, b) for a, b in zip(there, done[1], strict=True))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="2 CUDA devices, but this process sees 1"):
        detmode.set_rng_state(state)


@pytest.mark.cuda
def test_cuda_numbers_are_drawn_again() -> None:
    """On a GPU: a seed decides, and a state that was saved and loaded to the GPU goes on."""
    detmode.seed_everything(1)
    first = torch.rand(100, device="cuda")
    state = detmode.rng_state()
    expected = torch.rand(100, device="cuda")
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    detmode.set_rng_state(torch.load(buffer, weights_only=True, map_location="cuda"))
    assert torch.equal(expected, torch.rand(100, device="cuda"))
    detmode.seed_everything(1)
    assert torch.equal(first, torch.rand(100, device="cuda"))


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_run_is_the_uninterrupted_one(
    workers: int, tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    """From a checkpoint of the middle of an epoch another process goes on with the same bits.

    Without the generators' state it is another run.
    """
    for parts in (["whole"], ["second", "forgetful"]):
        done = run_python(str(PROGRAM), str(tmp_path), str(workers), *parts)
        assert done.returncode == 0, done.stderr
    whole, second, forgetful = (
        torch.load(tmp_path / f"{part}.pt", weights_only=True)
        for part in ("whole", "second", "forgetful")
    )
    assert whole["losses"] == second["losses"]
    assert whole["drawn"] == second["drawn"]
    assert all(torch.equal(value, second["model"][key]) for key, value in whole["model"].items())
    assert whole["losses"] != forgetful["losses"]
