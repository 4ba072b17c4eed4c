"""The code that PyTorch's compilers make for a mode: what it leaves whole, and what it may not do.

While a graph is compiled for a mode:

- nothing decomposes listed operators, or the forwards of listed backward operators;
- Inductor lowers a twin in the place of each listed operator, after all its passes over the graph;
- nothing that Inductor times decides bits, no scan combines its parts in the order in which they
  finish, and no CUDA graph of the backend ``cudagraphs`` records a call that the mode decides on;
- the caches of other modes, lines and sizes are not used.

The options that the user gave to ``torch.compile`` hold, but for those by which timing would decide
bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
from collections.abc import Callable, Iterator
from functools import lru_cache, partial, wraps
from typing import Any
from unittest import mock

import torch
import torch.compiler.config
from torch._functorch._aot_autograd.schemas import AOTConfig
from torch._library.utils import get_layout_constraint_tag, is_builtin
from torch.utils._pytree import tree_leaves

from detmode.mode.base_mode import BaseMode
from detmode.mode.compiled import timing
from detmode.mode.compiled.current import AT_ONCE, key_of, thread
from detmode.sites.graph_nodes import text_of
from detmode.table.markers import FLEX_ATTENTION_BACKWARD
from detmode.table.rule import Substitute
from detmode.table.rule_table import resolve
from detmode.table.twins import SITE, twin_of
from detmode.table.variants import variant_of

_PYTHON_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
"""The keys at which PyTorch decomposes operators in Python while it traces."""

_INTO_LISTED = frozenset({"aten::col2im", "aten::im2col", "aten::index_fill"})
"""Operators that do not vary and that Inductor decomposes into listed ones."""

_EAGER = "eager_input_vals"
"""The key under which a node of an operator outside of ATen has the arguments of eager code."""

_ATOMICS: Any = resolve(FLEX_ATTENTION_BACKWARD)


@contextlib.contextmanager
def keeping_whole(mode: BaseMode, example_inputs: list[torch.Tensor]) -> Iterator[list[bool]]:
    """Keep what ``mode`` lists whole in what is compiled inside the block.

    Yields:
        for each graph that Inductor lowers in the block, true if it has twins.
    """
    from torch._dynamo.backends import cudagraphs
    from torch._inductor import compile_fx, ir, lowering
    from torch._inductor.codecache import FxGraphHashDetails
    from torch._inductor.fx_passes import reinplace
    from torch._inductor.graph import GraphLowering

    # For dynamic shapes code is cut into parts by the sizes that came first.
    sizes = [getattr(example, "shape", example) for example in example_inputs]
    tag = hashlib.sha256(f"{key_of(mode)}\n{sizes}".encode()).hexdigest()
    config: Any = torch.compiler.config
    lowered: list[bool] = []
    with_twins = _put_twins(mode, GraphLowering.__init__, lowered)
    with (
        mock.patch.object(FxGraphHashDetails, "__init__", _with_lines(FxGraphHashDetails.__init__)),
        config.patch(cache_key_tag=config.cache_key_tag + tag),
        timing.decides_nothing(mode.say_once),
        # A backward that is compiled when it first runs is compiled outside of this block.
        mock.patch.object(AOTConfig, AT_ONCE, property(lambda _: True, lambda *_: None)),
        mock.patch.object(compile_fx, "select_decomp_table", _decompositions),
        # Until 2.11 lowering refuses what the whole table decomposes.
        mock.patch.object(lowering, "decompositions", {}),
        mock.patch.dict(reinplace.inplaceable_ops, _in_place(mode)),
        mock.patch.object(GraphLowering, "__init__", with_twins),
        mock.patch.object(ir, "SplitScan", _unsplit(ir.Scan)),
        mock.patch.object(cudagraphs, "check_for_skip", _skips(mode, cudagraphs.check_for_skip)),
        _without_python_kernels(mode),
    ):
        yield lowered


def _with_lines(init: Callable[..., None]) -> Callable[..., None]:
    """Have the caches tell apart graphs of other lines, which the code has."""

    @wraps(init)
    def with_lines(details: Any, gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> None:
        init(details, gm, *args, **kwargs)
        details.detmode = [text_of(node) for node in gm.graph.nodes]

    return with_lines


def _put_twins(
    mode: BaseMode, init: Callable[..., None], lowered: list[bool]
) -> Callable[..., None]:
    """Lower graphs with a twin in the place of each call that the mode may decide on.

    Whether there are any is added to ``lowered``.
    """

    @wraps(init)
    def with_twins(lowering: Any, gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> None:
        for node in list(gm.graph.nodes):
            if node.target is torch.ops.higher_order.flex_attention_backward:
                _mark_atomics(gm, node)
        met = [node for node in gm.graph.nodes if may_be_met(mode, node)]
        for node in met:
            site = {SITE: text_of(node)}
            node.kwargs = {**node.kwargs, **site}
            if _EAGER in node.meta:
                eager_args, eager_kwargs = node.meta[_EAGER]
                node.meta[_EAGER] = eager_args, {**eager_kwargs, **site}
            if variant_of(node.target) == "inplace":
                node.replace_all_uses_with(node.args[0])
            original, node.target = node.target, twin_of(node.target)
            _lower_as(original, node.target, kwargs.get("is_backward", False))
        lowered.append(bool(met))
        init(lowering, gm, *args, **kwargs)

    return with_twins


def _lower_as(
    original: torch._ops.OpOverload, twin: torch._ops.OpOverload, is_backward: bool
) -> None:
    """Have Inductor call a twin with the strides that it would give the original's arguments."""
    from torch._inductor import lowering

    if twin in lowering.lowerings:
        return
    constraint = lowering.maybe_layout_constraints(original)
    if constraint is None and original not in lowering.lowerings:
        if not is_builtin(original):
            constraint = lowering.tag_to_layout_constraint(get_layout_constraint_tag(original))
        elif is_backward:
            constraint = lowering.require_contiguous

    # PyTorch knows the one of exact strides by identity.
    if constraint not in (None, lowering.constrain_to_fake_tensors):
        constraint = partial(_constrained, original, constraint)
    lowering.make_fallback(twin, constraint)


def _constrained(
    original: torch._ops.OpOverload,
    constraint: Callable[..., Any],
    node: torch.fx.Node,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Constrain a twin's arguments as its original's: some constraints are for one operator."""
    with mock.patch.object(node, "target", original):
        return constraint(node, *args, **kwargs)


def _in_place(mode: BaseMode) -> dict[Any, Any]:
    """Return the listed operators that Inductor may call in place, where ``self`` is used no more.

    Its own table of them has ``index_put``, and ``_unsafe_index_put`` as an operator of its own. It
    does not ask what the other arguments read.
    """
    from torch._inductor.fx_passes.reinplace import InplaceableOp, inplaceable_ops
    from torch._inductor.fx_utils import get_node_storage

    def is_alone(further: Callable[[torch.fx.Node], bool], node: torch.fx.Node) -> bool:
        # Written in place, a tensor must not be read as another argument.
        nodes = [leaf for leaf in tree_leaves(node.args) if isinstance(leaf, torch.fx.Node)]
        written, *others = map(get_node_storage, nodes)
        return written not in others and further(node)

    replacements = {}
    for row in mode.table:
        func, action = resolve(row.rule.op), row.rule.action
        # Another substitute's result would be copied to ``self``.
        if func is not None and isinstance(action, Substitute) and action.takes_out:
            namespace, _, name = func._schema.name.partition("::")
            packet = getattr(getattr(torch.ops, namespace), f"{name}_", None)
            inductors = inplaceable_ops.get(func)
            if packet is not None:
                further = inductors.extra_check if inductors else partial(may_be_met, mode)
                check = partial(is_alone, further)
                replacements[func] = InplaceableOp(getattr(packet, func._overloadname), 0, check)
            elif inductors is not None:
                # That operator has no twin.
                replacements[func] = InplaceableOp(inductors.inplace_op, 0, lambda _: False)
    return replacements


def _mark_atomics(gm: torch.fx.GraphModule, backward: torch.fx.Node) -> None:
    """Mark a backward of ``flex_attention`` that adds to captured tensors by atomics.

    Its template gathers the gradients of queries, keys and values in a fixed order.
    """
    bodies = [
        getattr(gm, str(node.target)) for node in backward.all_input_nodes if node.op == "get_attr"
    ]
    called = {str(node.target) for body in bodies for node in body.graph.nodes}
    if "flex_lib.zeros_and_scatter.default" in called:
        with gm.graph.inserting_after(backward):
            queries = gm.graph.call_function(operator.getitem, (backward, 0))
        queries.meta = {**backward.meta, "val": backward.meta["val"][0]}
        with gm.graph.inserting_after(queries):
            node = gm.graph.call_function(_ATOMICS, (queries,))
        node.meta = {**backward.meta, "val": None}


def _unsplit(scan: type) -> type:
    """Return what makes plain scans in the place of those that tiles join as they finish.

    Until PyTorch 2.13 Inductor splits a long ``associative_scan`` so under the flag too.
    """

    class _Unsplit:
        def __new__(cls, **kwargs: Any) -> Any:
            return scan(**kwargs)

    return _Unsplit


def _skips(mode: BaseMode, check: Callable[..., str | None]) -> Callable[..., str | None]:
    """Return the check by which the backend ``cudagraphs`` runs a graph without recording it."""

    @wraps(check)
    def with_listed(gm: torch.fx.GraphModule, *args: Any) -> str | None:
        for node in gm.graph.nodes:
            if may_be_met(mode, node):
                return f"DeterministicMode decides on each call of {node.target}"
        return check(gm, *args)

    return with_listed


def may_be_met(mode: BaseMode, node: torch.fx.Node) -> bool:
    """Return whether a row or an override of the mode may hold for a call of the graph."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    overload = mode.overload_info(node.target)
    if overload is None or overload.override is not None:
        return overload is not None
    nodes = (node, *node.all_input_nodes)
    if any("val" not in node.meta for node in nodes):
        return True  # what is not known may be on any device
    values = tree_leaves([node.meta["val"] for node in nodes])
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    devices = {tensor.device.type for tensor in tensors}
    if mode.simulate:
        devices.add(mode.simulate)
    is_sparse = any(tensor.layout is not torch.strided for tensor in tensors)
    return any(row.rule.may_vary(devices, is_sparse) for row in overload.rows)


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Return Inductor's decompositions but those of operators that stay whole.

    A function of the module: the keys of the caches have its name.
    """
    from torch._inductor.decomposition import select_decomp_table

    mode = thread.mode
    if mode is None:
        # Another thread compiles for a mode, and this one for none.
        return select_decomp_table()
    return {
        func: decomposition
        for func, decomposition in select_decomp_table().items()
        if not (isinstance(func, torch._ops.OpOverload) and _stays_whole(mode, func))
    }


def _stays_whole(mode: BaseMode, func: torch._ops.OpOverload) -> bool:
    """Return whether an operator is listed, or the forward of a listed one."""
    overload = mode.overload_info(func)
    return func._schema.name in _INTO_LISTED or (
        overload is not None
        and bool(overload.rows or overload.override or mode.table.is_forward(func._schema.name))
    )


@contextlib.contextmanager
def _without_python_kernels(mode: BaseMode) -> Iterator[None]:
    """Set aside what decomposes listed operators, and their forwards, above autograd.

    What decomposes interpolation reads by index, so that the backward would add by index, which
    eager code never does.
    """
    removed = []
    try:
        for func in _python_kernels():
            if "upsample" in func._opname or _stays_whole(mode, func):
                for key in func.py_kernels.keys() & set(_PYTHON_KEYS):
                    removed.append((func, key, func.py_kernels.pop(key)))
                func._dispatch_cache.clear()
        yield
    finally:
        for func, key, kernel in removed:
            func.py_kernels[key] = kernel
            func._dispatch_cache.clear()


@lru_cache
def _python_kernels() -> tuple[torch._ops.OpOverload, ...]:
    """Return the overloads of ATen that have a kernel in Python above autograd."""
    import torch._decomp.decompositions

    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)]
    overloads = [
        getattr(packet, name)
        for packet in packets
        if isinstance(packet, torch._ops.OpOverloadPacket)
        for name in packet.overloads()
    ]
    return tuple(func for func in overloads if func.py_kernels.keys() & set(_PYTHON_KEYS))
