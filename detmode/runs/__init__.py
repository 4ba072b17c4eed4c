"""Recording runs, finding where two of them part, and probing one for what varies.

It may import :mod:`detmode.mode` and what is below. Nothing is imported here: who compares bytes
needs no recording.
"""
