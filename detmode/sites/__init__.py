"""The origin of a call: the user's line, the module, and in backward the line of forward.

It may import :mod:`detmode.table` and what is below. It knows no rule and no action.
"""
