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
``bmm`` of a sparse and a dense tensor: the flag selects cuSPARSE's deterministic algorithm. Other
sparse products: a warning in detmode's words.

## Cost

Native sparse ``bmm``: PyTorch's authors saw the deterministic algorithm take four times as long.

## Limits

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

# Of each operator, the tensors that are multiplied, and those of them that may be sparse.
_FACTORS = {
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
MAY_BE_SPARSE = {
    "aten::mm": ("self", "mat2"),
    "aten::addmm": ("mat1", "mat2"),
    "aten::mv": ("self",),
    "aten::addmv": ("mat",),
}
_LAUNCHERS = {
    "aten::mm": launch.mm,
    "aten::addmm": launch.addmm,
    "aten::mv": launch.mv,
    "aten::addmv": launch.addmv,
}

RULES = (
    *(
        Rule(
            op=op,
            when=on("cuda")
            & sparse_by_dense(*_FACTORS[op])
            & dtype_in(_FACTORS[op][0], FLOATING + COMPLEX),
            action=Substitute(function, Refuse(), traffic=None),
            guarantee=GPU_TO_GPU,
            because="cuSPARSE's products may add in another order on each run",
        )
        for op, function in _LAUNCHERS.items()
    ),
    *(
        Rule(
            op=op,
            when=on("cuda") & sparse(*names),
            action=Refuse(),
            because="cuSPARSE's products may add in another order on each run; only those of a "
            "COO, CSR or CSC matrix of scalars and a dense matrix have a substitute",
        )
        for op, names in MAY_BE_SPARSE.items()
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
            & dtype_in(first, FLOATING + COMPLEX)
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
