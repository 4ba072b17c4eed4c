"""The line of the user's code that makes a call, and the modules around it.

The stack is read at each call, so the program needs neither hooks nor wrappers.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
import wrapt

from detmode.process.memo import ById
from detmode.sites.graph_nodes import INTERPRETER, is_compilers, node_at, runs_graph
from detmode.sites.module_path import ModulePaths
from detmode.sites.source_lines import place_in
from detmode.sites.user_files import is_own, is_users
from detmode.table.call_site import CallSite, Site

_current_node = torch._C._current_autograd_node
_MODULE_CALL = torch.nn.Module._call_impl.__code__
_ENGINE_CALL = torch.autograd.graph._engine_run_backward.__code__

WRAPPERS = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "external_utils.py")
"""The file of the functions in which Dynamo calls a module or a function of PyTorch's own."""

# What Dynamo has compiled: until then, no frame is one of its wrappers'.
_compiled: list[Any] = []

_Places = dict[int, tuple[CallSite, bool]]
# For each code object, by instruction.
_places: ById[_Places] = ById()
_places_of = _places.get
# Of code that is not the user's: of any, of what calls a module, and of what runs a backward.
_OTHERS: _Places = {}
_MODULES: _Places = {}
_ENGINES: _Places = {}


def _follow_dynamo(convert_frame: ModuleType) -> None:
    global _compiled
    _compiled = convert_frame.input_codes.seen


wrapt.register_post_import_hook(_follow_dynamo, "torch._dynamo.convert_frame")


def own_line(frame: FrameType | None) -> str | None:
    """Return the program's own nearest line, from a frame outwards, as "file:line".

    The outermost one would be the line of every call in a program that begins with ``main()``.
    """
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            return site_of(frame).text
        frame = frame.f_back
    return None


def outer_site(site: Site, paths: ModulePaths) -> str | None:
    """Return the program's own line that first led to a site; ``None`` if it is not known."""
    if site.file is not None and is_own(site.file):
        return site.text
    return paths.own_lines.get(site.text)


def modules_around(frame: FrameType | None) -> list[torch.nn.Module]:
    """Return the modules that are being called, the outermost first.

    In a backward, only modules that the backward itself calls: a recomputed forward, or the
    backward of a Python function. The stack is read because hooks would change the program: global
    module hooks apply to all threads, send every module call through another path, and are visible
    to other tools.
    """
    modules: list[torch.nn.Module] = []
    has_wrappers = bool(_compiled)
    while frame is not None:
        code = frame.f_code
        if code is _MODULE_CALL:
            modules.append(frame.f_locals["self"])
        elif code is _ENGINE_CALL:
            break
        elif has_wrappers and _is_wrapper(code):
            # Where Dynamo does not trace the module's call, that has a frame of its own.
            called = module_called_by(frame)
            if called is not None and called not in modules[-1:]:
                modules.append(called)
        frame = frame.f_back
    return [module for module in reversed(modules) if not _is_compilers(module)]


def nearest_place(
    start: FrameType | None, paths: ModulePaths, *, exact: bool = False
) -> tuple[FrameType, CallSite, bool] | None:
    """Return the nearest frame of the user's code, its place, and whether it runs a graph.

    A frame that runs a node of a compiled graph stands for the user's. The place has the innermost
    module that is being called, which may be below the frame or above it.

    Args:
        start: the first frame to look at; the next one is its caller.
        paths: those of the modules.
        exact: true if a module that a model has at several places is shown at that of the call.
            Else it is shown where it was first called, and the stack is read no further than
            needed: a mode asks at each call that it decides on.
    """
    user, module = start, None
    while user is not None:
        places = _places_of(id(user.f_code))
        if places:
            break
        if places is not _OTHERS:
            if places is None:
                places = _look_at(user)
            if places is _ENGINES:
                return None
            if places is _MODULES:
                if module is None:
                    module = module_called_by(user)
            elif places is not _OTHERS:
                break
        user = user.f_back
    else:
        return None
    place, is_graphs = (places and places.get(user.f_lasti)) or _called_at(user)
    if module is None and not exact:
        # Mostly there is none, in a program of many frames: nothing else is asked of them.
        frame, module_call = user.f_back, _MODULE_CALL
        while frame is not None and frame.f_code is not module_call:
            frame = frame.f_back
        if frame is not None and not _calls_backward(user.f_back, frame):
            module = module_called_by(frame)
    if module is not None or exact:
        path = None if exact else paths.known.get(id(module))
        if path is None and (modules := modules_around(start)):
            path = paths.of(modules, recomputed=_current_node() is not None)
        place = CallSite(place.site, path)
    return user, place, is_graphs


def _calls_backward(inner: FrameType | None, outer: FrameType) -> bool:
    while inner is not None and inner is not outer:
        if inner.f_code is _ENGINE_CALL:
            return True
        inner = inner.f_back
    return False


OTHER, MODULE, ENGINE, USER, UNFIT = range(5)
"""The roles of code, for the player in C++; unfit is code whose role depends on the frame."""


def role_of(frame: FrameType) -> int:
    """Return what a frame's code is to :func:`nearest_place`."""
    code = frame.f_code
    places = _places_of(id(code))
    if places is None:
        places = _look_at(frame)
    if code is INTERPRETER or _is_wrapper(code):
        return UNFIT
    if places is _ENGINES:
        return ENGINE
    if places is _MODULES:
        return MODULE
    if places is _OTHERS:
        return OTHER
    return UNFIT if runs_graph(frame) else USER


def _look_at(frame: FrameType) -> _Places | None:
    """Return what a frame's code is, which is kept where it does not depend on the frame.

    ``None`` for a frame that stands for the user's, whose places are not known yet.
    """
    code = frame.f_code
    if code is _ENGINE_CALL:
        return _places.keep(code, _ENGINES)
    if code is _MODULE_CALL or _is_wrapper(code):
        return _places.keep(code, _MODULES)
    if _stands_for_user(frame):
        return None
    return _OTHERS if code is INTERPRETER else _places.keep(code, _OTHERS)


def module_called_by(frame: FrameType) -> torch.nn.Module | None:
    """Return the module that a frame of PyTorch's, or of a wrapper, calls; ``None`` if none."""
    called = frame.f_locals.get("self" if frame.f_code is _MODULE_CALL else "fn")
    return called if isinstance(called, torch.nn.Module) else None


def _is_wrapper(code: CodeType) -> bool:
    return code.co_name == "inner" and code.co_filename == WRAPPERS


def _stands_for_user(frame: FrameType) -> bool:
    """Return whether a frame is of the user's code, or runs a node of a compiled graph."""
    code = frame.f_code
    return is_users(code.co_filename) or (code is INTERPRETER and node_at(frame) is not None)


def _is_compilers(module: torch.nn.Module) -> bool:
    """Return whether ``torch.compile`` has put a module around, or in the place of, the user's."""
    return type(module).__module__.startswith("torch._dynamo.") or (
        isinstance(module, torch.fx.GraphModule)
        and (not type(module).__name__.isidentifier() or any(map(is_compilers, module.graph.nodes)))
    )


def nearest(frame: FrameType | None) -> FrameType | None:
    """Return the nearest frame, from ``frame`` outwards, whose code the user wrote."""
    while frame is not None and (runs_graph(frame) or not is_users(frame.f_code.co_filename)):
        frame = frame.f_back
    return frame


def _called_at(frame: FrameType) -> tuple[CallSite, bool]:
    """Return the place of a user's frame, in no module, and whether the frame runs a graph."""
    code = frame.f_code
    places = _places.get(id(code)) or _places.keep(code, {})
    place = places.get(frame.f_lasti)
    if place is None:
        file, line = code.co_filename, frame.f_lineno
        site = Site(place_in(file, line), file, line, frame.f_globals.get("__name__"))
        place = places[frame.f_lasti] = CallSite(site, None), runs_graph(frame)
    return place


def site_of(frame: FrameType) -> Site:
    """Return the site of a user's frame."""
    return _called_at(frame)[0].site


def backward_site() -> Site:
    """Return the site of a backward call whose forward call is unknown."""
    node = _current_node()
    frame = nearest(sys._getframe(1))
    if frame is None:
        return Site(f"<{node.name()}>" if node is not None else "<unknown>")
    return site_of(frame)
