"""Launchers of the backward of replication padding."""

from __future__ import annotations

from detmode.cuda.rows.padding import pad_backward

replication_pad1d_backward = pad_backward(__name__, "replication_pad", 1)
replication_pad2d_backward = pad_backward(__name__, "replication_pad", 2)
replication_pad3d_backward = pad_backward(__name__, "replication_pad", 3)
