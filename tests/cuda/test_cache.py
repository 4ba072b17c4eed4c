"""The cache of compiled code: what is run is what was compiled, and nobody else's."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from detmode.cuda import cache
from tests.shared.processes import run_forked

NAME = "code-0123.so"
NOBODY = 65534


class Made:
    """A compiler that stands in, and counts what it makes."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> tuple[bytes, str]:
        self.times += 1
        return b"machine code" * 100, "a note"


def content(kept: cache.CachedFile) -> bytes:
    return Path(kept.loaded_from).read_bytes()


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and a process that has kept and said nothing."""
    monkeypatch.setenv("DETMODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_private_root", None)
    monkeypatch.setattr(cache, "_said", set())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The cache's folder, with one file in it."""
    cache.take("host", NAME, Made())
    return tmp_path / "cache" / "host"


def other_name(file: Path) -> None:
    cache.take("host", "other-4567.so", lambda: (b"other code", "other note"))
    for suffix in ("", ".digest"):
        shutil.copy(f"{file.parent / 'other-4567.so'}{suffix}", f"{file}{suffix}")


def link(file: Path) -> None:
    file.rename(file.with_suffix(".moved"))
    file.symlink_to(file.with_suffix(".moved"))


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut_off": lambda file: os.truncate(file, 100),
    "empty": lambda file: os.truncate(file, 0),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"\0"),
    "one_bit": lambda file: file.write_bytes(b"l" + file.read_bytes()[1:]),
    "no_file": lambda file: file.unlink(),
    "no_digest": lambda file: Path(f"{file}.digest").unlink(),
    "empty_digest": lambda file: os.truncate(f"{file}.digest", 0),
    "other_note": lambda file: Path(f"{file}.digest").write_text(
        Path(f"{file}.digest").read_text() + "d"
    ),
    "other_name": other_name,
    "link": link,
    "pipe": pipe,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_damaged_is_made_again(damage: Callable[[Path], object], folder: Path) -> None:
    """A file that is not what was kept is never given, and is replaced; a whole one is not."""
    made = Made()
    assert content(cache.take("host", NAME, made)) == made()[0]
    assert made.times == 1
    damage(folder / NAME)
    for _ in range(2):
        kept = cache.take("host", NAME, made)
        assert (content(kept), kept.path, kept.note) == (made()[0], folder / NAME, "a note")
    assert made.times == 1 + 2 + 1
    assert not list(folder.glob(".*"))


def plant(folder: Path) -> None:
    """Put another's code in the place of ours, with its right digest."""
    planter = cache._Folder(folder)
    planter.keep(NAME, b"planted", "planted")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o1777])
def test_a_folder_that_others_may_write_is_refused(mode: int, folder: Path) -> None:
    """Nothing is taken from it or written to it; the reason is said once."""
    plant(folder)
    folder.chmod(mode)
    before = sorted(folder.iterdir())
    made = Made()
    with pytest.warns(RuntimeWarning, match=rf"others may write it \(mode {mode:04o}.*DETMODE_"):
        kept = cache.take("host", NAME, made)
    assert content(cache.take("host", NAME, made)) == content(kept) == made()[0]
    assert made.times == 2  # once here: the second take finds it in the private folder
    assert kept.path.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(folder.iterdir()) == before


def of_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)


@pytest.mark.parametrize(
    ("name", "spoil", "reason"),
    [
        ("", of_another_user, "belongs to another user"),
        (NAME, of_another_user, "belongs to another user"),
        (NAME, lambda path, _: path.chmod(0o666), "compiled again: others may write it"),
    ],
    ids=["folder_of_another", "file_of_another", "file_for_all"],
)
def test_what_others_may_have_written_is_refused(
    name: str, spoil: Callable[..., None], reason: str, folder: Path, monkeypatch
) -> None:
    """Be it the folder or a file, what others planted is not taken, and that is said; what is made
    again may be written by its owner alone.
    """
    plant(folder)
    spoil(folder / name, monkeypatch)
    with pytest.warns(RuntimeWarning, match=reason) as caught:
        kept = cache.take("host", NAME, Made())
    assert os.geteuid() != 0 or len(caught) == 1
    assert Path(kept.loaded_from).parent.stat().st_uid == os.getuid()
    assert kept.path.stat().st_mode & 0o022 == 0
    assert content(kept) == Made()()[0]


def test_no_umask_lets_others_write() -> None:
    """Folders that the cache makes can be read again, whatever the umask."""
    umask = os.umask(0)
    try:
        kept = cache.take("host", NAME, Made())
    finally:
        os.umask(umask)
    files = [kept.path.parent, *kept.path.parent.iterdir()]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o755, 0o644}


def test_a_link_to_the_cache_is_followed(folder: Path) -> None:
    """Home directories often are links; a link to a folder of another is still refused."""
    moved = folder.parent.with_name("moved")
    folder.parent.rename(moved)
    folder.parent.symlink_to(moved)
    made = Made()
    cache.take("host", NAME, made)
    assert made.times == 0
    (moved / "host").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="others may write it"):
        cache.take("host", NAME, made)


@pytest.mark.skipif(sys.platform != "linux", reason="by /proc/self/fd")
def test_what_was_verified_is_what_is_loaded(folder: Path) -> None:
    """A user who may rename the folder after the check cannot put other code in its place."""
    kept = cache.take("host", NAME, Made())
    folder.rename(folder.with_name("moved"))
    folder.mkdir()
    plant(folder)
    assert content(kept) == Made()()[0]


def test_code_beside_the_package_is_found(tmp_path: Path, monkeypatch) -> None:
    """It is taken without a cache, if nobody else may write it; a chosen cache is the only one."""
    beside = tmp_path / "beside" / "host"
    beside.mkdir(parents=True)
    plant(beside)
    monkeypatch.setattr(cache, "_PREBUILT", beside.parent)
    assert content(cache.take("host", NAME, Made())) == Made()()[0]
    monkeypatch.delenv("DETMODE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    kept = cache.take("host", NAME, Made())
    assert (content(kept), kept.is_new) == (b"planted", False)
    assert not (tmp_path / "home").exists()
    beside.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="prebuilt kernels cannot be used: .* others may write"):
        kept = cache.take("host", NAME, Made())
    assert (content(kept), kept.is_new) == (Made()()[0], True)


# Three processes need a file. Each tells that it compiles, and then waits until it may go on.
COMPETITORS = """
import os, signal, time
from detmode.cuda import cache

def start(name):
    tell, go = os.pipe(), os.pipe()
    def make():
        os.write(tell[1], b"!")
        os.read(go[0], 1)
        return name.encode(), ""
    process = os.fork()
    if process == 0:
        kept = cache.take("host", "code", make)
        os.write(1, f"{name} {kept.is_new} {open(kept.loaded_from).read()}\\n".encode())
        os._exit(0)
    return process, tell[0], go[1]

def begins(competitor):
    os.read(competitor[1], 1)

def waits(competitor):
    time.sleep(0.4)
    os.set_blocking(competitor[1], False)
    try:
        os.read(competitor[1], 1)
    except BlockingIOError:
        pass
    else:
        os.write(2, b"it compiles what another compiles")
        os.killpg(0, signal.SIGKILL)
    os.set_blocking(competitor[1], True)

first = start("first")
begins(first)
second = start("second")
waits(second)
os.kill(first[0], signal.SIGKILL)
begins(second)
third = start("third")
waits(third)
os.write(second[2], b"!")
for process, _, _ in (first, second, third):
    os.waitpid(process, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="by fork")
def test_one_process_compiles(folder: Path) -> None:
    """The others wait for its file, or compile it after its death, which leaves no lock."""
    run = run_forked("-c", [[COMPETITORS]], folder, timeout=100)
    assert (run.returncode, run.stderr) == (0, "")
    assert sorted(run.stdout.splitlines()) == ["second True second", "third False second"]
    assert not list(folder.glob("*.lock"))


def test_a_lock_that_cannot_be_had_stops_nobody(folder: Path, monkeypatch) -> None:
    """After a while a process compiles beside another that never ends."""
    monkeypatch.setattr(cache, "_PATIENCE", 0.1)
    made = Made()
    with cache._locked(cache._Folder(folder), "other"):
        kept = cache.take("host", "other", made)
    assert (content(kept), made.times) == (made()[0], 1)


PRIVATE = """
import os, sys, warnings
from pathlib import Path
from detmode.cuda import cache

warnings.simplefilter("ignore")
kept = cache.take("host", "code", lambda: (b"machine code", ""))
child = os.fork()
if child == 0:
    again = cache.take("host", "code", lambda: (b"other code", ""))
    sys.exit(Path(again.loaded_from).read_bytes() != b"machine code")
print(os.waitpid(child, 0)[1], Path(kept.loaded_from).read_text(), kept.path, sep="\\n")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="by fork")
def test_a_forked_child_leaves_the_private_folder(tmp_path: Path) -> None:
    """It finds what is there, and its end removes nothing; that of its parent does."""
    (tmp_path / "file").touch()
    variables = {"DETMODE_CACHE": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    run = run_forked("-c", [[PRIVATE]], tmp_path, timeout=100, **variables)
    assert run.returncode == 0, run.stderr
    status, content, path = run.stdout.splitlines()
    assert (status, content) == ("0", "machine code")
    assert path.startswith(str(tmp_path))
    assert not Path(path).parents[1].exists()


COMPILES = """
import os, sys, threading
from pathlib import Path
from types import SimpleNamespace
from detmode.cuda.host import library

begun, ended, made = threading.Event(), threading.Event(), []

def run(arguments):
    begun.set()
    ended.wait()
    Path(arguments[arguments.index("-o") + 1]).write_text("machine code")
    return SimpleNamespace(returncode=0)

def compile():
    made.append(library._compiled(SimpleNamespace(run=run), Path("kernels.cu"), "", (), ()))

thread = threading.Thread(target=compile)
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
ended.set()
thread.join()
print(made[0].decode())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="by fork")
def test_a_forked_child_leaves_what_is_compiled(tmp_path: Path) -> None:
    """Nor does its end take the folder in which a thread of its parent compiles."""
    run = run_forked("-c", [[COMPILES]], tmp_path, timeout=100, TMPDIR=str(tmp_path))
    assert run.stdout.strip() == "machine code", run.stderr
    assert list(tmp_path.iterdir()) == []


# What a user without rights meets. Root may write everything, and becomes a user without a home.
SCRIPT = """
import json, os, sys, tempfile, warnings
from pathlib import Path
import filelock  # while this user can read the standard library, which may be in root's home
from detmode.cuda import cache

root = Path(sys.argv[1])
tempfile.tempdir = str(root / "temporary")
was_root = os.geteuid() == 0
if was_root:
    os.setgroups([])
    os.setgid(54321)
    os.setuid(54321)

def take(name, times, **environment):
    for variable in ("DETMODE_CACHE", "XDG_CACHE_HOME", "HOME"):
        os.environ.pop(variable, None)
    os.environ.update(environment)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = []
        for _ in range(times):
            kept = cache.take("host", name, lambda: made.append(1) or (b"code", "note"))
    assert Path(kept.loaded_from).read_bytes() == b"code"
    return str(kept.path), len(made), [str(each.message) for each in caught]

chosen = {"DETMODE_CACHE": str(root / "cache")}
found = {
    "there": take("kept", 1, **chosen),
    "new": take("new", 2, **chosen),
    "home missing": take("another", 2, HOME=str(root / "cache" / "home")),
    "no home": take("third", 1) if was_root else None,
}
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
found["still there"] = [str(path) for path in (root / "temporary").glob("*/host/*")]
print(json.dumps(found))
"""


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that other users can reach, which those of pytest are not."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.thorough
def test_a_user_without_rights(
    open_path: Path, monkeypatch: pytest.MonkeyPatch, run_python: Callable[..., Any]
) -> None:
    """A read-only cache gives what it has; without a cache a private folder is used, and said.

    The private folder goes with its process, and not with one that it has forked.
    """
    monkeypatch.setenv("DETMODE_CACHE", str(open_path / "cache"))
    cache.take("host", "kept", lambda: (b"code", "note"))
    temporary = open_path / "temporary"
    temporary.mkdir()
    temporary.chmod(0o777)
    for folder in (open_path / "cache" / "host", open_path / "cache"):
        folder.chmod(0o555)
    run = run_python("-c", SCRIPT, str(open_path))
    for folder in (open_path / "cache", open_path / "cache" / "host"):
        folder.chmod(0o755)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["there"] == [str(open_path / "cache" / "host" / "kept"), 0, []]
    for scene, reason in (
        ("new", "host cannot be written: Permission denied"),
        ("home missing", "cannot be used: [Errno 13] Permission denied"),
        ("no home", "Could not determine home directory"),
    ):
        if found[scene] is None:
            continue
        path, made, said = found[scene]
        (text,) = said
        assert reason in text
        assert "set DETMODE_CACHE" in text
        assert (made, Path(path).parent.parent.parent) == (1, temporary)
    assert len(found["still there"]) >= 4
    assert not list(temporary.iterdir())
