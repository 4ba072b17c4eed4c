"""A lock: every choice that changes bits, in a file that can be read, compared and kept.

It may import :mod:`detmode.environment`. It knows neither rules nor the mode; who makes a lock adds
what it knows of them.
"""
