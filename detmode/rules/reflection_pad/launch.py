"""Launchers of the backward of reflection padding."""

from __future__ import annotations

from detmode.cuda.rows.padding import pad_backward

reflection_pad1d_backward = pad_backward(__name__, "reflection_pad", 1)
reflection_pad3d_backward = pad_backward(__name__, "reflection_pad", 3)
