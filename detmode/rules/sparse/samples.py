"""Samples of products of sparse matrices."""

from detmode.table.samples import Maker, Samples, sample


def _matrix(make: Maker, *, dense: bool = False) -> object:
    matrix = make.normal(6, 6)
    return matrix if dense else matrix.to_sparse()


_MAKE = {
    "aten::_sparse_addmm": lambda make: {
        "self": _matrix(make, dense=True),
        "mat1": _matrix(make),
        "mat2": _matrix(make, dense=True),
    },
    "aten::_sparse_sparse_matmul": lambda make: {"self": _matrix(make), "other": _matrix(make)},
    "aten::hspmm": lambda make: {"mat1": _matrix(make), "mat2": _matrix(make, dense=True)},
}


SAMPLES = Samples(
    cases=tuple(sample("square", make, op=op, variants=("cpu",)) for op, make in _MAKE.items()),
)
