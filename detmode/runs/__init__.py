"""Recording runs, finding where two of them diverge, and probing one for operators that vary.

It may import :mod:`detmode.mode` and what is below. This file imports nothing, so that comparing
bytes does not load the recording code.
"""
