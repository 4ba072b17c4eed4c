"""Everything besides its code that a program's bits depend on: settings, seeds, NCCL, versions.

It may import :mod:`detmode.bits` and what is below. It knows neither rules nor calls.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["doctor"])
