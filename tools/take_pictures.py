"""Take the pictures of reports in ``docs/_static``: their pages in Chromium, light and dark.

The runs behind them are small and are made here: a training under the mode, with the CUDA kernels
on the host, and two recordings of it, one with another number of PyTorch's threads.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from torch import nn

import detmode
from detmode import DeterministicMode
from detmode.reports.shown import Shown

ROOT = Path(__file__).resolve().parents[1]
STATIC = ROOT / "docs" / "_static"
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SCHEMES = {"dark": 0, "light": 1}
SIZE = 1200, 900
_COLOURS = 64
"""Of a picture: a page has few, and the file is a third as large."""


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


def picture(html: str, file: Path, scheme: str, size: tuple[int, int] = SIZE) -> None:
    """Write the beginning of a page as a PNG of few colours.

    Args:
        html: the page.
        file: the picture.
        scheme: "light" or "dark".
        size: its width and height in pixels.
    """
    with tempfile.TemporaryDirectory() as folder:
        page, taken = Path(folder, "page.html"), Path(folder, "page.png")
        page.write_text(html, encoding="utf-8")
        window = f"--window-size={size[0]},{size[1]}"
        browse(page, f"--screenshot={taken}", window, scheme=scheme)
        with Image.open(taken) as image:
            image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(
                file, optimize=True
            )


class Segmenter(nn.Module):
    """A network with calls of every action."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(1, 8, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(8)
        self.grow = nn.Upsample(scale_factor=2, mode="bilinear")
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.grow(self.pool(self.encoder(images).relu())))


def train(steps: int = 12) -> None:
    detmode.seed_everything(0)
    model = Segmenter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        images = torch.rand(8, 1, 16, 16)
        labels = (images * 4).long().squeeze(1)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            torch.bincount(labels.flatten(), images.flatten())
            torch.histc(images)


def reports() -> dict[str, Callable[[], Shown]]:
    """The reports that are shown, by the names of their pictures."""
    return {"report": _of_mode, "diff": _of_two_runs}


def _of_mode() -> Shown:
    overrides = {"aten::bincount": "warn", "aten::histc": "allow"}
    with DeterministicMode(warn_only=True, simulate="cuda", overrides=overrides) as mode:
        train()
    return mode.report()


def _of_two_runs() -> Shown:
    threads, home = torch.get_num_threads(), Path.cwd()
    runs = "one-thread", "two-threads"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the page names the runs as they are named here
        for number, run in enumerate(runs, start=1):
            torch.set_num_threads(number)
            with detmode.record(run):
                train()
        compared = detmode.diff(*runs)
        os.chdir(home)
    torch.set_num_threads(threads)
    return compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="only these reports", metavar="NAME")
    names = parser.parse_args().names
    known = reports()
    if BROWSER is None or not known.keys() >= set(names):
        parser.error(f"names are {', '.join(known)}; Chromium must be on the PATH")
    for name in names or known:
        html = known[name]().to_html()
        for scheme in SCHEMES:
            picture(html, STATIC / f"{name}-{scheme}.png", scheme)


if __name__ == "__main__":
    main()
