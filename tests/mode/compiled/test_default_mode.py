"""In the default mode, which raises: compiled functions and samples give what eager code gives."""

import pytest
import torch

from detmode import DeterministicMode
from detmode.table.rule_table import TORCH_VERSION, resolve
from detmode.verify.cases import samples_of, tensors_of
from detmode.verify.claims import same_bits
from tests.mode.compiled.test_compiled import SINCE_2_10, UNEQUAL, graphs, rows
from tests.shared import needs
from tests.shared.compiled_functions import FUNCTIONS, run
from tests.shared.selection import families, of_this_week

# PyTorch's compilers warn of much that no test is about, and of more in each version.
pytestmark = [needs.compiler, pytest.mark.filterwarnings("ignore")]
BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)]


def outcome(function, **options):
    """The rows of the default mode, and the bits of a call or the line of its refusal."""
    with DeterministicMode(simulate="cuda", **options) as mode:
        try:
            result = list(function())
        except Exception as error:
            # Dynamo's own errors quote ours.
            lines = [line for line in str(error).splitlines() if "deterministic" in line]
            result = type(error), lines[:1] or str(error)
    return rows(mode), result


def assert_same(compiled, eager):
    """A call gives what eager code gives; one that raises does so by a row that refuses it."""
    (compiled_rows, result), (eager_rows, expected) = compiled, eager
    if isinstance(expected, tuple):
        assert result == expected
        assert "error" in {action for _, action, *_ in eager_rows}
    else:
        assert not isinstance(result, tuple), result
        assert same_bits(result, expected)
    assert compiled_rows == eager_rows


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", of_this_week(FUNCTIONS))
def test_functions(name, backend):
    """Compiled, functions that users write are refused only where eager code is.

    Rows, lines and bits are those of eager code, forward and backward; and the bits are the same in
    any schedule, of addends whose sums are rounded.
    """
    if backend == "inductor" and TORCH_VERSION < (2, 10) and SINCE_2_10.fullmatch(name):
        pytest.skip("the Inductor of PyTorch 2.9 does not compile it without the mode either")
    function, make = FUNCTIONS[name]
    arguments = make()
    eager = outcome(lambda: run(function, arguments))
    compiled = torch.compile(function, backend=backend)
    got = outcome(lambda: run(compiled, arguments))
    if backend == "inductor" and name in UNEQUAL:
        assert got[0] == eager[0]
    else:
        assert_same(got, eager)
    compilations, shuffled = graphs(), []
    arguments = [x * 0.7 if x.is_floating_point() else x for x in arguments]
    for seed in range(5) if backend == "inductor" else ():
        shuffled.append(outcome(lambda: run(compiled, arguments), schedule_seed=seed))
        assert shuffled[-1][0] == eager[0]
        assert_same(shuffled[-1], shuffled[0])
    assert graphs() == compilations


def dense(result):
    return [each.to_dense() if is_sparse(each) else each for each in tensors_of(result)]


def is_sparse(tensor):
    return tensor.layout is not torch.strided


def forward_samples():
    """Samples of operators that users call, in one dtype each, of the families of this run."""
    return {
        f"{family}-{sample.op.partition('::')[2]}-{sample.name}": sample
        for family in families()
        for sample in samples_of(family).cases
        if sample.device == "cuda"
        and "backward" not in sample.op
        and (func := resolve(sample.op)) is not None
        and func.namespace == "aten"
        and func._schema.returns
    }


SAMPLES = forward_samples()


@pytest.mark.parametrize("name", of_this_week(SAMPLES))
def test_samples(name):
    """Each forward operator that a row lists, compiled on its samples."""
    sample = SAMPLES[name]
    arguments = sample.arguments(sample.dtypes[0])
    function = resolve(sample.op)

    def program(**arguments):
        return function(**arguments)

    try:
        program(**arguments)
    except RuntimeError as error:
        pytest.skip(f"ATen has no CPU kernel for it: {str(error)[:60]}")
    eager = outcome(lambda: dense(program(**arguments)))
    compiled = torch.compile(program, backend="aot_eager", dynamic=False)
    got = outcome(lambda: dense(compiled(**arguments)))
    assert_same(got, eager)
