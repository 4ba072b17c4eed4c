"""The layout of the package: what lies at its top, and which way imports run."""

import ast
import graphlib
import re
from functools import cache
from pathlib import Path

import pytest

import detmode

PACKAGE = Path(detmode.__file__).parent
FLOORS = (
    "cli",
    "testing",
    "integrations",
    "verify",
    "runs",
    "distributed",
    "mode",
    "rules",
    "reports",
    "sites",
    "table",
    "environment",
    "bits",
    "cuda",
    "process",
)
"""From the top to the bottom; a folder may import itself and those below it."""

FLOOR = {folder: number for number, folder in enumerate(FLOORS)}
TOP = {"__init__.py", "__init__.pyi", "__main__.py", "py.typed"}


FOLDERS = sorted({path.parent.name for path in PACKAGE.glob("*/__init__.py")})


@cache
def imported(path):
    """The modules of the package that a file imports, by full name, and the lines."""
    return tuple(_imported(path))


def _imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: import by the full name"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("detmode."):
                yield name, node.lineno


def sources(*folders):
    return [path for folder in folders for path in sorted((PACKAGE / folder).rglob("*.py"))]


def test_top():
    """The top of the package is its architecture: known folders, at most fifteen, and no module."""
    entries = [path for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert {path.name for path in entries if path.is_file()} == TOP
    # A folder that was moved may have left its compiled code.
    folders = {path.name for path in entries if path.is_dir() and any(path.glob("*.py"))}
    assert folders <= set(FLOOR), "a new folder belongs to a floor, or its files to a known folder"
    assert len(FLOOR) <= 15


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_run_down(folder):
    """No module imports one of a floor above its own, not even for types or inside a function."""
    upward = [
        f"{path.relative_to(PACKAGE)}:{line} imports {name}"
        for path in sources(folder)
        for name, line in imported(path)
        if name.split(".")[1] in FLOOR and FLOOR[name.split(".")[1]] < FLOOR[folder]
    ]
    assert not upward, "\n".join(upward)


def test_no_circle():
    """No module imports one that imports it in the end: inside no function, nor for types."""
    files = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        files[".".join(parts).removesuffix(".__init__")] = path
    imports = {}
    for module, path in files.items():
        names = [name for name, _ in imported(path)]
        known = {name if name in files else name.rpartition(".")[0] for name in names}
        imports[module] = known - {module}
    assert files.keys() >= set().union(*imports.values())
    graphlib.TopologicalSorter(imports).prepare()


_OPERATOR = re.compile(r"(?!detmode::)\w+::\w+(\.\w+)?")


def test_table_names_no_operator():
    """Rows and ``bits/effects.py`` say of operators by name; detmode has two of its own."""
    named = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} names {node.value}"
        for path in sources("table")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and _OPERATOR.fullmatch(str(node.value))
    ]
    assert not named, "\n".join(named)


def test_families_import_no_family():
    """Code that two families need is a launch of ``cuda/rows`` or a part of ``table``."""
    strangers = []
    for path in sources("rules"):
        family = path.relative_to(PACKAGE / "rules").parts[0]
        for name, line in imported(path):
            parts = name.split(".")
            if parts[1] == "rules" and len(parts) > 2 and parts[2] != family:
                strangers.append(f"{path.relative_to(PACKAGE)}:{line} imports {name}")
    assert not strangers, "\n".join(strangers)


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_say_what_they_are(folder):
    """Each folder's ``__init__`` says what it is and what it may import."""
    tree = ast.parse((PACKAGE / folder / "__init__.py").read_text(encoding="utf-8"))
    about = ast.get_docstring(tree) or ""
    assert "import" in about, f"detmode/{folder}/__init__.py: say what the folder may import"


def test_one_meaning_for_a_class_name():
    """No two modules define a public class of the same name.

    Integrations may: each is imported from the module of its library, and means the same there.
    """
    found = {}
    for path in sources(*(FLOOR.keys() - {"integrations"})):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert not twice


REACHES = {
    "os._exit",  # Python's
    "sparse._values",
    "tensor._values",
    "FLAG._active",  # each native call reads them: a call of a method would cost 3 %
    "FLAG._waiting",
}
"""Attributes that are private to an object of another module, and used all the same."""


def private_names(path):
    """The private names that the classes of a file define."""
    names = set()
    for cls in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for node in ast.walk(cls) if isinstance(cls, ast.ClassDef) else ():
            if isinstance(node, ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store):
                names.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return {name for name in names if name.startswith("_") and not name.endswith("_")}


def test_private_is_private():
    """No module uses what is private to an object of another one: a level, a mode, a setting."""
    private = {path: private_names(path) for path in PACKAGE.rglob("*.py")}
    names, reaches = set().union(*private.values()), []
    for path in private:
        foreign = names - private[path]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in foreign:
                text = ast.unparse(node)
                if not text.startswith(("self._", "cls._", "super()._", "torch.")):
                    reaches.append((text, f"{path.relative_to(PACKAGE)}:{node.lineno}: {text}"))
    assert not [place for text, place in sorted(reaches) if text not in REACHES]
    assert {text for text, _ in reaches} == REACHES, "a reach that is no more need not be allowed"
