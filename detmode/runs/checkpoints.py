"""Checkpoints that carry the digest of the run that made them, in PyTorch's own metadata."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

from detmode.runs.steps import leaf_of_run, root_of

KEY = "detmode.run_digest"
"""The key of the digest in the metadata's ``planner_data``."""


class RecordedSavePlanner(DefaultSavePlanner):
    """Saves a checkpoint whose metadata has the digest of the recorded run, on all ranks.

    It is the digest of :func:`detmode.run_digest`, in the metadata's ``planner_data``, under the
    key ``"detmode.run_digest"``. The ranks' parts of it travel with their plans: saving needs no
    further collective. Make one planner for each checkpoint, between two steps; the digest is that
    of the steps that have ended until then. Where a rank is not recorded, there is no digest.

    >>> from torch.distributed import checkpoint
    >>> with detmode.record("run", level="step"):
    ...     detmode.end_step(loss=torch.tensor(0.5))
    ...     planner = detmode.RecordedSavePlanner()
    ...     saved = checkpoint.save(
    ...         {"loss": torch.tensor(0.5)}, checkpoint_id="saved", planner=planner
    ...     )

    Args:
        settings: those of PyTorch's ``DefaultSavePlanner``.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._leaf = leaf_of_run()

    def create_local_plan(self) -> SavePlan:
        """Return the plan of this rank, with its part of the digest."""
        plan = super().create_local_plan()
        return dataclasses.replace(plan, planner_data=(plan.planner_data, self._leaf))

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Return the plans of all ranks, and metadata with the digest."""
        leaves = [plan.planner_data[1] for plan in all_plans]
        plain = [dataclasses.replace(plan, planner_data=plan.planner_data[0]) for plan in all_plans]
        plans, metadata = super().create_global_plan(plain)
        if None not in leaves:
            data = {**(metadata.planner_data or {}), KEY: root_of(leaves).hex()}
            self.metadata = metadata = dataclasses.replace(metadata, planner_data=data)
        return plans, metadata
