"""Many ranks: their one report, what is compared across them, and what depends on their number.

It may import :mod:`detmode.compiled` and what is below; nothing here is imported before it is used,
because :mod:`torch.distributed` is.
"""
