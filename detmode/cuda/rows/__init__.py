"""Launches that several operator families share: each works on rows, windows or axes.

It may import :mod:`detmode.cuda`. It knows shapes and dtypes, but no rule.
"""
