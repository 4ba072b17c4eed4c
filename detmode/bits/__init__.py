"""The bytes of tensors: their digests, how two differ, what calls do to them, calls made again.

It may import :mod:`detmode.cuda` and what is below. It knows neither rules nor the mode.
"""
