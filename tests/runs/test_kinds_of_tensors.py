"""Every kind of tensor that PyTorch makes goes through every tool: none dies, none is wrong.

Tensors of forward-mode AD without memory, uninitialized parameters, quantized, sparse, nested and
meta tensors, views that are conjugated or negated by whoever reads them, and tensors without
elements.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from timing import tensors_of
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import detmode
from detmode import DeterministicMode, diff, record
from detmode.bits.difference import same_bits
from detmode.process.dispatch import caller_of
from detmode.runs.probing import Probe
from tests.shared import needs
from tests.shared.opinfo import SHARES, samples_of, seed, share_of
from tests.shared.selection import todays_forms

pytestmark = [
    # About what is a prototype, or in beta.
    pytest.mark.filterwarnings("ignore:.*(beta|prototype|deprecated|TypedStorage)")
]


def jvp() -> Any:
    x = torch.arange(4.0)
    return torch.func.jvp(lambda x: x.cumsum(0) * torch.ones(4), (x,), (x,))


def hessian() -> Any:
    return torch.func.hessian(lambda x: (x[torch.tensor([0, 1, 1])] ** 3).sum())(torch.ones(4))


def dual() -> Any:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.ones(3), torch.ones(3))
        return forward_ad.unpack_dual(torch.cat([x, torch.zeros(2)]).index_add(0, INDEX, x))


INDEX = torch.tensor([0, 1, 1])


def zero_tensor() -> Any:
    zeros = torch._efficientzerotensor((3,))
    return zeros + torch.ones(3), zeros.clone(), torch.ones(3) * zeros


def lazy() -> Any:
    seed(0)
    net = nn.Sequential(nn.LazyLinear(3), nn.LazyConv1d(2, 1))
    out = net(torch.ones(4, 1, 5))
    out.sum().backward()
    return [out, *(each.grad for each in net.parameters())]


def quantized() -> Any:
    x = torch.quantize_per_tensor(torch.arange(4.0), 0.1, 3, torch.quint8)
    new = torch.empty_quantized([50_000], x).copy_(torch.ones(50_000))
    big = torch.quantize_per_tensor(torch.ones(300, 300), 0.1, 3, torch.quint8)
    return x.int_repr(), x.dequantize(), x.view(2, 2), new.int_repr(), big.t().contiguous()[::2]


def by_channel() -> Any:
    scales, zeros = torch.tensor([0.1, 0.2]), torch.tensor([0, 1])
    x = torch.quantize_per_channel(torch.ones(2, 3), scales, zeros, 0, torch.qint8)
    return x.dequantize(), x.int_repr()


def sparse() -> Any:
    dense = torch.eye(4)[:, [1, 0, 3, 2]]
    layouts = (dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc())
    return [each @ dense for each in layouts], dense.to_sparse_bsr((2, 2)).to_dense()


def nested() -> Any:
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(4)], layout=torch.jagged)
    return (x * 2).to_padded_tensor(0.0), (jagged + 1).values()


def meta() -> Any:
    return (torch.ones(3, device="meta") + 1).sum(), torch.empty(2, device="meta").clone()


def lazily_conjugated() -> Any:
    x = torch.view_as_complex(torch.arange(12.0).view(6, 2))
    return x.conj() * 2, x.conj().imag + 1, x.conj().imag.clone(), x.conj()[:2].contiguous()


def without_elements() -> Any:
    x = torch.ones(0, 3)
    return x.sum(0), torch.cat([x, torch.ones(1, 3)]), x.clone(), x.t() @ x


def halves_of_complex() -> Any:
    x = torch.view_as_complex(torch.ones(4, 2, dtype=torch.float16))
    return x.clone(), torch.view_as_real(x), x.conj().clone(), x.to(torch.complex64)


def expanded() -> Any:
    x = torch.arange(3.0)
    return x[:, None].expand(3, 4) * 2, x[0].expand(5).clone(), x.expand(2, 3).sum()


def blocked() -> Any:
    return torch.ones(3, 4).to_mkldnn().to_dense(), torch.ones(2)


def without_storage() -> Any:
    x = torch.ones(3)
    x.untyped_storage().resize_(0)
    y = x.detach()
    x.untyped_storage().resize_(12)
    return x.fill_(2.0) + y


def scaled_zero_tensor() -> Any:
    """``aten::mul.Scalar`` of a tangent without memory."""
    x = torch.ones(3)
    return torch.func.jvp(lambda y: torch.addcmul(y, x, x, value=2), (x,), (x,))[1]


PROGRAMS: dict[str, Callable[[], Any]] = {
    program.__name__: program
    for program in (
        *(jvp, hessian, dual, zero_tensor, scaled_zero_tensor, lazy, quantized, by_channel),
        *(sparse, nested, meta, lazily_conjugated, without_elements, halves_of_complex),
        *(expanded, blocked, without_storage),
    )
}


class Neutral(TorchDispatchMode):
    """Changes nothing; under any mode PyTorch computes some results in another way."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # PyTorch itself reads where nothing is if a mode calls it with some zero tensors.
        run = caller_of(func) if isinstance(func, torch._ops.OpOverload) else func
        return run(*args, **(kwargs or {}))


def outcome(program: Callable[[], Any], mode: AbstractContextManager[object]) -> Any:
    """The tensors that a program returns, or its error."""
    with warnings.catch_warnings():
        # PyTorch warns of what is new in it or about to go, and once a process of stft's window.
        warnings.filterwarnings("ignore", "(?s).*(beta|prototype|deprecat|window was not provided)")
        try:
            with mode:
                return tensors_of(program())
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def check_same(result: Any, wanted: Any) -> None:
    if isinstance(result, str) or isinstance(wanted, str):
        assert result == wanted
    else:
        assert [each.shape for each in result] == [each.shape for each in wanted]
        assert all(one.is_meta or same_bits(one, other) for one, other in zip(result, wanted))


def check_recorded(program: Callable[[], Any], path: Path, level: str) -> None:
    """Two recordings are the same, and change nothing."""
    wanted = outcome(program, Neutral())
    for folder in ("first", "second"):
        check_same(outcome(program, record(path / folder, level=level)), wanted)
    assert diff(path / "first", path / "second").identical


def check_probed(program: Callable[[], Any]) -> None:
    """No call varies when it is repeated as it was, and nothing changes."""
    probing = Probe(1)
    check_same(outcome(program, probing), outcome(program, Neutral()))
    assert not probing.report().rows


def check_run(program: Callable[[], Any], **options: Any) -> None:
    """Calls that are made twice, or as on CUDA, change nothing."""
    check_same(outcome(program, DeterministicMode(**options)), outcome(program, Neutral()))


TOOLS: dict[str, Callable[[Callable[[], Any], Path], object]] = {
    **{
        level: lambda program, path, level=level: check_recorded(program, path / level, level)
        for level in ("call", "module", "step")
    },
    "probe": lambda program, _: check_probed(program),
    "recheck": lambda program, _: check_run(program, recheck=1.0),
    "cuda": lambda program, _: check_run(program, simulate="cuda", warn_only=True),
    "audit": lambda program, _: detmode.audit(program),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_takes_it(name, tool, tmp_path):
    """No tool dies of it or changes a bit, and runs that are the same stay so."""
    TOOLS[tool](PROGRAMS[name], tmp_path)


def forward(op: Any, sample: Any) -> Any:
    """Results of an operator and their tangents; only the first input has a tangent."""
    x = sample.input
    if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
        return []
    seed(1)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), x.detach().clone())
        # Running statistics are written.
        args, kwargs = tree_map_only(Tensor, Tensor.clone, (sample.args, sample.kwargs))
        results = tensors_of(op(dual, *args, **kwargs))
        pairs = [forward_ad.unpack_dual(result) for result in results]
        return [part for pair in pairs for part in pair if part is not None]


@pytest.mark.parametrize("share", todays_forms(range(SHARES)))
def test_forward_mode(share, tmp_path):
    """PyTorch's operators in forward-mode AD, recorded and probed: as they are without."""
    for name, op, dtype in share_of(share, [torch.float32]):
        if not op.supports_forward_ad:
            continue
        for number, sample in enumerate(islice(samples_of(op, dtype), 2)):
            program = partial(forward, op, sample)
            check_recorded(program, tmp_path / f"{name}{number}", "call")
            check_probed(program)


@contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def on_the_host() -> Any:
    x = torch.arange(6.0, device="cpu")
    y = torch.empty(8, device="cpu")
    y.numpy()[:] = 1
    where = torch.tensor([0, 1, 1], device="cpu")
    return (
        x.view(2, 3).sum(0),
        y * 2,
        torch.zeros(2, device="cpu").index_add(0, where, x[:3]),
        x.std(),
    )


@needs.compiler
def test_default_device(tmp_path):
    """Whatever device tensors are made on by default, detmode's own are where it looks for them."""
    plain = outcome(on_the_host, nullcontext())
    with default_device("meta"):
        for tool in TOOLS.values():
            tool(on_the_host, tmp_path)
        for options in ({}, {"simulate": "cuda"}):
            mode = DeterministicMode(recheck=1.0, **options)
            check_same(outcome(on_the_host, mode), plain)
    check_same(outcome(on_the_host, nullcontext()), plain)
