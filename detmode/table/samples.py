"""A family's samples: the inputs that tests, ``detmode verify`` and benchmarks share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch

from detmode.table.inputs import VARIANTS
from detmode.table.maker import Maker as Maker

DEVICES = ("cuda", "cpu", "mps", "meta", "xpu")
"""The device types whose rows a sample may meet."""

COVERS = ("collisions", "empty", "non_contiguous", "channels_last", "negative_dim", "odd_sizes")
"""Cases that a substitute's family has a sample for; ``not_applicable`` says why it has none."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Named inputs of one operator.

    Args:
        name: the particular property, readable in a test id: "heavy_collisions".
        op: the overload by name, as in :class:`~detmode.table.rule.Rule`.
        make: given a :class:`Maker`, the arguments by schema name; defaults may be left out.
        dtypes: the dtypes for which the sample holds.
        covers: which of :data:`COVERS` it shows.
        device: the device type whose rows it is to meet, one of :data:`DEVICES`.
        variants: more samples that are made of it: the same call with its tensors
            changed (:data:`~detmode.table.inputs.VARIANTS`), or on another of :data:`DEVICES`.

    Raises:
        TypeError: a field has another type than stated.
        ValueError: a name is unknown or empty.
    """

    name: str
    op: str
    make: Callable[[Maker], dict[str, Any]]
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    covers: tuple[str, ...] = field(default=())
    device: str = "cuda"
    variants: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        what = f"Sample({self.name!r})"
        if not callable(self.make):
            raise TypeError(f"{what}: make is {self.make!r}; give a function of a Maker")
        if not self.dtypes or not all(isinstance(dtype, torch.dtype) for dtype in self.dtypes):
            raise TypeError(f"{what}: dtypes is {self.dtypes!r}; give a tuple of torch.dtype")
        for title, values, known in (
            ("covers", self.covers, COVERS),
            ("device", (self.device,), DEVICES),
            ("variants", self.variants, (*VARIANTS, *DEVICES)),
        ):
            unknown = [item for item in values if item not in known]
            if unknown:
                raise ValueError(f"{what}: {title} {unknown}; known are {known}")

    def arguments(
        self, dtype: torch.dtype, device: torch.device | str = "cpu", seed: int = 0
    ) -> dict[str, Any]:
        """The arguments by schema name, made anew."""
        return self.make(Maker(dtype, device, seed))

    def but(
        self,
        name: str,
        /,
        *covers: str,
        dtypes: tuple[torch.dtype, ...] | None = None,
        **changes: Any,
    ) -> Sample:
        """The same call with some arguments changed.

        Args:
            name: of the sample that is made.
            covers: the cases that it shows; not those that this one shows.
            dtypes: other dtypes than this one's.
            changes: by schema name the argument, or a function that makes it of this one's.
        """

        def make(maker: Maker) -> dict[str, Any]:
            arguments = self.make(maker)
            for key, change in changes.items():
                arguments[key] = change(arguments[key]) if callable(change) else change
            return arguments

        dtypes = dtypes or self.dtypes
        return replace(self, name=name, make=make, covers=covers, dtypes=dtypes, variants=())

    def expanded(self) -> Iterator[Sample]:
        """The sample without variants, then its variants."""
        yield replace(self, variants=())
        for variant in self.variants:
            name = f"{self.name}_{variant}"
            if variant in DEVICES:
                yield replace(self, name=name, device=variant, variants=())
                continue
            covers = tuple(dict.fromkeys((*self.covers, *{variant}.intersection(COVERS))))
            yield replace(self, name=name, make=self._changed(variant), covers=covers, variants=())

    def _changed(self, variant: str) -> Callable[[Maker], dict[str, Any]]:
        return lambda maker: VARIANTS[variant](self.make(maker))


def sample(
    name: str, make: Callable[[Maker], dict[str, Any]], *covers: str, op: str, **more: Any
) -> Sample:
    """A :class:`Sample`, on one line; families bind ``op`` and ``dtypes`` by ``partial``."""
    return Sample(name=name, op=op, make=make, covers=covers, **more)


def made_by(make: Callable[..., dict[str, Any]], **shared: Any) -> Callable[..., Sample]:
    """A function that makes samples of one kind of call.

    ::

        _case = made_by(_call, op="aten::histc", dtypes=FLOATING)
        _case("few_bins", (300,), 3, covers="collisions", form=strided)

    Args:
        make: given a :class:`Maker` and what a sample says of its call, the arguments by name.
        shared: fields that all the samples have, unless one says otherwise.

    Returns:
        A function of a sample's name and what it says of its call. By name it also takes the
        fields of a :class:`Sample`, ``covers`` as words, and ``form``, which changes the call.
    """
    names = {item.name for item in fields(Sample)}

    def case(
        name: str,
        *sizes: Any,
        covers: str = "",
        form: Callable[[dict[str, Any]], dict[str, Any]] = dict,
        **more: Any,
    ) -> Sample:
        options = shared | {key: more.pop(key) for key in names & more.keys()}
        arguments_of = partial(make, **more)
        return Sample(
            name=name,
            make=lambda m: form(arguments_of(m, *sizes)),
            covers=tuple(covers.split()),
            **options,
        )

    return case


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """Everything that tests, ``detmode verify`` and benchmarks need of a family: one value.

    ::

        _case = partial(sample, op="aten::cumsum", dtypes=FLOATING)
        _plane = _case("plane", lambda m: {"self": m.normal(63, 9), "dim": 1}, "odd_sizes")
        SAMPLES = Samples(
            cases=(
                replace(_plane, variants=("non_contiguous", "negative_dim", "cpu")),
                _case("no_rows", lambda m: {"self": m.normal(0, 3), "dim": 1}, "empty"),
            ),
            errors=(_plane.but("dim_out_of_range", dim=2),),
            bench=(_case("row_16m", lambda m: {"self": m.normal(1 << 24), "dim": 0}),),
            not_applicable={
                "collisions": "every element has its own place",
                "channels_last": "the operator reads along one dimension",
            },
        )

    Args:
        cases: the samples that together match every row; a sample's variants follow it.
        errors: inputs that ATen rejects; a substitute raises the same type of exception.
        bench: sizes from real models.
        not_applicable: which of :data:`COVERS` no case can show, or why there are no "errors" or no
            "bench".
        references: by operator a function of its arguments, in float64, where ATen's own on the
            CPU is not the truth; it then also says which integers are right.
        assignments: by operator that assigns a function of its arguments: what is written to,
            where each element goes and the elements, or ``None`` where the call adds.
        unlike_cpu: by name of a case why NaN and infinities do not come out as ATen's CPU kernel
            gives them; with them it is skipped on the host.
        unlike_magnitudes: by operator why its result on the magnitudes of its arguments does not
            bound the addends of each element; errors are then compared with the largest result.

    Raises:
        TypeError: a field has another type than stated.
        ValueError: the fields do not go together; the message names the one at fault.
    """

    cases: tuple[Sample, ...]
    errors: tuple[Sample, ...] = ()
    bench: tuple[Sample, ...] = ()
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    assignments: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    unlike_cpu: Mapping[str, str] = field(default_factory=dict)
    unlike_magnitudes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "cases", tuple(v for case in self.cases for v in case.expanded()))
        names = [case.name for case in self.cases]
        ops = {case.op for case in self.cases}
        operators = {op.partition(".")[0] for op in ops}
        for title in _SEQUENCES:
            keys = [(sample.op, sample.name, sample.device) for sample in getattr(self, title)]
            for key in keys:
                if keys.count(key) > 1:
                    raise ValueError(f"Samples: {title} has {key} twice; rename one")
        for title, values, known in (
            ("errors", [sample.op.partition(".")[0] for sample in self.errors], operators),
            ("bench", [sample.op for sample in self.bench], ops),
            ("references", self.references, ops),
            ("assignments", self.assignments, ops),
            ("unlike_cpu", self.unlike_cpu, names),
            ("unlike_magnitudes", self.unlike_magnitudes, ops),
            ("not_applicable", self.not_applicable, (*COVERS, "errors", "bench")),
        ):
            unknown = [item for item in values if item not in known]
            if unknown:
                where = "COVERS" if title == "not_applicable" else "cases"
                raise ValueError(f"Samples: {title} names {unknown[0]!r}, which {where} does not")
        shown = {item for case in self.cases for item in case.covers}
        shown |= {title for title in ("errors", "bench") if getattr(self, title)}
        excused = [item for item in self.not_applicable if item in shown]
        if excused:
            raise ValueError(f"Samples: not_applicable has {excused[0]!r}, which is there")

    def _check_types(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _SEQUENCES:
                fits = isinstance(value, tuple) and all(isinstance(one, Sample) for one in value)
                wanted = "a tuple of Sample"
            else:
                texts = item.name in _REASONS
                wanted = "a dict of reasons" if texts else "a dict of functions"
                fits = isinstance(value, Mapping) and all(
                    isinstance(one, str) and one != "" if texts else callable(one)
                    for one in value.values()
                )
            if not fits:
                raise TypeError(f"Samples: {item.name} is {value!r}; give {wanted}")
        if not self.cases:
            raise ValueError("Samples: cases is empty; give one for each row")


_SEQUENCES = ("cases", "errors", "bench")
_REASONS = ("not_applicable", "unlike_cpu", "unlike_magnitudes")
