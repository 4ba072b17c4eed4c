"""detmode: bitwise reproducible PyTorch, by deterministic kernels where PyTorch can only raise.

PyTorch is imported with the first name that is used, so that ``detmode.pytest_plugin``, which
pytest imports in every run, costs next to nothing. PYTEST_DONT_REWRITE: no asserts of tests here.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from detmode.public import *  # noqa: F403  # the one list of them is there
else:

    def __getattr__(name: str) -> Any:
        """A public name, or a module of the package, imported when it is first used."""
        if name != "__all__":
            if name.startswith("_"):
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
            if importlib.util.find_spec(f"{__name__}.{name}") is not None:
                return importlib.import_module(f"{__name__}.{name}")
        public = importlib.import_module(f"{__name__}.public")
        globals().update({each: getattr(public, each) for each in (*public.__all__, "__all__")})
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})


def _configure_logging() -> None:
    logger = logging.getLogger("detmode")
    # A warning is given through Python's warnings; without a handler logging would print it again.
    logger.addHandler(logging.NullHandler())
    level = getattr(logging, os.environ.get("DETMODE_LOG", "").upper(), None)
    if isinstance(level, int):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("detmode %(levelname)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(level)


_configure_logging()
del _configure_logging
