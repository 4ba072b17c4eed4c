"""Launchers of the backward of replication padding."""

from __future__ import annotations

from functools import partial

from detmode.cuda.rows.padding import gather_backward

replication_pad1d_backward = partial(gather_backward, "replication_pad", 1)
replication_pad2d_backward = partial(gather_backward, "replication_pad", 2)
replication_pad3d_backward = partial(gather_backward, "replication_pad", 3)
