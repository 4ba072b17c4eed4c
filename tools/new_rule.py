"""Make a family from the template: ``python tools/new_rule.py NAME``.

The folder it writes is complete in form. What only its author knows is marked ``TODO``, and the
form tests name each one that is left.
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEMPLATES = Path(__file__).parent / "template"


def make_family(name: str, *, root: Path = ROOT, kernels: bool = True) -> Path:
    """Write the family's files and return its folder.

    Args:
        name: of the family, a Python name in lower case.
        root: the source tree that gets it.
        kernels: with a launcher and a `.cu` file; without, a family of Native and Refuse rows.

    Raises:
        ValueError: the name cannot be a family's.
        FileExistsError: there is such a family.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"a family's name is like 'upsample' or 'max_pool3d', got {name!r}")
    family = root / "detmode" / "rules" / name
    family.mkdir()
    for template in sorted((TEMPLATES / ("kernels" if kernels else "refused")).iterdir()):
        if template.is_file():
            text = template.read_text(encoding="utf-8").replace("FAMILY", name)
            (family / template.name).write_text(text, encoding="utf-8")
    return family


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="of the family, such as grid_sampler")
    parser.add_argument(
        "--no-kernels", action="store_true", help="only rows: PyTorch's own path, or a refusal"
    )
    options = parser.parse_args()
    try:
        family = make_family(options.name, kernels=not options.no_kernels)
    except FileExistsError:
        print(f"new_rule: error: there is a family {options.name!r} already", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"new_rule: error: {error}", file=sys.stderr)
        return 2
    print(f"{family.relative_to(ROOT)}: fill in what is marked TODO, then run")
    print(f"  python tools/generate_docs.py && tox -e tests -- -k {options.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
