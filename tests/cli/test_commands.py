"""The command line: what a program sees, what is printed, and exit codes."""

import json
import re

import pytest
import torch

from detmode import verify
from tests.shared import ROOT, needs


def test_rules(run_command):
    """JSON has the fields of Rule and the family; `--torch` and `--op` leave out other rows.

    Who comes with PyTorch's message has the caller's name, not the operator's.
    """

    def rows(*options):
        ours = run_command("rules", "--format", "json", *options)
        assert ours.returncode == 0, ours.stderr
        return json.loads(ours.stdout)

    fields = {"op", "when", "action", "guarantee", "alert", "since", "until", "because", "family"}
    fields |= {"certificate"}
    every = rows()
    assert every
    assert all(set(row) == fields for row in every)
    chosen = rows("--torch", "2.12", "--op", "*grid_sampler*")
    assert {row["family"] for row in chosen} == {"grid_sampler"}
    assert all(row["since"] is None or row["since"] == "2.8" for row in chosen)
    assert {row["op"] for row in rows("--op", "_histc_cuda*")} == {"aten::histc"}
    table = run_command("rules", "--op", "upsample_linear1d_backward").stdout
    assert "upsample_linear1d_backward_out_cuda" in table


def test_doctor(run_command, monkeypatch):
    """Each row has a state, an effect and a severity; exit code 1 where one is an error."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    ours = run_command("doctor", "--format", "json")
    assert ours.returncode == 0
    rows = {row["subject"]: row for row in json.loads(ours.stdout)}
    fields = {"subject", "state", "effect", "remedy", "severity"}
    assert all(set(row) == fields for row in rows.values())
    assert rows["PyTorch"]["state"] == torch.__version__
    assert ":4096:8" in rows["CUBLAS_WORKSPACE_CONFIG"]["remedy"]
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    ours = run_command("doctor")
    assert ours.returncode == 1
    assert re.match(r"1 error,( \d+ warnings?,)? \d+ notes \(--all shows them\)\n\n", ours.stdout)
    # `detmode run` sets it: nothing is to be done.
    assert "CUBLAS_WORKSPACE_CONFIG" not in ours.stdout
    everything = run_command("doctor", "--all").stdout
    assert re.match(r"1 error,( \d+ warnings?,)? \d+ notes\n\n", everything)
    assert "CUBLAS_WORKSPACE_CONFIG" in everything
    assert "`detmode run` sets" in " ".join(everything.split())


@pytest.mark.thorough
@needs.compiler
def test_verify_says_what_it_skips(run_command, monkeypatch):
    """Claims that cannot be checked here are in the matrix with their reason, and a line on stderr.

    An empty matrix is not taken for one in which everything holds.
    """
    every = verify.cases("ctc_loss")
    chosen = tuple(case for case in every if case.sample.name in ("large", "one_label"))
    monkeypatch.setattr(verify, "cases", lambda family: chosen)

    def verified(family):
        options = ("--device", "host", "--family", family, "--repeats", "2", "--format", "json")
        ours = run_command("verify", *options)
        assert ours.returncode == 0, ours.stderr
        return json.loads(ours.stdout), ours.stderr

    rows, notes = verified("ctc_loss")
    why = "2 of 8 checks of special values: in large calls ATen's CUDA kernels leave classes"
    assert {row["dtype"] for row in rows} == {"float32", "float64"}
    for row in rows:
        assert (row["family"], row["verdict"]) == ("ctc_loss", "holds")
        assert row["samples"] > 0
        (skipped,) = row["skipped"]
        assert skipped.startswith(why)
        assert f"detmode: note: ctc_loss {row['dtype']}: skipped {why}" in notes
    monkeypatch.undo()
    rows, notes = verified("rnn")
    assert rows == []
    assert "nothing to verify: family 'rnn' has no substitute" in notes


AUDITED = """
import os, sys, torch
print("from the program")
os.write(1, b"past Python\\n")
weight = torch.ones(1, 1, 4, 4, requires_grad=True)
torch.nn.functional.interpolate(weight, scale_factor=2, mode="bilinear").sum().backward()
sys.exit(int(sys.argv[1]))
"""


def test_audit(run_command, tmp_path):
    """The report stands alone on stdout, as a page and as SARIF beside it.

    Exit code 1 where PyTorch would raise, as without substitutes; a program that fails has its own.
    """
    (tmp_path / "script.py").write_text(AUDITED)
    files = ("--html", "audit.html", "--sarif", "audit.sarif")
    ours = run_command("audit", "--format", "json", *files, "script.py", "0")
    assert ours.returncode == 0, ours.stderr
    report = json.loads(ours.stdout)
    assert sorted(ours.stderr.splitlines()) == ["from the program", "past Python"]
    (row,) = (row for row in report["rows"] if row["family"] == "upsample")
    assert (row["action"], row["site"]) == ("substitute", f"{tmp_path / 'script.py'}:6")
    assert report["raises"] is False
    assert "Audit of a CUDA run" in (tmp_path / "audit.html").read_text()
    (sarif,) = json.loads((tmp_path / "audit.sarif").read_text())["runs"]
    assert {result["level"] for result in sarif["results"]} == {"note"}
    audit = ("audit", "--no-substitute")
    ours = run_command(*audit, "script.py", "0")
    assert ours.returncode == 1
    assert re.search(r" error .*upsample_bilinear2d_backward", ours.stdout)
    allowed = ("--override", "aten::upsample*=allow", "script.py", "0")
    assert run_command(*audit, *allowed).returncode == 0
    assert run_command(*audit, "script.py", "7").returncode == 7


def test_explain(run_command):
    """All names of an operator lead to its rows, each with a remedy and a page that there is.

    An operator without a rule is no error.
    """

    def explained(*names):
        ours = run_command("explain", "--format", "json", *names)
        assert ours.returncode == 0, ours.stderr
        return json.loads(ours.stdout)

    rows = explained("aten::index_add")
    assert [row["action"] for row in rows] == ["Substitute", "Allow"]
    for name in ("index_add", "aten::index_add.default", "aten::index_add_", "index_add.out"):
        assert explained(name) == rows, name
    assert rows[0]["traffic"] >= 1
    assert "The floor is ``source``" in rows[0]["cost"]
    assert (ROOT / rows[0]["docs"]).is_file()
    assert explained("aten::relu", "histc") == explained("histc")
    several = explained("*index_add*", "aten::index_add")
    assert len(several) == len({(row["op"], row["when"]) for row in several})
    names = ("explain", "_histc_cuda with floating point input", "relu", "nn.ReLU")
    shown = run_command(*names).stdout
    unlisted = "\n  rule  no rule: nothing is known that makes it vary"
    assert shown.startswith(f"relu{unlisted}")
    assert f"nn.ReLU{unlisted}" in shown
    assert "because " in shown
    assert "remedy" not in shown
    assert "The floor" not in shown
    long = run_command(*names, "--long").stdout
    for words in ("because ", "remedy ", "traffic ", "histograms.md (What varies"):
        assert words in long
    # A terminal knows no markup.
    assert "The floor is `source` and" in run_command("explain", "--long", "index_add").stdout


def test_explain_says_once_what_several_operators_share(run_command):
    """Operators whose rows are equal have one paragraph, and a row that is refused its remedy."""
    shown = run_command("explain", "_ctc_loss_backward", "_cudnn_rnn").stdout
    paragraphs = shown.split("\n\n")
    assert paragraphs[0].startswith("aten::_ctc_loss_backward, aten::_ctc_loss_backward.Tensor")
    assert "docs/rules/ctc_loss.md" in paragraphs[0]
    assert [line.split()[0] for line in paragraphs[1].splitlines()[1:] if line[2] != " "] == [
        *("when", "action", "because", "remedy", "otherwise")
    ]
