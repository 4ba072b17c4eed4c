"""detmode: bitwise reproducible PyTorch, by deterministic kernels where PyTorch can only raise.

PyTorch is imported with the first name that is used, so that the plugin, which pytest imports in
every run, costs next to nothing. PYTEST_DONT_REWRITE: no asserts of tests here.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

import lazy_loader

from detmode.process import log as _log

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__version__ = "0.1.0"

# __init__.pyi is the one list of the public names.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

_ALIASES = {
    "conditions": "table.conditions",
    "doctor": "environment.doctor",
}
"""Modules that programs import by a shorter name."""


class _Aliases(MetaPathFinder, Loader):
    """Import what :data:`_ALIASES` names as the module itself, not as a second one."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        package, _, alias = name.partition(".")
        known = package == __name__ and alias in _ALIASES
        return ModuleSpec(name, type(self)()) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"{__name__}.{_ALIASES[spec.name.partition('.')[2]]}")
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the alias there.
        module.__spec__ = self._spec


sys.meta_path.append(_Aliases())


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Define ``%%deterministic``; IPython calls this for ``%load_ext detmode``."""
    from detmode.integrations.notebook import load

    load(shell)


_log.configure()
