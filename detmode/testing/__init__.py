"""Tests of reproducibility: functions and kernels, the pytest plugin, and its baselines.

It may import everything but the command line. Its names are imported on first use, because
pytest imports the plugin in every run and that must cost next to nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
