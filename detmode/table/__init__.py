"""The parts of a row: rules, conditions and actions, tables, calls, variants and samples.

It may import :mod:`detmode.environment` and :mod:`detmode.cuda`. It knows no operator by name,
and neither the origin of a call nor what the mode does with it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["conditions"])
