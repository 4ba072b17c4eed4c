"""What a row is made of: rules, their conditions and actions, tables, calls, variants and samples.

It may import :mod:`detmode.environment` and :mod:`detmode.cuda`. It knows no operator by name, and
neither where a call was made nor what becomes of it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["conditions"])
