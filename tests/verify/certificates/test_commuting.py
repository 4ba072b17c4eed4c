"""Atomics whose result nobody reads: which they are, and the orders of blocks that they save."""

import pytest
import torch

import detmode
from detmode.cuda.host.dropped import with_dropped_results
from tests.shared import needs

DROPPED = [
    "{ _(p, 1); }",
    "{ x = 1; _(&h[bin(x, 2)], f(1)); }",
    "{ if (a) _(p, 1); else _(p, 2); }",
    "{ do _(p, 1); while (a); for (int i = 0; i < 3; ++i) { _(p, i); } }",
    "{ if constexpr (a) _(p, _kept(q, 1)); }",
    "{ if (a && _kept(p, f(1)) == 2) _(p, 1); }",
    "{ last = a && _kept(p, 1) != 2; _(p, 1); }",
    "{ b[1'000] = \"a{\", c = '{'; _(p, 1); }",
    "{ x = _kept(p, 1); _(p, 2); }",
]
KEPT = [
    "{ int r = _kept(p, 1); }",
    "{ return _kept(p, 1); }",
    "{ _kept(p, 1) > 3 && f(); }",
    "{ for (; _kept(p, 1);) f(); }",
    "{ r = ({ int a = 1; _kept(p, 1); }); }",
    "{ y = (float) _kept(p, 1); }",
    "{ a ? _kept(p, 1) : _kept(q, 1); }",
    "{ MACRO(x) _kept(p, 1); }",
    "{ MACRO({ _kept(p, 1); }) }",
    "{ int r =\n#if A\n f();\n#else\n _kept(p, 1);\n#endif\n }",
    "#define ADD(p) \\\n _kept(p, 1);\n{ int r = ADD(p) }",
    "#define _kept(p, v) f(p, v)\n{ _kept(p, 1); }",
    "int _kept(half* p, int v) { return f(p, v); } { _kept(p, 1); }",
    "T&& _kept(T* p, int v) { return f(p, v); } { _kept(p, 1); }",
    "auto& _kept = == f; { _kept(p, 1); }",
    "T& _kept(T* p, int v",
    "{ f(]; _kept(p, 1); }",
]


@pytest.mark.parametrize("name", ["atomicAdd", "atomicXor"])
@pytest.mark.parametrize("text", DROPPED + KEPT)
def test_which_results_are_dropped(text: str, name: str) -> None:
    """Those of statements of their own; where a macro may read one, none is."""
    text = text.replace("_kept", "KEPT")
    found = with_dropped_results(text.replace("_(", f"{name}(").replace("KEPT", name))
    assert found == text.replace("_(", f"{name}_dropped(").replace("KEPT", name)


KERNELS = """
__global__ void counts(unsigned int* x) { atomicAdd_block(x, 1), atomicAdd(x, 2); atomicSub(x, 1); }
__global__ void adds(unsigned int* x) { atomicAdd(x, 1); if (blockIdx.x) atomicSub(x, 3u); }
__global__ void wide(unsigned long long* x) { atomicAdd(x, 1); }
__global__ void extremes(int* x) {
  atomicMax(x, (int)blockIdx.x); atomicMin(x + 1, -(int)blockIdx.x);
}
__global__ void bits(unsigned int* x) {
  atomicOr(x, 1u << blockIdx.x); atomicAnd(x + 1, ~blockIdx.x); atomicXor(x + 2, blockIdx.x);
}
__global__ void read_after(unsigned int* x) {
  atomicAdd(x, 1u);
  if (*(volatile unsigned int*)x > 99) x[1] = 1;
}
__global__ void adds_and_extremes(int* x) { atomicAdd(x, 0); atomicMax(x, 0); }
__global__ void signs(int* x) { atomicMax(x, 0); atomicMax((unsigned int*)x, 0u); }
__global__ void carries(unsigned int* x) {
  atomicAdd(x, 0u); atomicAdd((unsigned long long*)x, 0ull);
}
__global__ void wraps(unsigned int* x) { atomicInc(x, 0xffffffffu); }
__global__ void tickets(unsigned int* x) {
  unsigned int at = atomicAdd(x, 1u);
  if (at > 99) x[1] = 1;
}
__global__ void floats(float* x) { atomicAdd(x, 0.0f); }
"""
SAVED = ("adds", "wide", "extremes", "bits")
NOT_SAVED = (
    *("counts", "read_after", "adds_and_extremes", "signs", "carries", "wraps", "tickets"),
    "floats",
)


@needs.compiler
@pytest.mark.parametrize("entry", [*SAVED, *NOT_SAVED])
def test_blocks_that_commute_have_one_order(entry: str) -> None:
    """Any number of them meets all orders' claim; of what does not commute, twelve are too many.

    An operation commutes with itself alone, in one width and with one sign.
    """
    dtype = {"floats": torch.float32, "wide": torch.int64}.get(entry, torch.int32)
    found = detmode.certify(
        KERNELS, [torch.zeros(4, dtype=dtype)], entry=entry, grid=12, block=2, repeats=3
    )
    assert found.is_order_independent, found
    assert found.schedules == 3
    assert found.all_orders == (entry in SAVED)


@needs.compiler
@pytest.mark.parametrize("first", [0, 1])
def test_blocks_that_stopped_midway_are_not_whole(first: int) -> None:
    """One of two orders of blocks is none of whole ones if a block waits for the other."""
    text = """
    __global__ void one_waits(volatile int* flag, int first) {
      if (blockIdx.x == first) *flag = 1;
      else while (*flag == 0) {}
    }
    """
    given = [torch.zeros(1, dtype=torch.int32), first]
    found = detmode.certify(text, given, grid=2, block=1, repeats=2)
    assert found.is_order_independent, found
    assert not found.all_orders


@needs.compiler
def test_a_race_with_a_dropped_result_names_the_users_line() -> None:
    """The form without a result stands between the caller and the operation."""
    text = "__global__ void f(int* x) {\n  atomicAdd(x, 1);\n  *x = 2;\n}\n"
    found = detmode.certify(text, [torch.zeros(1, dtype=torch.int32)], grid=2, block=1)
    assert found.verdict == "race"
    assert "kernel.cu:2" in str(found.reason)
    assert "kernel.cu:3" in str(found.reason)
