"""Samples of FAMILY: every row is met by one."""

from detmode.table.samples import Maker, Sample

OP = "aten::TODO"


def _inputs(make: Maker, *shape: int) -> dict[str, object]:
    return {"self": make.normal(*shape)}  # TODO: the other arguments


SAMPLES: tuple[Sample, ...] = (
    Sample(name="odd_sizes", op=OP, make=lambda make: _inputs(make, 63, 10)),
    Sample(name="host", op=OP, make=lambda make: _inputs(make, 3), device="cpu"),
)
