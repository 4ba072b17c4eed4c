"""Other people's CUDA C++, made ready for the host runner.

Sources of detmode's own include its own headers and keep to a few types of parameters. What others
write includes CUDA's headers and the C++ library's, declares variables on the device, and takes
numbers of any type.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from detmode.cuda.host.dropped import with_dropped_results
from detmode.cuda.host.foreign_signature import ForeignSignature
from detmode.cuda.host.library import Library, compile
from detmode.cuda.signature import kernels_of
from detmode.cuda.source import INCLUDE_DIRECTORY, CompileError, Source

HEADERS = Path(__file__).parent / "cuda_headers"

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:<([^>]+)>|"([^"]+)")[^\n]*', re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_EMPTY = frozenset(
    (
        *("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "device_functions.h"),
        *("device_launch_parameters.h", "driver_types.h", "math_functions.h"),
        *("sm_20_atomic_functions.h", "vector_functions.h", "vector_types.h"),
    )
)
"""Headers of CUDA's for what every source has here anyway."""
_OF_C = (
    *("assert", "float", "inttypes", "limits", "math", "stddef", "stdint", "stdio", "stdlib"),
    "string",
)
_LIBRARY = frozenset(
    (
        *(f"{name}.h" for name in _OF_C),
        *(f"c{name}" for name in _OF_C),
        *("algorithm", "array", "functional", "initializer_list", "limits", "numeric", "tuple"),
        *("type_traits", "utility"),
    )
)
"""Headers of C++'s library that kernels may use."""
_ALWAYS = ("math.h", "stdint.h", "stdio.h")
"""Headers that nvcc includes by itself."""

_DYNAMIC = re.compile(
    r"\bextern\s+__shared__\s+([^;()]*?(?:\([^()]*\)[^;()]*?)*)(\w+)\s*\[\s*\]\s*;"
)
_ALIGNMENT = re.compile(
    r"(?:__align__|alignas|__attribute__)\s*(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))"
)
_VARIABLE = re.compile(
    r"(?:\b(?:static|inline)\s+)?__(?:device|constant|managed)__\s+"
    r"(?P<type>[\w:\s*<>,]*?)\b(?!operator\b)(?P<name>\w+)\s*(?:\[[^\];]*\]\s*)*(?:=|;|\{[^;{}]*\}\s*;)"
)
_BOUNDS = r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)"
_TEMPLATE = re.compile(
    rf"\btemplate\s*<[^;{{}}]*>\s*(?:__global__|static|inline|\s|{_BOUNDS})*void\s+"
    rf"(?:{_BOUNDS}\s*)?(\w+)\s*\("
)
_BARRIERS_OF_THE_GRID = (
    "cooperative_groups::detail::arrived",
    "cooperative_groups::detail::generation",
)
_QUOTES = {0x2018: "'", 0x2019: "'"}
"""A compiler may quote names as its language does."""
_UNKNOWN = re.compile(
    r"^(?P<place>[^\s:]+:\d+):.*?error: (?:"
    r"'(?P<a>[^']+)' (?:was not declared|does not name|has not been declared|is not a member)"
    r"|use of undeclared identifier '(?P<b>[^']+)'|unknown type name '(?P<c>[^']+)'"
    r"|no matching function for call to '(?P<d>[^'(]+))",
    re.MULTILINE,
)


class ForeignSource(Source):
    """CUDA C++ text with one chosen kernel, for the host runner alone.

    Args:
        text: the source; what it includes by ``"..."`` is looked for beside ``path``.
        entry: the kernel's name expression; None where the text has one kernel.
        path: the file that the text comes from, or a name for messages.
        defines: options of a compiler, of which ``-DNAME=VALUE`` counts.

    Raises:
        ValueError: there is no such kernel, several, or a template without arguments.
        CompileError: an included header is not there.
    """

    def __init__(
        self, text: str, entry: str | None, path: Path, defines: Sequence[str] = ()
    ) -> None:
        self.path = path
        self.original = text
        self._includes: list[str] = []
        self._includes_own = False
        self._defines = [define[2:].strip() for define in defines if define.startswith("-D")]
        expanded = self._expanded(text, path, set())
        bare = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), expanded)
        self.text = with_dropped_results(_DYNAMIC.sub(_dynamic_pointer, bare))
        self._names = kernels_of(self.text)
        self._templates = frozenset(_TEMPLATE.findall(self.text))
        self.entry = self._chosen(entry)
        plain = [name for name in self._names if name not in self._templates]
        # One library serves all kernels of a file.
        self._set_entries(plain if self.entry in plain else [self.entry])
        self._signatures: dict[str, ForeignSignature] = {}
        self.variables = self._variables()
        groups = any(name.startswith("cooperative_groups") for name in self._includes)
        self.exported = (*self.variables, *(_BARRIERS_OF_THE_GRID if groups else ()))
        self._surround()

    def _set_entries(self, entries: Sequence[str]) -> None:
        self.entries = tuple(entries)
        self.positions = {entry: i for i, entry in enumerate(self.entries)}

    def _expanded(self, text: str, path: Path, seen: set[Path]) -> str:
        def replaced(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            line = text.count("\n", 0, match.start()) + 1
            for folder in (path.parent, INCLUDE_DIRECTORY):
                file = folder / name
                if match[2] and file.is_file():
                    if file.resolve() in seen:
                        return ""
                    seen.add(file.resolve())
                    self._includes_own |= folder == INCLUDE_DIRECTORY
                    inner = self._expanded(file.read_text(encoding="utf-8"), file, seen)
                    return f'{inner}\n#line {line + 1} "{path.name}"'
            if (HEADERS / name).is_file() or name in _LIBRARY:
                self._includes.append(name)
            elif name not in _EMPTY:
                known = ", ".join(sorted(header.name for header in HEADERS.glob("c*.h")))
                raise CompileError(
                    f"{path.name}:{line}: the host runner has no {name!r}; it has {known}, and of "
                    "the C++ library what kernels use. Leave out what needs other headers, or give "
                    "the kernel alone as text"
                )
            return ""

        text = re.sub(r"^[ \t]*#[ \t]*pragma[ \t]+once\b.*", "", text, flags=re.MULTILINE)
        return f'#line 1 "{path.name}"\n{_INCLUDE.sub(replaced, text)}'

    def _chosen(self, entry: str | None) -> str:
        known = ", ".join(self._names)
        if entry is None:
            if len(self._names) != 1:
                raise ValueError(
                    f"{self.path.name} has {len(self._names)} kernels; choose one with entry="
                    + (f": {known}" if known else ", a __global__ function")
                )
            entry = next(iter(self._names))
        name = entry.partition("<")[0].rpartition("::")[2]
        if name not in self._names:
            raise ValueError(f"{self.path.name} has no kernel {name!r}; it has {known or 'none'}")
        if "<" not in entry and name in self._templates:
            raise ValueError(
                f"{self.path.name}: {name} is a template; give its arguments, such as "
                f"entry='{name}<float>'"
            )
        return entry

    def _variables(self) -> dict[str, bool]:
        variables = {}
        for match in _VARIABLE.finditer(self.text):
            declared = match["type"].split()
            if not declared:
                continue
            if "," in match["type"] and "<" not in match["type"]:
                raise CompileError(
                    f"{self.path.name}: {match[0].strip()!r} declares several variables; declare "
                    "each by itself, so that every run can begin with its first value"
                )
            variables[match["name"]] = "__constant__" in match[0] or "const" in declared
        return variables

    def _surround(self) -> None:
        """Add the headers of the C++ library before the runner, and those of CUDA behind it."""
        used = dict.fromkeys(self._includes)
        library = dict.fromkeys((*_ALWAYS, *(name for name in used if name in _LIBRARY)))
        lines = [f"#include <{name}>\n" for name in library]
        self.prelude = "".join((*lines, "#define DETMODE_FOREIGN 1\n"))
        lines = [f'#include "{name}"\n' for name in used if name not in _LIBRARY]
        for define in self._defines:
            name, _, value = define.partition("=")
            lines.append(f"#define {name} {value or 1}\n")
        # detmode's own headers take the host's branch where the architecture is not defined.
        architecture = "" if self._includes_own else "#define __CUDA_ARCH__ 800\n"
        self.postlude = "".join((*lines, architecture))

    def together(self, entry: str) -> tuple[str, ...]:
        """All entries: they share the variables of the file."""
        return self.entries

    @functools.cached_property
    def library(self) -> Library:
        """The compiled source.

        Raises:
            CompileError: it does not compile; if it uses something that the runner does not have,
                one line names it.
        """
        # The build that sees every access.
        if len(self.entries) > 1:
            try:
                return compile(self, "races")
            except CompileError:
                # Perhaps another of the kernels does not compile.
                self._set_entries([self.entry])
        try:
            return compile(self, "races")
        except CompileError as error:
            raise self._explained(error) from None

    def _explained(self, error: CompileError) -> CompileError:
        message = str(error)
        if re.search(r"\basm\b|instruction|constraint", message):
            return CompileError(
                f"{self.path.name}: the host runner has no PTX; give C++ in place of asm, under "
                f"'#ifdef DETMODE_HOST'\n{message}"
            )
        unknown = _UNKNOWN.search(message.translate(_QUOTES))
        if unknown is None:
            return error
        name = next(filter(None, unknown.groups()[1:]))
        return CompileError(
            f"{unknown['place']}: the host runner has no {name!r}, which {self.entry} "
            f"uses\n{message}"
        )

    @functools.cached_property
    def initial(self) -> dict[str, bytes]:
        """The first values of the exported variables; asked before the first launch."""
        return {name: bytes(self.library.variable(i)) for i, name in enumerate(self.exported)}

    # The two signatures pack alike, and a launch on the host asks for no more.
    def signature(self, entry: str) -> ForeignSignature:  # type: ignore[override]
        """The parameters of `entry`, as compiled."""
        known = self._signatures.get(entry)
        if known is None:
            library = self.library
            kinds = library.kinds(self.position(entry))
            sizes = library.sizes(self.position(entry), len(kinds))
            name = entry.partition("<")[0].rpartition("::")[2]
            declared = [variable.name.partition("[")[0] for variable in self._names[name]]
            if len(declared) != len(kinds):
                declared = [f"argument {i}" for i in range(len(kinds))]
            where = f"{self.path.name}: {entry}"
            known = ForeignSignature(
                where, declared, [(*kind, size) for kind, size in zip(kinds, sizes, strict=True)]
            )
            self._signatures[entry] = known
        return known


def _dynamic_pointer(match: re.Match[str]) -> str:
    """A pointer in place of an array without a size."""
    declared = _ALIGNMENT.sub("", match[1]).strip()
    return (
        f"{declared}* const {match[2]} = "
        f"reinterpret_cast<{declared}*>(detmode_host::dynamic_memory);"
    )
