"""Samples of products of sparse matrices."""

from __future__ import annotations

from functools import partial

import torch

from detmode.table.conditions import COMPLEX, FLOATING
from detmode.table.inputs import back_to_front, sparse_call
from detmode.table.samples import Maker, Samples, made_by, sample

ADDMM = "aten::_sparse_addmm"


def _matrix(make: Maker, *, dense: bool = False) -> object:
    matrix = make.normal(6, 6)
    return matrix if dense else matrix.to_sparse()


_MAKE = {
    "aten::_sparse_sparse_matmul": lambda make: {"self": _matrix(make), "other": _matrix(make)},
    "aten::hspmm": lambda make: {"mat1": _matrix(make), "mat2": _matrix(make, dense=True)},
}
_call = partial(sparse_call, names=("mat1", "mat2"), adds=True)
_case = made_by(_call, op=ADDMM, dtypes=FLOATING + COMPLEX)
_plain = _case("plain", "csr", dtypes=FLOATING[2:3])
_bench = made_by(_call, op=ADDMM, dtypes=FLOATING[2:3])
NODES = 170_000

SAMPLES = Samples(
    cases=(
        *(sample("square", make, op=op, variants=("cpu",)) for op, make in _MAKE.items()),
        *(
            case
            for layout in ("coo", "coalesced", "csr", "csc", "csr_int32")
            for case in (
                _case(f"small_{layout}", layout, covers="collisions"),
                _case(f"long_rows_{layout}", layout, (63, 999, 6), 3000, 3, covers="odd_sizes"),
                _case(f"no_entries_{layout}", layout, entries=0, covers="empty"),
            )
        ),
        _case("factors", "coo", (20, 9, 8), 90, beta=0.5, alpha=-3),
        _case("nothing_added", "csr", (20, 9, 8), 90, beta=0),
        _case("second", "csr", second=True, change=back_to_front, covers="non_contiguous"),
        _case("on_the_cpu", "csr", device="cpu", dtypes=FLOATING[2:3]),
        # Without a substitute.
        _case("blocks", "bsr", (6, 4, 3), dtypes=FLOATING[2:3]),
    ),
    errors=(
        _plain.but("sizes", mat2=torch.ones(4, 3, device="cpu")),
        _plain.but("dtype", mat2=torch.ones(5, 3, dtype=torch.float64, device="cpu")),
        _plain.but("self_shape", self=torch.ones(3, 3, device="cpu")),
        _case("coo_second", "coo", second=True, dtypes=FLOATING[2:3]),
    ),
    bench=(
        _bench("graph_of_170k_nodes", "csr", (NODES, NODES, 128), 7 * NODES, beta=0),
        _bench("graph_of_170k_nodes_coo", "coo", (NODES, NODES, 128), 7 * NODES, beta=0),
    ),
    not_applicable={
        "channels_last": "matrices have no channels",
        "negative_dim": "no operator takes a dim",
    },
)
