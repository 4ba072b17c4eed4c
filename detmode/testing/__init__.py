"""Tests that prove reproducibility: ``assert_reproducible``, the plugin of pytest, its baselines.

It may import everything but the command line. Its names are imported when they are first used:
pytest imports the plugin in every run, which is to cost next to nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
