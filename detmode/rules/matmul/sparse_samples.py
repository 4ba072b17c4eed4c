"""Samples of products of a sparse matrix and a dense one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from detmode.table.conditions import COMPLEX, FLOATING
from detmode.table.inputs import back_to_front, shifted, sparse_call
from detmode.table.samples import Sample, made_by

SUMS = FLOATING + COMPLEX
MM, ADDMM, MV, ADDMV = "aten::mm", "aten::addmm", "aten::mv", "aten::addmv"
FACTORS = {
    MM: ("self", "mat2"),
    ADDMM: ("mat1", "mat2"),
    MV: ("self", "vec"),
    ADDMV: ("mat", "vec"),
}
COMPRESSED = ("csr", "csc", "csr_int32")
LAYOUTS = ("coo", "coalesced", *COMPRESSED)


_call = {
    op: partial(sparse_call, names=names, adds=op in (ADDMM, ADDMV), vector=op in (MV, ADDMV))
    for op, names in FACTORS.items()
}
_of = {op: made_by(_call[op], op=op, dtypes=SUMS) for op in FACTORS}
_mm, _addmm = _of[MM], _of[ADDMM]


def _layouts(op: str, layouts: Sequence[str], place: str = "first") -> tuple[Sample, ...]:
    return tuple(
        _of[op](f"sparse_{place}_{layout}", layout, covers="collisions", second=place == "second")
        for layout in layouts
    )


CASES = (
    *_layouts(MM, LAYOUTS),
    *_layouts(MM, LAYOUTS, "second"),
    *_layouts(ADDMM, LAYOUTS),
    *_layouts(ADDMM, COMPRESSED, "second"),
    *_layouts(MV, (*COMPRESSED, "coo", "coalesced")),
    *_layouts(ADDMV, COMPRESSED),
    *(
        case
        for layout in LAYOUTS
        for case in (
            _mm(f"long_rows_{layout}", layout, (70, 999, 6), 9000, 3, covers="collisions"),
            _mm(f"odd_{layout}", layout, (63, 1000, 1), 700, covers="odd_sizes"),
            _mm(f"no_entries_{layout}", layout, (4, 5, 3), 0, covers="empty"),
        )
    ),
    _mm("no_rows", "csr", (0, 5, 3), 0, covers="empty"),
    _mm("nothing_between", "csr", (4, 0, 3), 0, covers="empty"),
    _mm("no_columns", "coo", (4, 5, 0), covers="empty"),
    _mm("one_piece", "coalesced", (9, 9, 64), 40, covers="collisions"),
    _mm("wide", "coo", (9, 40, 130), 300, 4, covers="collisions"),
    _mm("turned", "csr", (20, 9, 8), 90, change=back_to_front, covers="non_contiguous"),
    _mm("shifted", "csr", (20, 9, 8), 90, change=shifted),
    _mm("second_turned", "coo", (7, 20, 9), 90, second=True, change=back_to_front),
    _addmm("factors", "coo", (20, 9, 8), 90, beta=0.5, alpha=-3, covers="collisions"),
    _addmm("factors_csr", "csr", (20, 9, 8), 90, beta=-2, alpha=0.25),
    _addmm("nothing_added", "csr", (20, 9, 8), 90, beta=0),
    _addmm("no_entries", "coo", beta=2, entries=0, covers="empty"),
    _of[ADDMV]("factors", "csr", (20, 9), 90, beta=2, alpha=0.5),
    # Without a substitute.
    *(_of[op]("blocks", "bsr", (6, 4, 3), dtypes=FLOATING[2:3]) for op in FACTORS),
)

_refused = {op: _of[op]("product", "csr", dtypes=FLOATING[2:3]) for op in FACTORS}
_coo = _addmm("coo", "coo", dtypes=FLOATING[2:3])

ERRORS = (
    _refused[MM].but("sizes", mat2=torch.ones(4, 3, device="cpu")),
    _refused[MM].but("vector", mat2=torch.ones(5, device="cpu")),
    _refused[MM].but("batch", mat2=torch.ones(1, 5, 3, device="cpu")),
    _refused[MM].but("dtype", mat2=torch.ones(5, 3, dtype=torch.float64, device="cpu")),
    _refused[ADDMM].but("self_shape", self=torch.ones(3, 3, device="cpu")),
    _refused[ADDMM].but("self_dtype", self=torch.ones(6, 3, dtype=torch.float64, device="cpu")),
    _refused[ADDMM].but("self_dim", self=torch.ones(1, 6, 3, device="cpu")),
    _refused[ADDMM].but("alpha_complex", alpha=1j),
    _refused[ADDMM].but("alpha_too_large", alpha=1e300),
    _refused[ADDMM].but("beta_too_large", beta=1e300),
    _coo.but("coo_sizes", mat2=torch.ones(4, 3, device="cpu")),
    _coo.but("coo_vector", mat2=torch.ones(5, device="cpu")),
    _coo.but("coo_self_shape", self=torch.ones(3, 3, device="cpu")),
    _addmm("coo_second", "coo", second=True, dtypes=FLOATING[2:3]),
    _refused[MV].but("sizes", vec=torch.ones(4, device="cpu")),
    _refused[MV].but("matrix", vec=torch.ones(5, 1, device="cpu")),
    _refused[ADDMV].but("sizes", vec=torch.ones(4, device="cpu")),
    _refused[ADDMV].but("self_shape", self=torch.ones(5, device="cpu")),
    _refused[ADDMV].but("self_dim", self=torch.ones(6, 1, device="cpu")),
    _of[ADDMV]("coo", "coo", dtypes=FLOATING[2:3]),
)

_bench = made_by(_call[MM], op=MM, dtypes=FLOATING[2:3])
NODES = 170_000

BENCH = (
    _bench("graph_of_170k_nodes", "csr", (NODES, NODES, 128), 7 * NODES),
    _bench("graph_of_170k_nodes_coo", "coalesced", (NODES, NODES, 128), 7 * NODES),
    _bench("backward_of_the_graph", "csc", (NODES, NODES, 128), 7 * NODES),
    made_by(_call[MV], op=MV, dtypes=FLOATING[2:3])(
        "stencil_of_1m_cells", "csr", (1 << 20, 1 << 20), 5 << 20
    ),
)
