"""Products of sparse matrices by cuSPARSE: ``torch.sparse.mm`` and ``torch.sparse.addmm``.

``sparse @ dense`` is ``mm``, and ``bmm`` of a sparse tensor has a deterministic path: see the
family ``matmul``, which has the whole chains of those operators.

## What varies

PyTorch runs cuSPARSE algorithms that NVIDIA does not document as giving the same bits on each run;
a transposed sparse matrix, as in backward, is documented to vary. PyTorch gives no alert.

## What happens instead

detmode warns in its own words.

## Cost

None: no other kernel runs.

## Limits

There is no substitute yet. A batch of one through ``torch.bmm`` runs cuSPARSE's deterministic
algorithm under the flag, which is a workaround for COO tensors.
"""

from detmode.rules.sparse import launch
from detmode.table.chain import chain
from detmode.table.conditions import COMPLEX, FLOATING, dtype_in, on, sparse_by_dense
from detmode.table.rule import GPU_TO_GPU, Refuse, Rule, Substitute

_OPS = ("aten::_sparse_addmm", "aten::_sparse_sparse_matmul", "aten::hspmm")

RULES = (
    Rule(
        op="aten::_sparse_addmm",
        when=on("cuda") & sparse_by_dense("mat1", "mat2") & dtype_in("mat1", FLOATING + COMPLEX),
        action=Substitute(launch.sparse_addmm, Refuse(), traffic=None),
        guarantee=GPU_TO_GPU,
        because="cuSPARSE's products may add in another order on each run",
    ),
    *chain(
        _OPS,
        when=on("cuda"),
        action=Refuse(),
        because="cuSPARSE's products may add in another order on each run; only those of a COO, "
        "CSR or CSC matrix of scalars and a dense matrix have a substitute",
        otherwise="the CPU kernels add the products of a row in order",
    ),
)

FORWARDS = _OPS
