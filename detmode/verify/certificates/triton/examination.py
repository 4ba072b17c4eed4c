"""Certificates of Triton's kernels and of operators: many runs, compared with the first."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_leaves

from detmode.bits.tensors import bytes_of
from detmode.mode.filled_memory import FilledMemory
from detmode.mode.foreign_kernels import kernel_key
from detmode.verify.certificates.certificate import (
    FLOAT_ADD,
    NEW_MEMORY,
    PROGRAM_ORDER,
    Certificate,
    FoundError,
    KernelVerdict,
    Variation,
    compare,
    described,
    in_turns,
    not_ended,
    shuffled_by,
)
from detmode.verify.certificates.copies import FILLS, copies_of
from detmode.verify.certificates.orders import LIMIT, TooManyError, all_orders
from detmode.verify.certificates.triton.dependence import Step, relation
from detmode.verify.certificates.triton.interpreter import interpreted
from detmode.verify.certificates.triton.launch import InterpretedLaunch
from detmode.verify.certificates.triton.schedules import Schedule

CONFLICTING = 6
"""Programs that may conflict for all their orders to be run."""

ATOMICS = {
    "ADD": "integer add",
    "FADD": FLOAT_ADD,
    **dict.fromkeys(("AND", "OR", "XOR"), "bitwise"),
    **dict.fromkeys(("MAX", "MIN", "UMAX", "UMIN"), "minimum or maximum"),
    "XCHG": "exchange",
    "CAS": "compare-and-swap",
    "LOAD": "load",
    "STORE": "store",
}
NOT_SHOWN = (
    "other inputs, shapes and grids than these",
    "the order inside one operation of a program, such as tl.sum or tl.dot, which the compiler "
    "chooses for a GPU and a number of warps",
    "races between the threads of one program, which tl.debug_barrier prevents",
    "the last bits of a GPU's arithmetic: the interpreter's is NumPy's",
)


def certify(
    kernel: Any,
    arguments: Mapping[str, Any] | Sequence[Any],
    *,
    repeats: int,
    grid: Any,
    seed: int,
    timeout: float,
) -> Certificate:
    """Certify a kernel of ``triton.jit``; see :func:`detmode.certify` for the arguments."""
    function = kernel
    while not inspect.isfunction(function):
        function = function.fn
    name = function.__name__
    if not isinstance(arguments, Mapping):
        names = list(inspect.signature(function).parameters)
        if len(arguments) > len(names):
            raise TypeError(
                f"certify(): {name} takes {len(names)} arguments, but got {len(arguments)}"
            )
        arguments = dict(zip(names, arguments))
    examination = _Examination(
        name, dict(arguments), lambda copies: kernel[grid](**copies), repeats, seed, timeout
    )
    return examination.certificate()


def certify_operator(
    operator: Any,
    arguments: Mapping[str, Any] | Sequence[Any],
    *,
    repeats: int,
    seed: int,
    timeout: float,
) -> Certificate:
    """Certify an operator whose implementation launches kernels; see :func:`detmode.certify`."""
    overload = _overload(operator)
    if not isinstance(arguments, Mapping):
        arguments = dict(zip((a.name for a in overload._schema.arguments), arguments))
    examination = _Examination(
        overload.name(), dict(arguments), lambda copies: overload(**copies), repeats, seed, timeout
    )
    return examination.certificate()


@dataclass
class _Run:
    """The results of one schedule of all launches."""

    tensors: dict[str, torch.Tensor]
    launches: list[InterpretedLaunch]
    overwritten: dict[int, NDArray[np.bool_]]
    """For each storage among the arguments, the bytes that were stored to before anything read
    them; empty if there were several launches."""


@dataclass
class _Examination:
    """The runs of one kernel or operator, which ``call`` makes with copies of its arguments."""

    name: str
    arguments: dict[str, Any]
    call: Callable[[dict[str, Any]], Any]
    repeats: int
    seed: int
    timeout: float
    launches: list[InterpretedLaunch] = field(default_factory=list)
    schedules: int = 0
    all_orders: bool = True
    atomics: set[str] = field(default_factory=set)
    float_adds: dict[str, None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tuners: dict[int, tuple[Any, list[Any]]] = field(default_factory=dict)
    chosen: dict[int, int] = field(default_factory=dict)
    overwritten: dict[int, NDArray[np.bool_]] = field(default_factory=dict)

    def certificate(self) -> Certificate:
        verdict, reason = KernelVerdict.ORDER_INDEPENDENT, None
        try:
            self.all_configs()
        except FoundError as error:
            verdict, reason = error.verdict, error.reason
        sources = dict.fromkeys(inspect.getsource(launch.function) for launch in self.launches)
        return Certificate(
            kernel=self.name,
            language="Triton",
            sha256=hashlib.sha256("".join(sources).encode()).hexdigest(),
            arguments=tuple(
                f"{name}: {described(value)}" for name, value in self.arguments.items()
            ),
            grid=_sizes(self.launches[0].grid),
            schedules=self.schedules,
            all_orders=self.all_orders and verdict is KernelVerdict.ORDER_INDEPENDENT,
            races_checked=True,
            verdict=verdict,
            variation=reason if isinstance(reason, Variation) else None,
            reason=reason if isinstance(reason, str) else None,
            atomics=tuple(sorted(self.atomics)),
            float_adds=tuple(self.float_adds),
            notes=tuple(self.notes),
            not_shown=NOT_SHOWN,
        )

    def all_configs(self) -> None:
        """Run every schedule with the first config of each autotuner, then with each other one."""
        first = self.all_schedules()
        for key, (tuner, configs) in list(self.tuners.items()):
            for number, config in enumerate(configs[1:], start=1):
                self.chosen = {key: number}
                try:
                    outputs = self.all_schedules()
                except FoundError:
                    self.notes.append(f"found with the config {config}")
                    raise
                names = f"config {configs[0].kwargs}", f"config {config.kwargs}"
                compare(names, first.tensors, outputs.tensors)
            self.chosen = {}
            if len(configs) > 1:
                self.notes.append(
                    f"all {len(configs)} configs of {tuner.base_fn.__name__} give the same bits in "
                    "the interpreter, which ignores num_warps and num_stages"
                )

    def all_schedules(self) -> _Run:
        """Run every schedule with the chosen config; return the run in program order."""
        self.overwritten = {}
        name = PROGRAM_ORDER
        first = self.run(name, lambda launch: None, fill=0)
        self.overwritten = first.overwritten
        refilled = self.run(name, lambda launch: None, fill=1)
        compare((name, NEW_MEMORY), first.tensors, refilled.tensors)
        conflicts = any(launch.conflicts for launch in first.launches)
        for number in range(1, self.repeats if conflicts else 2):
            self.compare_shuffled(name, first, number)
        self.all_orders = self.all_orders and self.every_order(first)
        return first

    def compare_shuffled(self, name: str, first: _Run, number: int) -> None:
        """Compare a shuffled run with the first, whose schedule has this name."""
        seed = self.seed + number - 1
        order = shuffled_by(seed)
        shuffled = self.run(order, lambda launch: f"seed {seed}, {launch}", fill=number % 2)
        compare((name, order), first.tensors, shuffled.tensors)

    def every_order(self, first: _Run) -> bool:
        """Run all orders of each launch, the other launches in program order; false if too many.

        Every launch must leave the same memory, so that orders of the next one need not be
        combined with those of this.
        """
        for index, launch in enumerate(first.launches):
            if any(touch.lanes_meet for touch in launch.touches):
                return False
            if not (programs := launch.conflicts):
                continue
            if len(programs) > CONFLICTING:
                return False

            def run(
                choices: list[int], index: int = index, launch: InterpretedLaunch = launch
            ) -> list[Step]:
                name = in_turns("programs", choices)
                chosen = {index: choices}
                again = self.run(name, chosen.get, fill=0)
                compare((PROGRAM_ORDER, name), first.tensors, again.tensors)
                if again.launches[index].left != launch.left and launch is not first.launches[-1]:
                    raise TooManyError
                return again.launches[index].steps

            try:
                all_orders(run, relation(), LIMIT)
            except TooManyError:
                return False
        return True

    def run(self, name: str, schedule: Callable[[int], Schedule], fill: int) -> _Run:
        """Make one run; raise for a race, an access out of bounds or another fault.

        ``schedule`` gives that of each launch, by number. ``fill`` chooses between two values of
        memory that is not initialised.
        """
        self.launches = []
        arguments, copied, storages = copies_of(self.arguments)
        for index, chosen in self.overwritten.items():
            bytes_of(storages[index]).numpy()[chosen] = FILLS[fill]

        def start(
            function: Any, bound: Mapping[str, Any], grid: tuple[int, int, int]
        ) -> InterpretedLaunch:
            order = schedule(len(self.launches))
            self.launches.append(InterpretedLaunch(function, grid, order, self.timeout))
            return self.launches[-1]

        def tune(tuner: Any, configs: list[Any]) -> Any:
            self.tuners[id(tuner)] = tuner, configs
            return configs[self.chosen.get(id(tuner), 0)]

        self.schedules += 1
        try:
            with interpreted(start, tune), FilledMemory(FILLS[fill], _kernel_key):
                result = self.call(arguments)
        except (FoundError, AssertionError) as error:
            if not self.launches:
                raise
            verdict = getattr(error, "verdict", KernelVerdict.FAULT)
            place = f"{self.launches[-1].name}: {error} (in {name})"
            raise FoundError(verdict, place) from error
        except TimeoutError as error:
            message = not_ended(self.launches[-1].name, name, self.timeout)
            raise TimeoutError(message) from error
        finally:
            touches = [touch for launch in self.launches for touch in launch.touches]
            for launch in self.launches:
                self.float_adds |= launch.float_adds
            self.atomics |= {ATOMICS[touch.operation] for touch in touches if touch.is_atomic}
        if not self.launches:
            raise ValueError(
                f"certify(): {self.name} launched no kernel of Triton's with these arguments"
            )
        overwritten = {}
        if len(self.launches) == 1:
            numbers = {storage.data_ptr(): i for i, storage in enumerate(storages)}
            for buffer in self.launches[0].memory.buffers:
                if buffer.real in numbers:
                    overwritten[numbers[buffer.real]] = buffer.overwritten
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        names = [f"result[{i}]" if len(results) > 1 else "result" for i in range(len(results))]
        tensors = copied | dict(zip(names, results))
        return _Run(tensors, self.launches, overwritten)


def _kernel_key(
    func: torch._ops.OpOverload, tensors: Iterable[torch.Tensor]
) -> torch._C.DispatchKey | None:
    """Return the key of the kernel to interpret: a GPU's, of an operator without one for CPUs."""
    key, on_gpu = kernel_key(func, tensors), torch._C.DispatchKey.CUDA
    return on_gpu if key is None and func.has_kernel_for_dispatch_key(on_gpu) else key


def _sizes(grid: tuple[int, ...]) -> tuple[int, ...]:
    """A grid without its last sizes of one."""
    while len(grid) > 1 and grid[-1] == 1:
        grid = grid[:-1]
    return grid


def _overload(operator: Any) -> torch._ops.OpOverload:
    if isinstance(operator, torch._ops.OpOverload):
        return operator
    name = operator if isinstance(operator, str) else getattr(operator, "_qualname", None)
    if isinstance(operator, torch._ops.OpOverloadPacket):
        name = operator._qualified_op_name
    namespace, _, rest = str(name).partition("::")
    packet, _, overload = rest.partition(".")
    try:
        overloads = getattr(getattr(torch.ops, namespace), packet)
        chosen: torch._ops.OpOverload = getattr(overloads, overload or overloads.overloads()[0])
        return chosen
    except (AttributeError, RuntimeError) as error:
        raise ValueError(
            f"certify(): there is no operator {name!r}; import the module that registers it first"
        ) from error
