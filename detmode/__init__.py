"""detmode: bitwise reproducible PyTorch, by deterministic kernels where PyTorch can only raise.

PyTorch is imported with the first name that is used, so that ``detmode.pytest_plugin``, which
pytest imports in every run, costs next to nothing. PYTEST_DONT_REWRITE: no asserts of tests here.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import lazy_loader

from detmode import log_level

__version__ = "0.1.0"

# __init__.pyi is the one list of the public names.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _configure_logging() -> None:
    logger = logging.getLogger("detmode")
    # A warning is given through Python's warnings; without a handler logging would print it again.
    logger.addHandler(logging.NullHandler())
    level = None
    with suppress(ValueError):  # the command line says what is wrong; a program is not ended
        level = log_level.from_environment()
    if level is not None:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("detmode %(levelname)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(level)


_configure_logging()
del _configure_logging
