"""Many ranks: their one report, what is compared across them, and what depends on their number.

It may import :mod:`detmode.mode` and what is below; nothing here is imported before it is used,
because :mod:`torch.distributed` is.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
