"""Programs that run under detmode: what is said of them, to whatever end they come."""

import json
import os
import sys

import pytest
import torch

from detmode.cli.locks import ENVIRONMENT
from detmode.environment.cuda_on_cpu import cuda_on_cpu
from tests.shared import needs
from tests.shared.processes import run_forked
from tests.shared.selection import todays_forms

INDEX_ADD = "torch.zeros(3).index_add(0, torch.tensor([1, 1]), torch.ones(2))"
PROGRAM = f"""
import os, signal, sys, threading, time, torch
from concurrent.futures import ThreadPoolExecutor
def work(): {INDEX_ADD}
print("begun", flush=True)
"""
SIMULATED = ("detmode", "run", "--simulate", "cuda", "-o", "report.json", "script.py")


@pytest.fixture
def report_of(tmp_path):
    """Runs a program in a process of its own; returns its exit code and its report."""

    def run(last):
        (tmp_path / "script.py").write_text(PROGRAM + last)
        (tmp_path / "report.json").write_text("of an earlier run")
        done = run_forked("-m", [SIMULATED], tmp_path, timeout=100, **ENVIRONMENT)
        assert done.stdout == "begun\n", done.stderr
        return done.returncode, json.loads((tmp_path / "report.json").read_text())

    return run


@pytest.mark.thorough
@needs.compiler
@pytest.mark.parametrize(
    "last",
    todays_forms(
        [
            pytest.param(
                "threading.Thread(target=lambda: (time.sleep(0.1), work())).start()", id="thread"
            ),
            pytest.param(
                "ThreadPoolExecutor().submit(lambda: (time.sleep(0.1), work()))", id="pool"
            ),
            pytest.param(
                "threading.Thread(target=lambda: (time.sleep(0.1), work())).start(); sys.exit()",
                id="exit",
            ),
        ]
    ),
)
def test_a_program_runs_until_its_threads_end(report_of, last):
    """Threads that are no daemons go on after the last line, under the mode, as in Python."""
    code, report = report_of(last)
    assert code == 0
    assert [(row["action"], row["count"]) for row in report["rows"]] == [("substitute", 1)]
    assert report["verdict"].startswith("not checked: the order of the calls of 1 other thread")


@pytest.mark.thorough
@needs.compiler
@pytest.mark.parametrize(
    ("last", "code", "failure"),
    todays_forms(
        [
            pytest.param("work(); os._exit(3)", 3, "os._exit(3) at script.py:6", id="os._exit"),
            pytest.param("work(); os._exit(0)", 0, None, id="os._exit of success"),
            pytest.param(
                "work(); threading.Thread(target=os._exit, args=(4,)).start(); time.sleep(60)",
                4,
                "os._exit(4)",
                id="os._exit in a thread",
            ),
            pytest.param(
                "work(); os.execvp('true', ['true'])",
                0,
                "os.execv at script.py:6, after which detmode does not follow the program",
                id="exec",
            ),
            pytest.param(
                "work(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
                -15,
                "SIGTERM",
                id="SIGTERM",
                marks=needs.posix,
            ),
            pytest.param("work(); 1 / 0", 1, "ZeroDivisionError at script.py:6", id="error"),
            pytest.param("work(); sys.exit(5)", 5, "exit code 5", id="exit code"),
        ]
    ),
)
def test_a_program_that_ends_itself_has_a_report(report_of, last, code, failure):
    """Also where Python runs nothing more: a report of an earlier run does not stay."""
    ended, report = report_of(last)
    assert ended == code
    assert [row["count"] for row in report["rows"]] == [1]
    begin = f"not finished: {failure}; until then: deterministic" if failure else "deterministic"
    assert report["verdict"].startswith(begin)


@needs.compiler
@pytest.mark.skipif(os.name != "posix", reason="Windows executes files by their names")
def test_what_cannot_be_executed_ends_the_report_once(report_of):
    """A program that goes on after an exec that fails ends as it likes; its report is given."""
    code, report = report_of(
        "work()\nopen('bad', 'w').write('no program'); os.chmod('bad', 0o755)\n"
        "try: os.execv('bad', ['bad'])\nexcept OSError: work()"
    )
    assert code == 0
    assert report["failure"].startswith("os.execv at script.py:8, after which detmode does not")
    assert sum(row["count"] for row in report["rows"] if "index_add" in row["overload"]) == 1


@needs.posix
def test_sigterm_ends_a_program_that_could_not_become_another(report_of):
    """It has its report, so that nothing is left to wait for."""
    code, report = report_of(
        "open('bad', 'w').write('no program'); os.chmod('bad', 0o755)\n"
        "try: os.execv('bad', ['bad'])\n"
        "except OSError: os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)"
    )
    assert code == -15
    assert report["failure"].startswith("os.execv at script.py:7, after which detmode does not")


@needs.posix
def test_a_child_that_is_stopped_at_once(report_of):
    """It dies by the signal, as under Python; its parent does not take that for its own end."""
    code, report = report_of(
        """
import multiprocessing
for _ in range(30):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(90,))
    child.start()
    child.terminate()
    child.join()
    assert child.exitcode == -signal.SIGTERM
"""
    )
    assert (code, report.get("failure")) == (0, None)


def test_what_is_not_found_is_not_executed(report_of):
    """A program that catches the error of an exec goes on, and is reported on once."""
    code, report = report_of(
        "try: os.execvp('no-such-program', ['x'])\nexcept FileNotFoundError: work()"
    )
    assert (code, len(report["rows"])) == (0, 1)
    assert report["verdict"].startswith("deterministic")


@pytest.mark.parametrize("command", [("run", "--simulate", "cuda"), ("run",), ("audit",)])
def test_a_program_without_calls_is_not_checked(run_command, tmp_path, command):
    """Nor is one that only runs on the CPU, unless this simulates CUDA."""
    (tmp_path / "script.py").write_text("print('hello')")
    shown = run_command(*command, "--quiet", "script.py")
    assert "not checked: no call ran on a GPU" in shown.stdout + shown.stderr
    (tmp_path / "script.py").write_text("import torch; torch.ones(2) + 1")
    shown = run_command(*command, "--quiet", "script.py")
    word = "not checked" if command == ("run",) else "deterministic"
    assert word in shown.stdout + shown.stderr


def test_an_audit_of_attention_is_not_done(run_command, tmp_path):
    """CUDA runs other operators for it, which the audit has not met."""
    (tmp_path / "script.py").write_text(
        "import torch\nx = torch.ones(1, 2, 4, 8, requires_grad=True)\n"
        "torch.nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()"
    )
    shown = run_command("audit", "--quiet", "script.py").stdout
    assert shown.startswith("not checked: what CUDA runs for aten::"), shown


CLOSED = """
import os, runpy, sys
which, begins, *command = sys.argv[1:]
descriptor = int(which[-1])
if which.startswith("closed"):
    os.close(descriptor)
    setattr(sys, ("stdout", "stderr")[descriptor - 1], None)  # as Python does when it starts
else:
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, descriptor)
if begins == "anew":
    os.execv(sys.executable, [sys.executable, "-m", *command])
sys.argv[:] = command
runpy.run_module("detmode", run_name="__main__", alter_sys=True)
"""


@needs.posix
@pytest.mark.parametrize("begins", ["forked", pytest.param("anew", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("which", ["closed1", "closed2", "broken2"])
def test_closed_streams(tmp_path, which, begins):
    """The exit code is the program's own, and the report is in its file."""
    (tmp_path / "script.py").write_text("import torch, sys; torch.ones(2); sys.exit(7)")
    program = [[CLOSED, which, begins, *SIMULATED]]
    done = run_forked("-c", program, tmp_path, timeout=100, **ENVIRONMENT)
    assert done.returncode == 7, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"].startswith("not finished: exit code 7")
    assert done.stdout == ""


def test_recordings_lack_calls_of_other_threads(run_command, tmp_path):
    """They say so, and a comparison does not call the runs identical."""
    (tmp_path / "script.py").write_text(
        "import os, threading, torch\ntorch.ones(2)\n"
        "t = threading.Thread(target=lambda: torch.rand(2))\nt.start(); t.join()"
    )
    for name in ("first", "second"):
        done = run_command("record", "-o", name, "script.py")
        assert "not recorded: 1 call of other threads (aten::rand.default)" in done.stderr
    shown = run_command("diff", "first", "second").stdout
    assert shown.startswith("the runs are identical as far as recorded\n")
    assert "first lacks 1 call of other threads" in shown
    probed = run_command("probe", "script.py").stderr
    assert "not probed: 1 call of other threads (aten::rand.default)" in probed
    for name in ("none", "nothing"):
        run_command("record", "-o", name, "-c", "print('hello')")
    assert run_command("diff", "none", "nothing").stdout.startswith("not compared: neither run")
    assert "not checked: no call was probed" in run_command("probe", "-c", "1").stderr
    for name in ("failed", "too"):
        assert run_command("record", "-o", name, "-c", "import torch; torch.ones(2); 1/0")
    shown = run_command("diff", "failed", "too").stdout
    assert shown.startswith("the runs are identical as far as recorded\n")


TRAINING = """
import io, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

assert torch.cuda.is_available() and torch.cuda.device_count() == 1
torch.manual_seed(0)
torch.cuda.manual_seed_all(0)
torch.cuda.set_device(0)
device = torch.device("cuda:0")
amp = sys.argv[1:] == ["amp"]
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Upsample(scale_factor=2, mode="bilinear"),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
).cuda()
data = TensorDataset(torch.randn(8, 3, 8, 8), torch.randint(0, 4, (8,)))
loader = DataLoader(data, batch_size=4, pin_memory=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("cuda", enabled=amp)
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
begin.record()
for image, label in loader:
    image, label = image.to("cuda:0", non_blocking=True), label.cuda(non_blocking=True)
    optimizer.zero_grad()
    with torch.autocast("cuda", enabled=amp):
        loss = nn.functional.cross_entropy(model(image), label)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.zeros(4, device="cuda").index_add_(0, label, torch.ones(4, device=device))
end.record()
torch.cuda.synchronize()
assert begin.elapsed_time(end) >= 0 and torch.isfinite(loss)
file = io.BytesIO()
torch.save({"model": model.state_dict(), "random": torch.cuda.get_rng_state_all()}, file)
for place in ("cuda", device, {"cuda:0": "cuda:0"}, lambda storage, _: storage, None):
    file.seek(0)
    state = torch.load(file, map_location=place)
model.load_state_dict(state["model"])
torch.cuda.set_rng_state_all(state["random"])
print("trained")
"""


@needs.compiler
@pytest.mark.parametrize("arguments", [(), ("amp",)], ids=["float32", "amp"])
def test_training_that_names_cuda(run_command, tmp_path, arguments):
    """A script for a GPU runs where there is none, and meets the rules for CUDA."""
    (tmp_path / "train.py").write_text(TRAINING)
    audited = run_command("audit", "--cuda-on-cpu", "train.py", *arguments)
    assert (audited.returncode, audited.stderr.rpartition("trained")[1]) == (0, "trained")
    for shown in (
        audited.stdout,
        run_command("run", "--simulate", "cuda", "--cuda-on-cpu", "train.py", *arguments).stderr,
    ):
        assert shown.lstrip().startswith("deterministic"), shown
        assert "aten::upsample_bilinear2d_backward" in shown
        assert "aten::index_add_" in shown


@pytest.mark.skipif(torch.cuda.is_available(), reason="the program finds a GPU")
def test_the_hint_where_there_is_no_gpu(run_command, tmp_path):
    """An audit, and a run, of a program that names CUDA say how to run it on the CPU."""
    (tmp_path / "script.py").write_text("import torch\ntorch.ones(2).cuda()")
    for command in (("audit",), ("run", "--simulate", "cuda"), ("run",), ("record", "-o", "x")):
        done = run_command(*command, "script.py")
        assert done.returncode == 1
        assert "--cuda-on-cpu runs it on the CPU" in done.stderr
    assert "--simulate cuda --cuda-on-cpu" in run_command("run", "script.py").stderr
    wrong = run_command("run", "--cuda-on-cpu", "script.py")
    assert (wrong.returncode, wrong.stderr.count("give --simulate cuda as well")) == (2, 1)


def test_cuda_on_cpu_leaves_nothing_behind():
    """After the block, and after an error in it, PyTorch is as it was; in it, threads are in it."""
    before = {name: vars(torch.cuda)[name] for name in vars(torch.cuda)}
    others = (torch.load, torch.Generator, torch.nn.Module.to, torch.autocast.__init__)
    with pytest.raises(ZeroDivisionError), cuda_on_cpu():
        assert torch.ones(2, device="cuda:1").device.type == "cpu"
        assert torch.nn.Linear(2, 2).to(0).weight.device.type == "cpu"
        assert torch.ones(2).to(0).new(3).shape == (3,)
        generator = torch.Generator(device="cuda")
        assert isinstance(generator, torch.Generator)
        with torch.device("cuda"):
            assert torch.zeros(2).device.type == "cpu"
        torch.set_default_device("cuda")
        assert torch.rand(2, generator=generator).device.type == "cpu"
        torch.set_default_device(None)
        with pytest.raises(RuntimeError):
            torch.ones(2, device="no such device")
        1 / 0  # noqa: B018  # the error that ends the block
    assert {name: vars(torch.cuda)[name] for name in before} == before
    assert (torch.load, torch.Generator, torch.nn.Module.to, torch.autocast.__init__) == others
    assert sys.modules["torch.cuda"] is torch.cuda
