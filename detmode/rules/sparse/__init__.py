"""Products of sparse matrices by cuSPARSE: ``torch.sparse.mm`` and ``torch.sparse.addmm``.

``sparse @ dense`` is ``mm``, and ``bmm`` of a sparse tensor has a deterministic path: see the
family ``matmul``, which has the whole chains of those operators.

## What varies

PyTorch runs cuSPARSE algorithms that NVIDIA does not document as giving the same bits on each run;
a transposed sparse matrix, as in backward, is documented to vary. PyTorch gives no alert.

## What happens instead

``_sparse_addmm`` of a sparse matrix (COO, CSR or CSC) and a dense one, which is what
``torch.sparse.mm`` and ``torch.sparse.addmm`` call: the entries are walked row by row in pieces of
64, and sums are added in float64 in an order that the shapes decide, as the family ``matmul`` says.
Their backward meets ``mm`` of that family. A product of two sparse matrices, ``hspmm``, blocks,
batches and integers: a warning in detmode's words.

## Cost

Counted, not measured, as for ``addmm`` in the family ``matmul``: 6.6 times the floor, which is all
inputs read once and the result written once, for float32, CSR rows of 16 entries and 64 columns.
Each entry reads 256 bytes of the dense matrix, as in cuSPARSE.

## Limits

Those of the products in ``matmul``. The gradient of a CSR matrix calls ``sparse_sampled_addmm``,
which needs no row: cuSPARSE documents the same bits in every run. That of a COO matrix is a dense
product, of which the entries' places are taken. ``sspaddmm``, and ``torch.sparse.mm`` with a
``reduce``, run on a CPU alone.
"""

from detmode.rules.sparse import launch
from detmode.table.chain import chain
from detmode.table.conditions import COMPLEX, FLOATING, dtype_in, on, sparse_by_dense
from detmode.table.rule import GPU_TO_GPU, Refuse, Rule, Substitute

_REASON = "cuSPARSE's products may add in another order on each run"
_COVERED = (
    "; torch.sparse.mm of a COO, CSR or CSC matrix of floats and a dense one has a substitute"
)
_OPS = ("aten::_sparse_addmm", "aten::_sparse_sparse_matmul", "aten::hspmm")

RULES = (
    Rule(
        op="aten::_sparse_addmm",
        when=on("cuda") & sparse_by_dense("mat1", "mat2") & dtype_in("mat1", FLOATING + COMPLEX),
        action=Substitute(launch.sparse_addmm, Refuse(), traffic=6.6),
        guarantee=GPU_TO_GPU,
        because=_REASON,
    ),
    *chain(
        _OPS,
        when=on("cuda"),
        action=Refuse(),
        because=_REASON + _COVERED,
        otherwise="the CPU kernels add the products of a row in order",
    ),
)

FORWARDS = _OPS
