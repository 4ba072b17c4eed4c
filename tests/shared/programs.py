"""Calls and programs that the tests of the mode share."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from detmode import GPU_TO_GPU, RUN_TO_RUN, DeterministicMode, Native, Rule, RuleTable, Substitute

NAMESPACE = "detmode_mode_test"


def rule(op: str, action: object, **fields: object) -> Rule:
    """A row with a reason, and with the guarantee that one of its action must have."""
    guarantee = {Native: RUN_TO_RUN, Substitute: GPU_TO_GPU}.get(type(action))
    whole = {"op": op, "action": action, "guarantee": guarantee, "because": "a test", **fields}
    return Rule(**whole)


def table_of(op: str, action: object, **fields: object) -> RuleTable:
    """A table of one row."""
    return RuleTable([rule(op, action, **fields)])


def put() -> torch.Tensor:
    return torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))


def cumsum() -> torch.Tensor:
    return torch.ones(3).cumsum(0)


def histc() -> torch.Tensor:
    return torch.histc(torch.ones(3))


def index_add() -> torch.Tensor:
    return torch.zeros(3).index_add(0, torch.tensor([0]), torch.ones(1))


def image(size: int = 2) -> torch.Tensor:
    return torch.ones(1, 1, size, size, requires_grad=True)


def enlarged(x: torch.Tensor, kind: str = "bilinear") -> torch.Tensor:
    """Its backward has a substitute in the small table; as bicubic it is refused."""
    return F.interpolate(x, scale_factor=2, mode=kind)


def actions(mode: DeterministicMode) -> list[tuple[str, str, int]]:
    """The mode's rows: the overload, what was done, how often."""
    return [(record.overload, record.action, record.count) for record in mode.records]


def in_another_thread(function: Callable[..., object], *arguments: object) -> object:
    """The function's result or error in a new thread, which ends with it."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *arguments).result()


def in_threads(*functions: Callable[[], object]) -> list[object]:
    """The results of functions that run at the same time, each in a thread; or an error of one."""
    with ThreadPoolExecutor(len(functions)) as threads:
        futures = [threads.submit(function) for function in functions]
        return [future.result() for future in futures]


class Seen(TorchDispatchMode):
    """Notes the operators that it is handed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


class Other:
    """Another thread, which is in a call until it is told to go on."""

    def __init__(self, call) -> None:
        self.is_in = threading.Event()
        self.go_on = threading.Event()
        self._thread = threading.Thread(target=call, args=(self,))

    def __enter__(self) -> "Other":
        self._thread.start()
        assert self.is_in.wait(60)
        return self

    def __exit__(self, *error: object) -> None:
        self.go_on.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def stay(self) -> None:
        self.is_in.set()
        assert self.go_on.wait(60)
