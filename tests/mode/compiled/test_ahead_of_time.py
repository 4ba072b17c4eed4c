"""Programs that are exported or compiled ahead of time, inside the mode or outside."""

import pytest
import torch

from detmode import DeterministicMode, allow
from tests.mode.compiled.test_compiled import COMPILED, rows
from tests.mode.compiled.test_programs import Block, added, inside
from tests.shared import needs

pytestmark = [
    needs.compiler,
    # The compiler warns, of Python and of itself, by version.
    pytest.mark.filterwarnings("ignore"),
    COMPILED,
    pytest.mark.usefixtures("no_caches"),
]


def test_exported_programs():
    """Exporting counts no calls; the exported program meets the table, with the user's lines."""
    net, arguments = Block(), (torch.ones(5, 4), torch.tensor([0, 0, 1, 2, 3]))
    program, mode = inside(lambda: torch.export.export(net, arguments))
    assert not rows(mode)
    exported = program.module()
    _, told = inside(lambda: net(*arguments))
    _, mode = inside(lambda: exported(*arguments))
    assert rows(mode) == rows(told)


@pytest.mark.thorough
@pytest.mark.parametrize("made", ["inside", "outside"])
def test_packages_of_aotinductor(made, tmp_path):
    """A package is a row of the report: it may vary; strict refuses it; a region allows it."""
    net, arguments = Block(), (torch.ones(5, 4), torch.tensor([0, 0, 1, 2, 3]))
    program = torch.export.export(net, arguments)

    def package():
        path = str(tmp_path / "package.pt2")
        return torch._inductor.aoti_compile_and_package(program, package_path=path)

    loaded = torch._inductor.aoti_load_package(
        inside(package)[0] if made == "inside" else package()
    )
    overload = "detmode::ahead_of_time_program.default"
    _, mode = inside(lambda: loaded(*arguments))
    assert [(row.action, row.count) for row in mode.records if row.overload == overload] == [
        ("warn", 1)
    ]
    with DeterministicMode(simulate="cuda", strict=True) as mode:
        with pytest.raises(RuntimeError, match="compiled without the rule table"):
            loaded(*arguments)
        with allow(overload):
            loaded(*arguments)


@pytest.mark.thorough
@pytest.mark.skipif(
    not hasattr(torch._dynamo, "aot_compile"), reason="this PyTorch has no aot_compile"
)
def test_functions_compiled_ahead_of_time():
    """Made and run inside: a row of the report. Made outside: refused inside, in words."""
    arguments = torch.ones(5, 4), torch.zeros(5).long()

    def make():
        # PyTorch makes them through its caches alone.
        with torch._inductor.config.patch(force_disable_caches=False):
            return torch.compile(added, fullgraph=True).aot_compile((arguments, {}))

    _, mode = inside(lambda: make()(*arguments))
    assert ("detmode::ahead_of_time_program.default", "warn") in [key[:2] for key in rows(mode)]
    compiled = make()
    with pytest.raises(RuntimeError, match="aot_compile outside the mode"):
        inside(lambda: compiled(*arguments))
