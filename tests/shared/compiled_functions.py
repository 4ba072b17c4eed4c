"""Functions that call the table's operators as users do, for eager and compiled runs."""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

FUNCTIONS: dict[str, tuple[Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]]] = {}
"""By name: the function, and what makes its arguments; floating ones get gradients."""


def run(function: Callable[..., Tensor], arguments: Iterable[Tensor]) -> list[Tensor]:
    """The result, and the gradients of floating arguments and of a module's parameters."""
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in arguments]
    result = function(*leaves)
    if not result.requires_grad:
        return [result]
    along = (torch.arange(result.numel()) % 7 - 3).view(result.shape).to(result.dtype)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    wanted += function.parameters() if isinstance(function, torch.nn.Module) else []
    gradients = torch.autograd.grad(result, wanted, along, allow_unused=True)
    return [result.detach(), *(grad for grad in gradients if grad is not None)]


def real(*shape: int) -> Tensor:
    # Quarters: sums of a few are exact, so that fusing them changes no bit.
    return (torch.randint(-8, 9, shape) / 4).float()


def below(limit: int, *shape: int) -> Tensor:
    return torch.randint(0, limit, shape)


def add(name: str, function: Callable[..., Tensor], make: Callable[[], tuple[Tensor, ...]]) -> None:
    assert name not in FUNCTIONS
    FUNCTIONS[name] = (function, make)


def _images(dim: int, size: int = 8) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (real(2, 3, *[size] * dim),)


for dim in (1, 2, 3):
    for mode in ("nearest", "nearest-exact", {1: "linear", 2: "bilinear", 3: "trilinear"}[dim]):
        add(
            f"interpolate-{mode}-{dim}d",
            lambda x, dim=dim, mode=mode: F.interpolate(x, size=[5, 11, 7][:dim], mode=mode),
            _images(dim),
        )
    for mode in ("reflect", "replicate", "circular"):
        add(
            f"pad-{mode}-{dim}d",
            lambda x, dim=dim, mode=mode: F.pad(x, [2, 1] * dim, mode=mode),
            _images(dim, 4),
        )
    for name in ("max_pool", "avg_pool"):
        pool = getattr(F, f"{name}{dim}d")
        add(f"{name}{dim}d", lambda x, f=pool: f(x, 3, stride=2, padding=1), _images(dim))
    for name in ("adaptive_avg_pool", "adaptive_max_pool"):
        pool, sizes = getattr(F, f"{name}{dim}d"), [5, 3, 4][:dim]
        add(f"{name}{dim}d", lambda x, f=pool, sizes=sizes: f(x, sizes), _images(dim))
    pool, unpool = getattr(F, f"max_pool{dim}d"), getattr(F, f"max_unpool{dim}d")
    add(
        f"max_unpool{dim}d",
        lambda x, pool=pool, unpool=unpool: unpool(*pool(x, 2, return_indices=True), 2),
        _images(dim),
    )
    for name, channels in (("conv", (4, 3)), ("conv_transpose", (3, 4))):
        convolution = getattr(F, f"{name}{dim}d")
        add(
            f"{name}{dim}d",
            lambda x, w, f=convolution: f(x, w),
            lambda dim=dim, channels=channels: (
                real(2, 3, *[6] * dim),
                real(*channels, *[3] * dim),
            ),
        )

ANTIALIASED = ["bilinear", "bicubic"]
if hasattr(torch.ops.aten, "_upsample_lanczos2d_aa"):
    ANTIALIASED.append("lanczos")
for mode in ANTIALIASED:
    add(
        f"interpolate-{mode}-antialias",
        lambda x, mode=mode: F.interpolate(x, size=(5, 3), mode=mode, antialias=True),
        _images(2),
    )
add("interpolate-bicubic", lambda x: F.interpolate(x, size=(5, 11), mode="bicubic"), _images(2))
add("interpolate-scale", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), _images(2))
for dim in (2, 3):
    for mode in ("bilinear", "nearest"):
        add(
            f"grid_sample-{mode}-{dim}d",
            lambda x, grid, mode=mode: F.grid_sample(x, grid, mode=mode, align_corners=False),
            lambda dim=dim: (real(2, 3, *[6] * dim), real(2, *[4] * dim, dim) / 2),
        )
    add(
        f"fractional_max_pool{dim}d",
        lambda x, r, dim=dim: getattr(F, f"fractional_max_pool{dim}d")(
            x, 2, output_size=[4] * dim, _random_samples=r.detach()
        ),
        lambda dim=dim: (real(2, 3, *[8] * dim), torch.rand(2, 3, dim)),
    )

add("embedding", lambda i, w: F.embedding(i, w), lambda: (below(9, 40), real(9, 5)))
for mode in ("sum", "mean", "max"):
    add(
        f"embedding_bag-{mode}",
        lambda i, w, mode=mode: F.embedding_bag(i, w, mode=mode),
        lambda: (below(9, 6, 7), real(9, 5)),
    )
add("nll_loss2d", lambda x, t: F.nll_loss(x, t), lambda: (real(2, 4, 3, 3), below(4, 2, 3, 3)))
add(
    "cross_entropy2d",
    lambda x, t: F.cross_entropy(x, t),
    lambda: (real(2, 4, 3, 3), below(4, 2, 3, 3)),
)
add(
    "ctc_loss",
    lambda x, t: F.ctc_loss(x.log_softmax(-1), t, [6, 6], [3, 2]),
    lambda: (real(6, 2, 5), below(4, 2, 3) + 1),
)
add(
    "ctc_loss-lengths",
    lambda x, t, n, m: F.ctc_loss(x.log_softmax(-1), t, n, m),
    lambda: (real(6, 2, 5), below(4, 2, 3) + 1, torch.tensor([6, 6]), torch.tensor([3, 2])),
)
add(
    "attention",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    lambda: tuple(real(2, 2, 6, 4) for _ in range(3)),
)
add("linear", lambda x, w, b: F.linear(x, w, b), lambda: (real(3, 4), real(5, 4), real(5)))
add("matmul", lambda x, y: x @ y, lambda: (real(3, 4), real(4, 5)))
add("bmm", lambda x, y: x.bmm(y), lambda: (real(2, 3, 4), real(2, 4, 5)))
add("mv", lambda x, y: x.mv(y), lambda: (real(3, 4), real(4)))
add(
    "baddbmm",
    lambda x, y, z: x.baddbmm(y, z),
    lambda: (real(2, 3, 5), real(2, 3, 4), real(2, 4, 5)),
)
add("fold", lambda x: F.fold(x, (6, 6), 3), lambda: (real(2, 18, 16),))
add("unfold", lambda x: F.unfold(x, 3), lambda: (real(2, 2, 6, 6),))
add("tensor_unfold", lambda x: x.unfold(0, 4, 1), lambda: (real(9),))


def _rows() -> tuple[Tensor, ...]:
    return real(8, 5), below(8, 30), real(30, 5)


def _elements() -> tuple[Tensor, ...]:
    return real(8, 5), below(8, 30, 5), real(30, 5)


def _integers(make: Callable[[], tuple[Tensor, ...]]) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: tuple(each.long() for each in make())


add("getitem", lambda x, i, v: x[i] * v, _rows)
add("getitem-mask", lambda x, i, v: x.repeat(2, 1)[: len(i)][i[:16] > 3], _rows)
add("getitem-two", lambda x, i, v: x[i, i % 5], _rows)
add("index_put", lambda x, i, v: x.index_put((i,), v, accumulate=True), _rows)
add("index_put-last", lambda x, i, v: x.index_put((i,), v), _rows)
add("unsafe_index", lambda x, i, v: torch._unsafe_index(x, [i]) * v, _rows)
add("unsafe_index_put-last", lambda x, i, v: torch._unsafe_index_put(x * 2, [i], v), _rows)
add(
    "unsafe_masked_index", lambda x, i, v: torch._unsafe_masked_index(x, v > 0, [i], 0.0) * v, _rows
)
add("index_add", lambda x, i, v: x.index_add(0, i, v), _rows)
add("index_copy", lambda x, i, v: x.index_copy(0, i[:8], v[:8]), _rows)
add("index_select", lambda x, i, v: x.index_select(0, i) * v, _rows)
add("gather", lambda x, i, v: x.gather(0, i) * v, _elements)
add("scatter", lambda x, i, v: x.scatter(0, i, v), _elements)
add("scatter-value", lambda x, i, v: x.scatter(0, i, 2.0), _elements)
add("scatter_add", lambda x, i, v: x.scatter_add(0, i, v), _elements)
for reduce in ("sum", "mean", "amax", "amin", "prod"):
    add(
        f"scatter_reduce-{reduce}",
        lambda x, i, v, reduce=reduce: x.scatter_reduce(0, i, v, reduce),
        _elements,
    )
for reduce in ("add", "multiply"):
    add(
        f"scatter-{reduce}",
        lambda x, i, v, reduce=reduce: x.detach().scatter(0, i, v.detach(), reduce=reduce) + x,
        _elements,
    )
add("scatter-integers", lambda x, i, v: x.scatter(0, i, v, reduce="add"), _integers(_elements))
add("scatter-transposed", lambda x, i, v: x.t().scatter(1, i.t(), v.t()), _elements)
add("index_put-integers", lambda x, i, v: x.index_put((i,), v, accumulate=True), _integers(_rows))
add("index_copy-transposed", lambda x, i, v: x.t().index_copy(1, i[:8], v[:8].t()), _rows)
add("index_reduce-integers", lambda x, i, v: x.index_reduce(0, i, v, "mean"), _integers(_rows))
add(
    "unsafe_index_put-integers",
    lambda x, i, v: torch._unsafe_index_put(x, [i], v, accumulate=True),
    _integers(_rows),
)
add(
    "unsafe_masked_index_put-integers",
    lambda x, i, v: torch._unsafe_masked_index_put_accumulate(x, v > 0, [i], v),
    _integers(_rows),
)
add("put-integers", lambda x, i, v: x.put(i, v, accumulate=True), _integers(_elements))
for reduce in ("mean", "amax", "amin", "prod"):
    add(
        f"index_reduce-{reduce}",
        lambda x, i, v, reduce=reduce: x.index_reduce(0, i, v, reduce),
        _rows,
    )
add("take", lambda x, i, v: x.take(i), _elements)
add("take_along_dim", lambda x, i, v: x.take_along_dim(i, 0), _elements)
add("put", lambda x, i, v: x.put(i, v, accumulate=True), _elements)
add("put-last", lambda x, i, v: x.put(i, v), _elements)
add("repeat_interleave", lambda x, i, v: x.repeat_interleave(i[:8], 0), _rows)
add("masked_scatter", lambda x, i, v: x.masked_scatter(x > 0, v), _rows)
add("masked_select", lambda x, i, v: x.masked_select(x > 0), _rows)
add("sort", lambda x, i, v: v.sort(0).values, _rows)
add("topk", lambda x, i, v: v.topk(3, 0).values, _rows)


def _in_place(name: str) -> Callable[..., Tensor]:
    def function(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        y = x * 2
        match name:
            case "setitem":
                y[i] = v
            case "setitem-add":
                y.index_put_((i,), v, accumulate=True)
            case "index_add":
                y.index_add_(0, i, v)
            case "scatter_add":
                y.scatter_add_(0, i[:, None].expand(-1, 5), v)
            case "cumsum":
                y.cumsum_(0)
        return y

    return function


for name in ("setitem", "setitem-add", "index_add", "scatter_add", "cumsum"):
    add(f"in-place-{name}", _in_place(name), _rows)

for scan in (torch.cumsum, torch.cumprod, torch.logcumsumexp):
    add(scan.__name__, lambda x, f=scan: f(x, 0), lambda: (real(50),))
for scan in (torch.cummax, torch.cummin):
    add(scan.__name__, lambda x, f=scan: f(x, 0).values, lambda: (real(50),))
for reduction in (torch.median, torch.nanmedian, torch.mode):
    add(f"{reduction.__name__}-dim", lambda x, f=reduction: f(x, 1).values, lambda: (real(6, 9),))
add("median", torch.median, lambda: (real(31),))
add("kthvalue", lambda x: x.kthvalue(3, 1).values, lambda: (real(6, 9),))
add("histc", lambda x: x.detach().histc(8, -2, 2), lambda: (real(99),))
add("bincount", lambda i, w: i.bincount(w.detach(), 9), lambda: (below(9, 60), real(60)))
add("empty", lambda x: x.new_empty(4).fill_(1) + x, lambda: (real(4),))
add("prod", lambda x: x.prod(1), lambda: (real(5, 4),))
add("trace", lambda x: x.trace(), lambda: (real(5, 5),))
add("diagonal", lambda x: x.diagonal() * 2, lambda: (real(5, 5),))
add("cdist", lambda x, y: torch.cdist(x, y, p=1.0), lambda: (real(5, 3), real(4, 3)))


def _sparse(x: Tensor) -> Tensor:
    return (x * (x > 0)).to_sparse()


def _blocks(x: Tensor) -> Tensor:
    return x.detach()[:, :4].to_sparse_bsr((2, 2))


for name, product in (
    ("mm", lambda x, y, v: torch.sparse.mm(_sparse(x), y)),
    (
        "mm-two",
        lambda x, y, v: torch.sparse.mm(_sparse(x.detach()), _sparse(y.detach())).to_dense(),
    ),
    ("mv", lambda x, y, v: torch.mv(_sparse(x.detach()), y[:, 0])),
    ("addmm", lambda x, y, v: torch.addmm(v, _sparse(x.detach()).to_sparse_csr(), y)),
    ("addmv", lambda x, y, v: torch.addmv(v[:, 0], _sparse(x.detach()).to_sparse_csr(), y[:, 0])),
    ("mm-blocks", lambda x, y, v: torch.mm(_blocks(x), y.detach()[:4])),
    ("mv-blocks", lambda x, y, v: torch.mv(_blocks(x), y.detach()[:4, 0])),
    ("addmm-blocks", lambda x, y, v: torch.addmm(v, _blocks(x), y.detach()[:4])),
    ("sparse-addmm-blocks", lambda x, y, v: torch.sparse.addmm(v, _blocks(x), y.detach()[:4])),
    ("addmv-blocks", lambda x, y, v: torch.addmv(v[:, 0], _blocks(x), y.detach()[:4, 0])),
    ("bmm", lambda x, y, v: torch.bmm(_sparse(x.detach()[None]), y[None])),
    ("hspmm", lambda x, y, v: torch.hspmm(_sparse(x.detach()), y.detach()).to_dense()),
):
    add(f"sparse-{name}", product, lambda: (real(4, 5), real(5, 3), real(4, 3)))
