"""Compositions of other torch operators, as people write them by hand in place of one that varies.

By operator, functions of its arguments. Each stays on its tensors' device and runs under PyTorch's
flag.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import torch

from compositions import dense, indexed
from compositions.grid_sampler import grid_sampler_backward

aten = torch.ops.aten
_replicated = dense.folded(dense.added_to_the_edge)
_reflected = dense.folded(dense.turned_round)

COMPOSITIONS: dict[str, Callable[..., Any]] = {
    "aten::_adaptive_avg_pool2d_backward": partial(dense.adaptive_avg_pool_backward, dims=2),
    "aten::_adaptive_avg_pool3d_backward": partial(dense.adaptive_avg_pool_backward, dims=3),
    "aten::adaptive_max_pool2d_backward": partial(indexed.max_pool_backward, dims=2),
    "aten::adaptive_max_pool3d_backward": partial(indexed.max_pool_backward, dims=3),
    "aten::avg_pool3d_backward": dense.avg_pool3d_backward,
    "aten::embedding_dense_backward": indexed.embedding_dense_backward,
    "aten::_embedding_bag_backward": indexed.embedding_bag_backward,
    "aten::fractional_max_pool2d_backward": partial(indexed.max_pool_backward, dims=2),
    "aten::fractional_max_pool3d_backward": partial(indexed.max_pool_backward, dims=3),
    "aten::grid_sampler_2d_backward": grid_sampler_backward,
    "aten::grid_sampler_3d_backward": grid_sampler_backward,
    "aten::histc": indexed.histc,
    "aten::bincount": indexed.bincount,
    "aten::index_add": indexed.index_add,
    "aten::index_put": indexed.index_put,
    "aten::index_copy": indexed.index_copy,
    "aten::index_reduce": indexed.index_reduce,
    "aten::mm": lambda self, mat2: indexed.sparse_product(self, mat2),
    "aten::mv": lambda self, vec: indexed.sparse_product(self, vec),
    "aten::_sparse_addmm": indexed.sparse_addmm,
    "aten::max_pool3d_with_indices_backward": partial(indexed.max_pool_backward, dims=3),
    "aten::max_unpool2d": indexed.max_unpool,
    "aten::max_unpool3d": indexed.max_unpool,
    "aten::nll_loss2d_forward": dense.nll_loss2d_forward,
    "aten::median.dim": dense.median,
    "aten::nanmedian.dim": partial(dense.median, ignore_nan=True),
    "aten::put": indexed.put,
    "aten::reflection_pad1d_backward": _reflected,
    "aten::reflection_pad3d_backward": _reflected,
    "aten::replication_pad1d_backward": _replicated,
    "aten::replication_pad2d_backward": _replicated,
    "aten::replication_pad3d_backward": _replicated,
    "aten::cumsum": dense.scanned(torch.cumsum, torch.add, 0.0),
    "aten::cumprod": dense.scanned(torch.cumprod, torch.mul, 1.0),
    "aten::logcumsumexp": dense.scanned(torch.logcumsumexp, torch.logaddexp, -inf),
    "aten::scatter_add": partial(indexed.scatter_reduce, reduce="sum"),
    "aten::scatter.reduce": indexed.scatter_reduce,
    "aten::scatter.src": indexed.scatter,
    "aten::scatter_reduce.two": indexed.scatter_reduce,
    "aten::upsample_linear1d_backward": dense.upsample_linear_backward,
    "aten::upsample_bilinear2d_backward": dense.upsample_linear_backward,
    "aten::upsample_trilinear3d_backward": dense.upsample_linear_backward,
    "aten::upsample_bicubic2d_backward": dense.resized_planes(aten.upsample_bicubic2d),
    "aten::_upsample_bilinear2d_aa_backward": dense.resized_planes(aten._upsample_bilinear2d_aa),
    "aten::_upsample_bicubic2d_aa_backward": dense.resized_planes(aten._upsample_bicubic2d_aa),
}
