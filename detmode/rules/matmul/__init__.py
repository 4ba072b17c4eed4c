"""Matrix products by cuBLAS, and by cuSPARSE where an operand is sparse.

``nn.Linear``, ``matmul``, ``einsum`` and attention without a fused kernel come down to these.

## What varies

cuBLAS on several streams shares workspaces unless ``CUBLAS_WORKSPACE_CONFIG`` gives each stream
its own. Until 2.9 PyTorch alerts unless the variable is ``:4096:8`` or ``:16:8``; since 2.10 each
handle and stream has a workspace from PyTorch, and nothing varies. Products with a sparse operand
run cuSPARSE algorithms that do not promise the same bits on each run; PyTorch is silent about
them.

## What happens instead

Until 2.9, with the variable unset: PyTorch's cuBLAS error. ``detmode run`` sets the variable.

For a sparse matrix (COO, CSR or CSC) and a dense matrix or vector, in either order, the entries are
walked row by row as they are stored, in pieces of 64: one thread takes a piece and one or a few
columns, multiplies each entry by its row of the dense matrix and adds up. The pieces' first and
last sums are added in the same way. Products are exact or kept in two parts, sums are in float64
(float64 itself: in pairs of float64), and each result is rounded once: the shapes alone decide the
order, and any GPU gives the same bits. Entries that are not stored row by row (CSC, COO that is not
coalesced, a transposed matrix as in backward) are sorted by row first, stably, and duplicates add
up. Backward of ``sparse @ dense`` comes to the same operators.

``bmm`` of a sparse and a dense tensor: the flag selects cuSPARSE's deterministic algorithm. Other
sparse products (blocks, batches, integers, two sparse matrices): a warning in detmode's words.

## Cost

Counted, not measured. The floor is the entries, the dense matrix and the sum read once and the
result written once. For float32, rows of 16 entries and 64 columns: the positions of a CSR matrix
are made int64 and read again (44 bytes for each entry with its value), each entry reads its row of
the dense matrix (256 bytes), carries take 33 bytes for each entry, and the result is filled, read
and written. In total ``mm`` moves 8.6 times the floor, ``addmm`` 6.6 times the floor; ``mv`` and
``addmv``, whose reads of the vector take a sector of 32 bytes each, 6.0 times the floor. Most of it
are rows of the dense matrix, which cuSPARSE reads as often, and which a cache may hold. A sort adds
about 110 bytes for each entry.

The launches are the fill, the positions of a compressed matrix, the entries, and their carries, one
launch up to 131,072 entries and one more for each factor of 32 above, however long the rows are. A
sort adds one up to 8192 entries, else two and one for each nine bits of the number of rows.

Native sparse ``bmm``: PyTorch's authors saw the deterministic algorithm take four times as long.

## Limits

A column out of range, which PyTorch checks only where a matrix is made, traps on a GPU and raises
on the host. COO matrices are multiplied in float16 and bfloat16 too, and by ``mv`` into an ``out``,
for which ATen may have no kernels. A sum of intermediate values beyond the dtype's range gives the
sum where ATen may give an infinity. The gradient of a CSR matrix calls ``sparse_sampled_addmm``,
which cuSPARSE documents as deterministic, and which has no row.

``addmm`` with a bias vector runs cuBLASLt, which does not alert. Operators that multiply matrices
inside (``cdist``, ``torch.linalg``) are not listed; PyTorch's own alert guards them.
"""

from detmode.rules.matmul import launch
from detmode.table.chain import chain
from detmode.table.conditions import (
    COMPLEX,
    FLOATING,
    argument,
    bias_of,
    cublas_workspace_unset,
    dtype_in,
    nonempty,
    on,
    sparse,
    sparse_by_dense,
)
from detmode.table.rule import (
    CUBLAS,
    GPU_TO_GPU,
    RUN_TO_RUN,
    Allow,
    Native,
    Refuse,
    Rule,
    Substitute,
)

_REASON = "cuSPARSE's products may add in another order on each run"
_COVERED = "; those of a COO, CSR or CSC matrix of floats and a dense one have a substitute"
_SUMMED = FLOATING + COMPLEX
_FACTORS = {  # of each operator the tensors that are multiplied
    "aten::mm": ("self", "mat2"),
    "aten::addmm": ("mat1", "mat2"),
    "aten::bmm": ("self", "mat2"),
    "aten::baddbmm": ("batch1", "batch2"),
    "aten::addbmm": ("batch1", "batch2"),
    "aten::mv": ("self", "vec"),
    "aten::addmv": ("mat", "vec"),
    "aten::mm.dtype": ("self", "mat2"),
    "aten::addmm.dtype": ("mat1", "mat2"),
    "aten::bmm.dtype": ("self", "mat2"),
    "aten::baddbmm.dtype": ("batch1", "batch2"),
}
# The substitutes for sparse matrices, and which of the tensors may be sparse.
_SPARSE = {
    "aten::mm": (Substitute(launch.mm, Refuse(), traffic=8.6), ("self", "mat2")),
    "aten::addmm": (Substitute(launch.addmm, Refuse(), traffic=6.6), ("mat1", "mat2")),
    "aten::mv": (Substitute(launch.mv, Refuse(), traffic=6.0), ("self",)),
    "aten::addmv": (Substitute(launch.addmv, Refuse(), traffic=6.0), ("mat",)),
}

RULES = (
    *(
        Rule(
            op=op,
            when=on("cuda") & sparse_by_dense(*_FACTORS[op]) & dtype_in(_FACTORS[op][0], _SUMMED),
            action=action,
            guarantee=GPU_TO_GPU,
            because=_REASON,
        )
        for op, (action, _) in _SPARSE.items()
    ),
    *(
        Rule(op=op, when=on("cuda") & sparse(*names), action=Refuse(), because=_REASON + _COVERED)
        for op, (_, names) in _SPARSE.items()
    ),
    Rule(
        op="aten::bmm",
        when=on("cuda") & sparse("self"),
        action=Native(),
        guarantee=RUN_TO_RUN,
        because="under the flag cuSPARSE runs its deterministic algorithm (COO_ALG2)",
    ),
    *(
        Rule(
            op=op,
            when=on("cuda")
            & bias_of("self", "mat2")
            & argument("beta", 1)
            & dtype_in("mat1", FLOATING),
            action=Allow(),
            until="2.9",
            because="a product with a bias vector runs cuBLASLt, which does not alert",
        )
        for op in ("aten::addmm", "aten::addmm.dtype")
    ),
    *(
        rule
        for op, (first, second) in _FACTORS.items()
        for rule in chain(
            op,
            when=on("cuda")
            & cublas_workspace_unset()
            & dtype_in(first, _SUMMED)
            & nonempty(first)
            & nonempty(second),
            action=Refuse(),
            alert=CUBLAS,
            until="2.9",
            because="without CUBLAS_WORKSPACE_CONFIG cuBLAS may share a workspace between streams",
            otherwise="cuBLAS with a workspace of its own adds in a fixed order",
        )
    ),
)

FORWARDS = tuple(_FACTORS)
