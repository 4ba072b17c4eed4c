"""Which rows compiled code reaches, what it copies, and what is used again from caches."""

import fnmatch
import re

import pytest
import torch

import detmode
from detmode import DeterministicMode
from detmode.mode.audit.audit_mode import Audit
from detmode.mode.compiled.current import key_of
from detmode.mode.row_counter import RowCounter
from detmode.rules import default_rules
from detmode.table.rule import Allow
from detmode.table.rule_table import TORCH_VERSION, resolve
from detmode.verify.claims import same_bits
from tests.mode.compiled.test_compiled import COMPILED, rows
from tests.shared import needs
from tests.shared.compiled_functions import FUNCTIONS, run

NOT_REACHED = {
    "detmode::*": "only certain programs have them: test_programs",
    "*c10d*": "several processes call it",
    "symm_mem::*": "several processes call it",
    "torchvision::*": "a package of its own",
    "aten::*cudnn*": "no call on a CPU reaches cuDNN",
    "aten::_scaled_dot_product_*": "its kernels are CUDA's alone",
    "aten::_flash_attention_backward *": "its kernels are CUDA's alone",
    "aten::_efficient_attention_backward *": "its kernels are CUDA's alone",
    "aten::_convolution*": "autograd calls it below aten::convolution",
    "aten::_index_put_impl *": "aten::index_put calls it",
    "aten::adaptive_avg_pool3d_backward.grad_input *": "autograd calls the functional one",
    "aten::_embedding_bag_dense_backward *": "aten::_embedding_bag_backward calls it",
    "*cublas_workspace_unset*": "PyTorch 2.8 and 2.9 in a process without the variable",
    "*deterministic_flag(False)*": "the mode turns the flag on",
    "aten::resize *": "compiled code makes its own memory",
    "aten::empty_*": "compiled code makes its own memory",
    "aten::new_empty*": "compiled code makes its own memory",
    "aten::empty.memory_format *": "compiled code makes its own memory",
    "*quantized*": "the compilers take no quantized tensors",
}
"""Rows that no user's function reaches on a CPU, as globs of operator and condition, and why."""


# PyTorch's compilers warn of much that no test is about, and of more in each version.
@pytest.mark.filterwarnings("ignore")
def test_every_row_is_reached(monkeypatch):
    """The functions that are compiled reach each row of the table that may hold on CUDA."""
    reached = set()
    count = RowCounter.count

    def note(counter, call, decision):
        if call.row is not None:
            reached.add(call.row.rule)
        return count(counter, call, decision)

    monkeypatch.setattr(RowCounter, "count", note)
    for function, make in FUNCTIONS.values():
        with Audit():
            run(function, make())
    missing = [
        f"{rule.op} {rule.when}"
        for rule in (row.rule for row in default_rules())
        if rule.holds_for(TORCH_VERSION)
        and resolve(rule.op) is not None
        and not isinstance(rule.action, Allow)
        and "cuda" in (rule.when.devices or {"cuda"})
        and rule not in reached
        and not any(fnmatch.fnmatch(f"{rule.op} {rule.when}", each) for each in NOT_REACHED)
    ]
    assert missing == []


def written(x, index, source):
    """Writes to intermediate tensors and to its argument, in place."""
    rows = index[:, None].expand(-1, 5)
    made = [x * factor for factor in range(2, 10)]
    made[0].index_put_((index,), source, accumulate=True)
    made[1].index_add_(0, index, source)
    made[2].scatter_add_(0, rows, source)
    made[3].scatter_(0, rows, source)
    made[4].scatter_reduce_(0, rows, source, "amax")
    made[5].index_copy_(0, index, source)
    made[6].put_(index, source[:, 0], accumulate=True)
    made[7].index_reduce_(0, index, source, "prod")
    x.scatter_add_(0, rows, source)
    return made


def copies(code):
    """Return the number of tensors of the shape of ``x`` that the code and its calls allocate."""
    made_by_calls = re.findall(r"= (?:torch\.ops\.)?(?:aten|detmode_twin)\.(\w+)\.", code)
    return code.count("= empty_strided_cpu((8, 5)") + len(made_by_calls)


@needs.compiler
@COMPILED
@pytest.mark.thorough
# The compiler warns, of Python and of itself, by version.
@pytest.mark.filterwarnings("ignore")
def test_what_is_written_in_place_is_not_copied():
    """The code allocates no tensor more than PyTorch's own, and the bits are those of eager."""
    from torch._inductor.utils import run_and_get_code

    x, index, source = FUNCTIONS["index_add"][1]()
    expected = x.clone()
    with DeterministicMode(simulate="cuda") as eager:
        results = written(expected, index, source)
    code, found = {}, x.clone()
    with torch._inductor.config.patch(force_disable_caches=True):
        with DeterministicMode(simulate="cuda") as mode:
            got, code["inside"] = run_and_get_code(torch.compile(written), found, index, source)
        torch._dynamo.reset()
        code["outside"] = run_and_get_code(torch.compile(written), x.clone(), index, source)[1]
    assert same_bits([*got, found], [*results, expected])
    assert rows(mode) == rows(eager)
    assert copies("".join(code["inside"])) <= copies("".join(code["outside"]))


@needs.compiler
@COMPILED
# The compiler warns, of Python and of itself, by version.
@pytest.mark.filterwarnings("ignore")
def test_what_is_read_as_well_is_not_written_in_place():
    """A tensor that is also the source of what is written to it keeps its values meanwhile."""
    from torch._inductor.utils import run_and_get_code

    def twice(x, index):
        made = [x * 2, x * 3]
        added = made[0].index_add(0, index, made[0][: len(index)])
        return added, made[1].index_put((index,), made[1][: len(index)], accumulate=True)

    x, index, _ = FUNCTIONS["index_add"][1]()
    caches = torch._inductor.config.patch(force_disable_caches=True)
    with DeterministicMode(simulate="cuda"), caches:
        got, codes = run_and_get_code(torch.compile(twice), x, index[:8])
        assert same_bits(got, twice(x, index[:8]))
    # The names of the in-place operators.
    assert not any(name in code for code in codes for name in ("index_add___", "index_put___"))


@COMPILED
def test_each_version_has_code_of_its_own(monkeypatch):
    """A newer detmode may decide otherwise on the same call: code of an older one is not used."""
    keys = [key_of(DeterministicMode()), key_of(DeterministicMode())]
    monkeypatch.setattr(detmode, "__version__", "0.0")
    keys.append(key_of(DeterministicMode()))
    assert keys[0] == keys[1] != keys[2]


CACHED = """
import sys, torch, detmode
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 4)

    def forward(self, index, image):
        large = nn.functional.interpolate(image, size=(6, 6), mode="bilinear")
        return image.new_zeros(4, 4).index_add(0, index % 4, self.words(index)).sum() + large.sum()

torch.manual_seed(0)
net, given = Net(), (torch.arange(20) % 9, torch.randn(1, 1, 3, 3, requires_grad=True))
counters = torch._dynamo.utils.counters["aot_autograd"]
for arguments in sys.argv[1:]:
    torch._dynamo.reset()
    counters.clear()
    net.zero_grad()
    given[1].grad = None
    with detmode.DeterministicMode(True, **eval(arguments)) as mode:
        loss = torch.compile(net)(*given)
        loss.backward()
    values = [value.detach().numpy().tobytes().hex() for value in (loss, given[1].grad)]
    rows = [(row.overload, row.action, row.site, row.count, row.module) for row in mode.records]
    print(counters["autograd_cache_hit"], (values, rows))
"""


@needs.compiler
@COMPILED
@pytest.mark.thorough
def test_code_from_the_caches_of_an_earlier_process(run_python, tmp_path):
    """Cold and warm caches give the same bits and report, forward and backward.

    Code of other versions, lines, overrides or devices is not used; that of other arguments is.
    """
    program = tmp_path / "program.py"

    def run(*modes, text=CACHED):
        program.write_text(text)
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
        done = run_python("program.py", *map(repr, modes), **cache)
        assert done.returncode == 0, done.stderr
        return [line.split(" ", 1) for line in done.stdout.splitlines()]

    mode = {"simulate": "cuda"}
    told = {**mode, "overrides": {"aten::index_add": "warn"}}
    cold, *_ = run(mode)
    warm, refused, overridden, plain = run(mode, {**mode, "substitute": False}, told, {})
    moved, *_ = run(mode, text=f"\n{CACHED}")
    newer, *_ = run(mode, text=CACHED.replace("nn\n", "nn; detmode.__version__ = 'newer'\n", 1))
    hits = [each[0] for each in (cold, warm, refused, overridden, plain, moved, newer)]
    assert hits == ["0", "1", "1", "0", "0", "0", "0"]
    assert warm[1] == cold[1]
    assert "('aten::index_add.default', 'substitute'" in cold[1]
    assert "('aten::index_add.default', 'warn'" in overridden[1]
    assert "index_add" not in plain[1]
    assert moved[1] == cold[1].replace("py:12", "py:13").replace("py:11", "py:12")
