"""Between a call and its substitute lie few Python calls, and few changes of file."""

import sys
from itertools import pairwise
from pathlib import Path

import torch

import detmode
from detmode import RuleTable, Substitute
from detmode.table.conditions import FLOATING, argument, dtype_in, on
from tests.shared import programs

PACKAGE = str(Path(detmode.__file__).parent)


def test_calls_before_the_substitute(mode, without_player):
    """A backward of ``x[index]`` calls its substitute after few calls in few files."""
    seen = []
    found = []

    def substitute(**arguments):
        found.append(seen.copy())
        return torch.ops.aten.index_put.default(**arguments)

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            if code.co_name == "__torch_dispatch__":
                seen.clear()
            seen.append(f"{code.co_filename.removeprefix(PACKAGE)} {code.co_name}")

    when = on("cuda") & argument("accumulate", True) & dtype_in("self", FLOATING)
    rule = programs.rule("aten::index_put", Substitute(substitute), when=when)
    made = mode(rules=RuleTable([rule], forwards=["aten::index"]))

    def run():
        x = torch.ones(8, requires_grad=True)
        index = torch.tensor([0, 1, 1])
        with made:
            for profile in (None, None, note):  # what is looked up once is no part of a call
                loss = x[index].sum()
                sys.setprofile(profile)
                loss.backward()
                sys.setprofile(None)

    # A new thread remembers no allow region of another test.
    programs.in_another_thread(run)
    assert [row.count for row in made.records] == [3]
    calls = found[-1]
    files = [each.partition(" ")[0] for each in calls]
    hops = sum(one != other for one, other in pairwise(files))
    assert len(calls) <= 34, "\n".join(calls)
    assert hops <= 14, "\n".join(calls)
