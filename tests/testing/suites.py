"""Texts of suites, and the options under which their calls are refused."""

HEAD = """
import pytest, random, torch
vary = torch.ops.detmode_plugin_tests.vary
"""
"""The beginning of each, with an operator that varies."""

OFFENDING = """
def helper(x):
    return x.sin()

def test_a():
    helper(torch.ones(2))

def test_b():
    helper(torch.ones(2))
    torch.ones(2).cos()

def test_c():
    torch.ones(2).exp()
"""
ASK = ("--detmode-override", "aten::sin=error", "--detmode-override", "aten::cos=error")
BOTH = ("--detmode=error", *ASK)
