"""Runs the tests with the Python of another Debian release, unpacked into a folder of its own.

``sudo python tools/debian_python.py forky FOLDER -- tests/mode -k interrupted``. What comes after
``--`` goes to pytest. Debian trixie has Python 3.13, forky 3.14. The folder is made by the first
call, with a virtual environment of several gigabytes, and used again by later ones. Needs root,
``debootstrap`` and ``unshare``.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
SCRIPTS = Path("/usr/share/debootstrap/scripts")
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "ca-certificates,g++,git,procps,python3,python3-dev,python3-venv"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
PYTHON = "/opt/detmode/bin/python"
# Mounts of a namespace are gone with its last process, however that ends.
INSIDE = """
mount --bind {project} {root}/project
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
exec chroot {root} sh -c 'cd /project && exec "$@"' sh "$@"
"""


def main() -> int:
    """Unpack, install what is missing, run pytest; returns its exit code."""
    options = _parser().parse_args()
    root: Path = options.folder.absolute()
    if not (root / "usr/bin/python3").exists():
        _unpack(options.release, root)
    if not (root / PYTHON[1:]).with_name("pytest").exists():
        _install(root, options.torch)
    return _run(root, PYTHON, "-m", "pytest", *options.arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("release", help="Debian's name of it: trixie, forky")
    parser.add_argument("folder", type=Path, help="is made, or used again")
    parser.add_argument("--torch", metavar="VERSION", help="in place of what constraints.txt pins")
    parser.add_argument("arguments", nargs="*", help="of pytest, after --")
    return parser


def _unpack(release: str, root: Path) -> None:
    missing = [name for name in ("debootstrap", "unshare") if shutil.which(name) is None]
    if missing:
        raise SystemExit(f"{' and '.join(missing)} not found: apt-get install debootstrap")
    # debootstrap has no script yet for a release that is newer than it; all of them are sid's.
    script = SCRIPTS / (release if (SCRIPTS / release).exists() else "sid")
    include = ["--variant=minbase", f"--include={PACKAGES}"]
    subprocess.run(["debootstrap", *include, release, root, MIRROR, script], check=True)
    (root / "project").mkdir()
    shutil.copy("/etc/hosts", root / "etc/hosts")  # ranks look up this machine's name
    # An index behind a proxy may have certificates that only this system knows.
    known = ssl.get_default_verify_paths().cafile
    if known is not None:
        shutil.copy(known, root / CERTIFICATES[1:])


def _install(root: Path, torch: str | None) -> None:
    constraints = (PROJECT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if torch is not None:
        ours = ("torch==", "triton==")  # each PyTorch has its Triton
        constraints = [line for line in constraints if not line.startswith(ours)]
        constraints.append(f"torch=={torch}")
    (root / "constraints.txt").write_text("\n".join(constraints), encoding="utf-8")
    for command in (
        ("/usr/bin/python3", "-m", "venv", str(Path(PYTHON).parents[1])),
        (PYTHON, "-m", "pip", "install", "--upgrade", "pip"),
        (PYTHON, "-m", "pip", "install", "-c", "/constraints.txt", "-e", ".", "--group", "tests"),
    ):
        if _run(root, *command):
            raise SystemExit(f"failed: {' '.join(command)}")


def _run(root: Path, *command: str) -> int:
    """Run a command in the release, in the project's folder; returns its exit code."""
    script = INSIDE.format(project=shlex.quote(str(PROJECT)), root=shlex.quote(str(root)))
    inside = ["sh", "-ec", script, "sh", *command]
    return subprocess.run(["unshare", "--mount", *inside], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
