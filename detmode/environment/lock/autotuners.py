"""The picks of autotuners, which time: Triton's configurations and Inductor's kernels."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from detmode.process.patched import Patched

_TRITON = "triton.runtime.autotuner"


def _noted(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.cache, _Configurations):
            self.cache = _Configurations(self)
        return plain(self, *args, **kwargs)

    return run


RUN = Patched(lambda: getattr(sys.modules.get(_TRITON), "Autotuner", None), "run", _noted)
"""The call of Triton's autotuners; its users are the choices that note what is picked."""


@functools.cache
def hook_in() -> None:
    """Watch the autotuners, now or once they are imported."""
    wrapt.register_post_import_hook(lambda _: RUN.look_again(), _TRITON)
    wrapt.register_post_import_hook(_watch_inductor, "torch._inductor.select_algorithm")


class _Configurations(dict[Any, Any]):
    """The configurations that an autotuner of Triton has picked, by its key.

    The autotuner asks if there is one, times all if there is none, and puts the fastest here.
    """

    def __init__(self, tuner: Any) -> None:
        super().__init__(tuner.cache)
        self._configs = {str(config): config for config in tuner.configs}
        self._tuner = tuner

    def __contains__(self, key: Any) -> bool:
        for choices in RUN.users:
            name = f"{choices.name_of(self._tuner)} {key}"
            if super().__contains__(key):
                choices.note("triton", name, str(self[key]))
                continue
            config = self._configs.get(str(choices.locked("triton", name)))
            if config is None:
                choices.note("triton", name, None)
            else:
                super().__setitem__(key, config)
                choices.note("triton", name, str(config))
        return super().__contains__(key)

    def __setitem__(self, key: Any, config: Any) -> None:
        super().__setitem__(key, config)
        for choices in RUN.users:
            choices.note("triton", f"{choices.name_of(self._tuner)} {key}", str(config))


def _watch_inductor(module: ModuleType) -> None:
    add: Callable[..., None] | None = getattr(module, "add_feedback_saver", None)
    if add is not None:
        add(_picked)


def _picked(timings: dict[Any, float], name: str, input_nodes: Any, *_: Any) -> None:
    if not timings:
        return
    inputs = ", ".join(
        f"{str(node.get_dtype()).removeprefix('torch.')}[{', '.join(map(str, node.get_size()))}]"
        for node in input_nodes
    )
    best = min(timings, key=timings.__getitem__)
    for choices in RUN.users:
        choices.note("inductor", f"{name}({inputs})", best.name)
