"""PyTorch's table of operators with sample inputs for each."""

import warnings
from unittest.mock import patch

import pytest

pytest.importorskip("expecttest")

# PyTorch's test package imports what is deprecated, and forbids settings to the whole process.
with warnings.catch_warnings(), patch("torch.backends.disable_global_flags"):
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

__all__ = ["op_db"]
