"""Launchers of the backward of reflection padding."""

from __future__ import annotations

from functools import partial

from detmode.cuda.rows.padding import gather_backward

reflection_pad1d_backward = partial(gather_backward, "reflection_pad", 1)
reflection_pad3d_backward = partial(gather_backward, "reflection_pad", 3)
