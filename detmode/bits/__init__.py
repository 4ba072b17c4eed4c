"""The bytes of tensors: their digests, how two differ, and what is varied between two calls.

It may import :mod:`detmode.cuda` and what is below. It knows neither rules nor the mode.
"""
