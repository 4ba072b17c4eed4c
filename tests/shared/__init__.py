"""Helpers of the tests of several folders."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder of the repository."""
