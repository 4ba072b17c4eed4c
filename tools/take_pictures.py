"""Take the pictures in ``docs/_static``, light and dark, of reports and terminals.

Everything in them is real: the commands below run here, in a folder with the programs of
``tools/pictured``, and what they print or write is shown in Chromium.
"""

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, ImageChops, ImageOps
from rich.console import Console
from rich.terminal_theme import MONOKAI, TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
STATIC = ROOT / "docs" / "_static"
PROGRAMS = ROOT / "tools" / "pictured"
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SCHEMES = {"dark": 0, "light": 1}
SIZE = 1200, 800
COLUMNS = 100
_COLOURS = 256
"""Of a picture: a page has few, and the file is half as large."""
_MARGIN = 16
"""Around a terminal's text, in pixels."""

_RUN = "detmode run --simulate cuda --override aten::histc=allow"
_RECORDED = (
    "OMP_NUM_THREADS=1 detmode record --quiet -o one-thread train.py",
    "OMP_NUM_THREADS=2 detmode record --quiet -o two-threads train.py",
)
REPORTS: dict[str, tuple[str, ...]] = {
    "report": (f"{_RUN} --override aten::bincount=warn --warn-only -o page.html train.py",),
    "audit": ("detmode audit -o page.html train.py",),
    "diff": (*_RECORDED, "detmode diff -o page.html one-thread two-threads"),
    "probe": ("detmode probe -o page.html train.py",),
}
"""Commands by the picture's name; the last writes the page."""
TERMINALS: dict[str, tuple[str, ...]] = {
    "terminal-run": (f"{_RUN} train.py",),
    "terminal-diff": (*_RECORDED, "detmode diff one-thread two-threads"),
    "terminal-explain": ("detmode explain aten::index_add",),
    "terminal-pytest": ("pytest -q --detmode=strict --detmode-simulate=cuda test_model.py",),
    "terminal-certify": ("detmode certify kernels.py::total",),
}
"""Commands by the picture's name; the last is shown, with what it prints."""
NAMES = (*REPORTS, *TERMINALS)

_LIGHT = TerminalTheme(
    *((255, 255, 255), (27, 31, 36)),
    [(0, 0, 0), (179, 38, 30), (26, 107, 60), (138, 90, 0), (11, 92, 173), (122, 46, 157)]
    + [(0, 110, 120), (89, 99, 110)],
)
"""Rich's own light themes have a green and a yellow that are pale on white."""
_THEMES = {"dark": MONOKAI, "light": _LIGHT}
_TERMINAL = """<!DOCTYPE html>
<meta charset="utf-8">
<style>
  body {{ background: {background}; color: {foreground}; margin: 0; }}
  pre {{ display: inline-block; font: 14px/1.35 "DejaVu Sans Mono", monospace; margin: 0; }}
</style>
<pre>{code}</pre>
"""


def browse(page: Path, *options: str, scheme: str = "light") -> str:
    """Open a page in Chromium, which asks no network, and return what it prints.

    Args:
        page: the file.
        options: Chromium's: ``--dump-dom``, ``--screenshot=FILE``, ``--print-to-pdf=FILE``.
        scheme: "light" or "dark".
    """
    assert BROWSER is not None, "needs Chromium on the PATH"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        return subprocess.run(
            [
                *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
                *("--no-first-run", "--disable-background-networking", "--disable-sync"),
                *("--disable-component-update", "--hide-scrollbars", "--no-pdf-header-footer"),
                *("--virtual-time-budget=2000", f"--user-data-dir={profile}"),
                f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
                *(*options, page.as_uri()),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        ).stdout


def picture(page: Path, file: Path, scheme: str, *, whole: bool = False) -> None:
    """Write the beginning of a page as a PNG of few colours.

    Args:
        page: the file of the page.
        file: the picture.
        scheme: "light" or "dark".
        whole: all of a small page, without the room around it.
    """
    with tempfile.TemporaryDirectory() as folder:
        taken = Path(folder, "page.png")
        # Higher than the picture: at the bottom of a window Chromium leaves some rows black.
        browse(page, f"--screenshot={taken}", f"--window-size={SIZE[0]},2000", scheme=scheme)
        with Image.open(taken) as image:
            shown = image.convert("RGB").crop((0, 0, SIZE[0], 1900))
    shown = trimmed(shown) if whole else shown.crop((0, 0, *SIZE))
    shown.quantize(_COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


def trimmed(image: Image.Image) -> Image.Image:
    """The image without the room around what it shows, but for a margin of the same colour."""
    ground = image.getpixel((image.width - 1, image.height - 1))
    different = ImageChops.difference(image, Image.new("RGB", image.size, ground))
    return ImageOps.expand(image.crop(different.getbbox()), _MARGIN, ground)


@contextmanager
def folder_after(*commands: str) -> Iterator[Path]:
    """Yield a folder with the programs that are pictured, in which commands have been run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(PROGRAMS, folder, dirs_exist_ok=True)
        for command in commands:
            on_terminal(command, folder)
        yield folder


def on_terminal(command: str, folder: Path) -> str:
    """Return the output of a command on a terminal, with the escapes that colour it."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["script", "-qec", command, os.devnull],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": str(COLUMNS)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=240,
    )
    return done.stdout.decode().replace("\r\n", "\n").replace(f"{folder}{os.sep}", "")


def terminal(command: str, printed: str, scheme: str) -> str:
    """Return a page with a command and what it has printed."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.assemble("$ ", (command, "bold")), Text.from_ansi(printed), sep="\n")
    return console.export_html(theme=_THEMES[scheme], code_format=_TERMINAL, inline_styles=True)


@contextmanager
def shown(name: str) -> Iterator[dict[str, Path]]:
    """Run what a picture shows, and yield the page of each scheme."""
    *before, command = REPORTS.get(name) or TERMINALS[name]
    with folder_after(*before) as folder:
        printed = on_terminal(command, folder)
        pages = {scheme: folder / "page.html" for scheme in SCHEMES}
        if name in TERMINALS:
            pages = {scheme: folder / f"{scheme}.html" for scheme in SCHEMES}
            for scheme, page in pages.items():
                page.write_text(terminal(command, printed, scheme), encoding="utf-8")
        yield pages


def take(name: str, folder: Path = STATIC) -> None:
    """Write a picture, light and dark, to a folder."""
    with shown(name) as pages:
        for scheme, page in pages.items():
            file = folder / f"{name}-{scheme}.png"
            picture(page, file, scheme, whole=name in TERMINALS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="only these pictures", metavar="NAME")
    names = parser.parse_args().names or NAMES
    if BROWSER is None or not {*NAMES} >= {*names}:
        parser.error(f"names are {', '.join(NAMES)}; Chromium must be on the PATH")
    for name in names:
        take(name)


if __name__ == "__main__":
    main()
