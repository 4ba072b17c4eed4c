"""A lock: what is written of a run, and how a run is held to it."""

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import detmode
from detmode.cli.commands import run as run_command
from detmode.environment.doctor import distributed_runs, numerics, processes
from detmode.environment.inductor import OPTIONS
from detmode.environment.known import SETTINGS, how_to_set, setting
from detmode.environment.lock import lock_file
from detmode.environment.lock.autotuners import _picked
from detmode.environment.lock.choices import Choices
from detmode.environment.lock.drift import DriftError, differences, drift
from detmode.environment.lock.here import lock_of
from detmode.process.files import FileError
from detmode.rules import default_rules

Run = Callable[..., subprocess.CompletedProcess[str]]

PROGRAM = """
import sys, torch, detmode
detmode.seed_everything(int(sys.argv[1]))
print(torch.rand(3).sum())
"""


UNCHECKED = "not checked: no call ran on a GPU"


@pytest.fixture
def locked(run_command: Run, tmp_path: Path) -> Path:
    """The lock of a run of the program with seed 0."""
    (tmp_path / "train.py").write_text(PROGRAM)
    written = run_command("run", "--quiet", "--write-lock", "train.py", "0")
    assert written.returncode == 0, written.stderr
    return tmp_path / "detmode.lock"


def test_a_run_of_its_own_lock(locked: Path, run_command: Run) -> None:
    """The same program runs green under the lock; the file is sorted, and a second is the same."""
    content = locked.read_text()
    again = run_command("run", "--quiet", "--locked", "train.py", "0")
    assert (again.returncode, again.stderr.strip()) == (0, UNCHECKED)
    assert run_command("run", "--quiet", "--write-lock", "train.py", "0").returncode == 0
    assert locked.read_text() == content
    sections = lock_file.read(locked)
    assert sorted(sections) == list(sections)
    assert all(sorted(section) == list(section) for section in sections.values())
    assert sections["versions"]["torch"] == torch.__version__
    assert {path.name for path in locked.parent.iterdir()} == {"train.py", "detmode.lock"}


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message of a command is wrapped."""
    monkeypatch.setenv("COLUMNS", "1000")


def refused(found: subprocess.CompletedProcess[str], name: str, remedy: str) -> None:
    """A run that did not start, for one reason."""
    assert found.returncode == 1
    assert not found.stdout
    difference, verdict = found.stderr.splitlines()
    assert difference.startswith(f"detmode: {name}: locked ")
    assert difference.endswith(f"; {remedy}")
    assert verdict == ("detmode: refused: 1 choice not as in detmode.lock; --locked=warn goes on")


def test_drifts_before_the_start(
    locked: Path, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version, variable, setting or table is refused by name, before the program starts."""
    run, before = ("run", "--quiet", "--locked", "train.py", "0"), detmode.__version__
    with monkeypatch.context() as patch:
        patch.setattr(detmode, "__version__", "9.9")
        remedy = f"pip install detmode=={before}"
        refused(run_command(*run), "version of detmode", remedy)
    with monkeypatch.context() as patch:
        patch.setenv("NVIDIA_TF32_OVERRIDE", "0")
        found = run_command(*run)
        refused(found, "NVIDIA_TF32_OVERRIDE", "unset NVIDIA_TF32_OVERRIDE")
        warned = run_command("run", "--quiet", "--locked=warn", "train.py", "0")
        assert (warned.returncode, len(warned.stdout.splitlines())) == (0, 1)
        assert "NVIDIA_TF32_OVERRIDE: locked not set, here 0" in warned.stderr
    matmul = torch.backends.cuda.matmul
    allowed = matmul.allow_bf16_reduced_precision_reduction
    name = "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction"
    try:
        matmul.allow_bf16_reduced_precision_reduction = not allowed
        refused(run_command(*run), name, f"{name} = {allowed}")
    finally:
        matmul.allow_bf16_reduced_precision_reduction = allowed
    with monkeypatch.context() as patch:
        smaller = default_rules().only(lambda row: row.family != "index")
        patch.setitem(default_rules().__dict__, "fingerprint", smaller.fingerprint)
        remedy = "use the same detmode and the same packages with rules"
        refused(run_command(*run), "rule table", remedy)
    assert run_command(*run).returncode == 0


def test_a_refused_run_leaves_no_earlier_report(locked: Path, run_command: Run) -> None:
    """The file of a run that did not start says so, and has no green verdict."""
    run = ("run", "--quiet", "-o", "report.json", "--simulate", "cuda")
    run_command(*run, "-c", "import torch; torch.ones(2) + 1")
    report = locked.parent / "report.json"
    assert json.loads(report.read_text())["verdict"].startswith("deterministic")
    assert run_command(*run, "--locked", "train.py", "0").returncode == 1
    verdict = json.loads(report.read_text())["verdict"]
    assert verdict.startswith("not finished: refused: 1 choice not as in detmode.lock; until then:")


def test_options_of_the_mode_are_locked(locked: Path, run_command: Run) -> None:
    """Another policy is another run."""
    found = run_command("run", "--quiet", "--no-substitute", "--locked", "train.py", "0")
    refused(found, "options of the mode", "run with the same options: none")
    with_gpu = drift("run", "mode", "DeterministicMode(simulate='cuda')", "DeterministicMode()")
    assert with_gpu.remedy == "run with the same options: --simulate cuda"


def test_drifts_of_the_program(locked: Path, run_command: Run, tmp_path: Path) -> None:
    """Another seed is refused at the line that gives it; what is left undone, at the end."""
    found = run_command("run", "--quiet", "--locked", "train.py", "1")
    assert (found.returncode, found.stdout) == (1, "")
    assert 'train.py", line 3' in found.stderr
    assert "DriftError: seed of python: locked 0 (state " in found.stderr
    assert ", here 1 (state " in found.stderr
    warned = run_command("run", "--quiet", "--locked=warn", "train.py", "1")
    assert warned.returncode == 0
    assert warned.stderr.count("detmode: seed of ") == 3
    (tmp_path / "train.py").write_text(PROGRAM.replace("detmode.seed_everything", "str"))
    found = run_command("run", "--quiet", "--locked", "train.py", "0")
    assert found.returncode == 1
    assert found.stderr.count("here not seeded") == 3


def test_settings_that_the_program_makes(run_command: Run, tmp_path: Path) -> None:
    """They are locked as the program leaves them: cuDNN's benchmark is refused by name."""
    (tmp_path / "train.py").write_text(
        "import sys, torch\ntorch.backends.cudnn.benchmark = sys.argv[1] == 'on'\n"
    )
    name = "torch.backends.cudnn.benchmark"
    assert run_command("run", "--quiet", "--write-lock", "train.py", "off").returncode == 0
    found = run_command("run", "--quiet", "--locked", "train.py", "on")
    assert found.returncode == 1
    assert f"{name} at the end of the program: locked as at the start, here True" in found.stderr
    assert run_command("run", "--quiet", "--write-lock", "train.py", "on").returncode == 0
    assert run_command("run", "--quiet", "--locked", "train.py", "on").returncode == 0
    found = run_command("run", "--quiet", "--locked", "train.py", "off")
    assert found.returncode == 1
    assert f"in the program: {name} = True" in found.stderr


def test_the_environment_alone(
    run_command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`detmode lock` has what `run --locked` compares first, and `doctor --against` shows it."""
    assert run_command("lock", "-o", "here.lock").returncode == 0
    run = ("run", "--quiet", "--locked", "--lock", "here.lock", "-c", "import torch")
    assert run_command(*run).returncode == 0
    against = ("doctor", "--against", "here.lock", "--format", "json")
    assert "locked: " not in run_command(*against).stdout
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    found = run_command(*against)
    assert found.returncode == 1
    assert '"effect": "locked: not set"' in found.stdout
    assert '"remedy": "unset TORCHINDUCTOR_MAX_AUTOTUNE"' in found.stdout
    assert run_command(*run).returncode == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory; write one with"),
        (b"format = 2", "is not a lock of format 1"),
        (b"format = 1\nversions = 3", "'versions' is not a table of choices"),
        (b"format = 1\n[versions]\ntorch = 1979-05-27", "is not a table of choices"),
        (b"= = =", "is not a lock, which is TOML"),
        (b"\xff", "is not a lock, which is TOML"),
        (b"a=" + b"[" * 100_000, "is not a lock, which is TOML"),
    ],
)
def test_no_lock(content: bytes | None, reason: str, run_command: Run, tmp_path: Path) -> None:
    """A file that is no lock is said on one line, before the program starts."""
    if content is not None:
        (tmp_path / "detmode.lock").write_bytes(content)
    found = run_command("run", "--locked", "-c", "print(1)")
    assert (found.returncode, found.stdout) == (2, "")
    (line,) = found.stderr.splitlines()
    assert reason in line


def test_nothing_is_half_written(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the old lock, and nothing beside it."""
    content = locked.read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(FileError, match="No space left"):
        lock_file.write({}, locked)
    assert locked.read_text() == content
    assert len(list(locked.parent.iterdir())) == 2


def test_what_fails_is_not_locked(run_command: Run, tmp_path: Path) -> None:
    """A program that fails has not made all its choices."""
    found = run_command("run", "--quiet", "--write-lock", "-c", "raise SystemExit(3)")
    assert found.returncode == 3
    assert "note: no detmode.lock, as the program failed" in found.stderr
    assert not (tmp_path / "detmode.lock").exists()


def test_the_doctor_and_locks_share_their_names() -> None:
    """The doctor reads no variable past the list, and the list's settings can be set and read."""
    for module in (numerics, processes, distributed_runs):
        assert "os.environ" not in Path(module.__file__).read_text(), module.__name__
    assert len(OPTIONS) > 10
    for name in SETTINGS:
        value = setting(name)
        # Setting the flag loads the compiler.
        if value is not None and "deterministic_algorithms" not in name:
            exec(how_to_set(name, value), {"torch": torch})
            assert setting(name) == value


def test_recordings_have_locks(tmp_path: Path) -> None:
    """A recording keeps one, and `diff` begins with what differs between them."""
    for seed in (0, 1):
        with detmode.record(tmp_path / str(seed)):
            torch.manual_seed(seed)
            torch.rand(2)
    assert lock_file.read(tmp_path / "0" / "detmode.lock")["generators"].keys() == {"torch"}
    comparison = detmode.diff(tmp_path / "0", tmp_path / "1")
    ((name, first, second),) = comparison.started
    assert (name, first[:2], second[:2]) == ("seed of torch", "0 ", "1 ")
    lines = str(comparison).splitlines()[1:]
    assert any(line.startswith("started with different seed of torch: 0") for line in lines[:3])
    (tmp_path / "1" / "detmode.lock").write_text("no lock")
    with pytest.raises(detmode.TraceError, match="is not a lock"):
        detmode.diff(tmp_path / "0", tmp_path / "1")


def test_workers_are_not_the_program(tmp_path: Path) -> None:
    """A forked worker seeds itself by its number, which is no choice of the program."""
    lock, plain = {"generators": {}}, torch.manual_seed
    loader = torch.utils.data.DataLoader(torch.arange(2), num_workers=1)
    with Choices(lock):
        assert len([*loader]) == 2
        with pytest.raises(DriftError, match="seed of torch: locked not seeded, here 7 "):
            torch.manual_seed(7)
    assert torch.manual_seed is plain


class Kernel:
    def __init__(self, name: str) -> None:
        self.name = name


def test_picks_of_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pick is noted while somebody notes, a locked one is taken, and autotuners stay Triton's."""

    class Autotuner:
        def __init__(self) -> None:
            self.cache: dict[str, str] = {}
            self.configs, self.base_fn = ["narrow", "wide"], Kernel

        def run(self, key: str, fastest: str) -> str:
            if key not in self.cache:
                self.cache[key] = fastest
            return self.cache[key]

    module, plain = SimpleNamespace(Autotuner=Autotuner), Autotuner.run
    monkeypatch.setitem(sys.modules, "triton.runtime.autotuner", module)
    name = f"{Kernel.__module__}.{Kernel.__qualname__} 64"
    with Choices() as first, Choices() as second:
        assert Autotuner().run("64", "wide") == "wide"
    assert first.sections["triton"] == second.sections["triton"] == {name: "wide"}
    with Choices(first.sections):
        assert Autotuner().run("64", "narrow") == "wide"
    assert Autotuner.run is plain
    assert Autotuner().run("64", "narrow") == "narrow"


def test_picks_of_inductor() -> None:
    """The fastest kernel for an operator and its inputs is noted, and another one is refused."""
    node = SimpleNamespace(get_dtype=lambda: torch.float32, get_size=lambda: [2, 3])
    kernels = [Kernel(name) for name in ("extern_mm", "template_1")]

    def pick(*timings: float) -> None:
        _picked(dict(zip(kernels, timings)), "mm", [node, node], kernels, None)

    with Choices() as first:
        pick(2.0, 1.0)
    assert first.sections["inductor"] == {"mm(float32[2, 3], float32[2, 3])": "template_1"}
    with Choices(first.sections):
        pick(2.0, 1.0)
    with Choices(first.sections), pytest.raises(DriftError, match="here extern_mm"):
        pick(1.0, 2.0)


def test_ranks(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one writes the lock; others have seeds of their own, and compare all else."""
    monkeypatch.setattr(run_command, "rank_of", lambda: SimpleNamespace(number=1, world_size=2))
    content = locked.read_text()
    options = Namespace(lock=locked, locked=None, write_lock=True)
    writing = run_command._RunLock(options, detmode.DeterministicMode())
    with detmode.DeterministicMode(), writing.choices:
        torch.manual_seed(1)
    assert writing.end(0) == 0
    assert locked.read_text() == content
    sections = dict(lock_file.read(locked))
    lock_file.write({**sections, "run": {**sections["run"], "ranks": 2}}, locked)
    options = Namespace(lock=locked, locked="error", write_lock=False)
    comparing = run_command._RunLock(options, detmode.DeterministicMode())
    assert comparing.refusal is None
    with detmode.DeterministicMode(), comparing.choices:
        torch.manual_seed(1)
    assert comparing.end(0) == 0


AUTOTUNED = """
import sys, torch, triton, triton.language as tl
timings = map(float, sys.argv[1].split(","))
@triton.autotune(
    [triton.Config({"BLOCK": size}, num_warps=1) for size in map(int, sys.argv[2].split(","))],
    key=["n"], do_bench=lambda call, quantiles: [next(timings)] * 3,
)
@triton.jit
def scale(x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + offsets, tl.load(x + offsets, offsets < n) * 2, offsets < n)
x = torch.ones(int(sys.argv[3]))
for _ in range(2):
    scale[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.numel())
print(scale.best_config.kwargs["BLOCK"], len([*timings]), x.sum().item())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_configurations_of_triton_are_replayed(
    run_command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock's choice is taken without a timing; one that is not in it is refused by name."""
    pytest.importorskip("triton", reason="triton is not installed")
    (tmp_path / "tuned.py").write_text(AUTOTUNED)

    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def run(locking: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command("run", "--quiet", locking, "tuned.py", *arguments)

    found = run("--write-lock", "3,1,2", "16,32,64", "40")
    assert found.stdout == "32 0 160.0\n", found.stderr
    assert '"__main__.scale (40, ' in (tmp_path / "detmode.lock").read_text()
    # Timing would choose another.
    found = run("--locked", "1,2,3", "16,32,64", "40")
    assert (found.returncode, found.stdout) == (0, "32 3 160.0\n"), found.stderr
    for sizes, length, reason in (
        ("16,64,128", "40", "locked BLOCK: 32, "),
        ("16,32,64", "50", "locked not in it, "),
    ):
        found = run("--locked", "1,2,3", sizes, length)
        assert (found.returncode, found.stdout) == (1, "")
        name = f"Triton's configuration of __main__.scale ({length}, 'torch.float32')"
        assert f"DriftError: {name}: {reason}" in found.stderr
        assert ", here by timing; " in found.stderr


def test_a_program_that_catches_a_refusal(locked: Path, run_command: Run) -> None:
    """It goes on, and its run fails all the same: its bits are not those of the lock."""
    catching = PROGRAM.replace(
        "detmode.seed_everything(int(sys.argv[1]))",
        "try:\n    torch.manual_seed(int(sys.argv[1]))\nexcept RuntimeError:\n    pass",
    )
    (locked.parent / "train.py").write_text(catching)
    assert run_command("run", "--quiet", "--write-lock", "train.py", "0").returncode == 0
    found = run_command("run", "--quiet", "--locked", "train.py", "1")
    assert found.returncode == 1
    assert len(found.stdout.splitlines()) == 1
    assert run_command("run", "--quiet", "--locked", "train.py", "0").returncode == 0


def test_variables_of_cudnn_are_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer ones too, by the beginning of their names; not those that say where dumps lie."""
    monkeypatch.setenv("TORCH_CUDNN_V8_API_DISABLED", "1")
    monkeypatch.setenv("TORCH_CUDNN_NEW_DUMP_DIR", "/tmp")
    names = lock_of()["variables"].keys()
    assert "TORCH_CUDNN_V8_API_DISABLED" in names
    assert "TORCH_CUDNN_NEW_DUMP_DIR" not in names


def test_a_section_in_which_nothing_stands_says_something():
    """No seed in a lock is a choice, and a difference of its own; no version would allow any."""
    seeds = differences({"generators": {}}, {"generators": {"torch": 7}})
    assert [(item.name, item.locked) for item in seeds] == [("seed of torch", "not seeded")]
    (versions,) = differences({"versions": {}}, {"versions": {"torch": "2.13.0"}})
    assert (versions.name, versions.locked) == ("section [versions]", "nothing")
