"""The repository's own files: what workflows, issue forms and pages of the project promise."""

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import detmode
from detmode.cli.parser import _parsers
from detmode.testing import pytest_plugin
from tests.shared import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*-*.yml"))
_, COMMANDS = _parsers()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FIELDS = {
    "checkboxes": {"label", "description", "options"},
    "dropdown": {"label", "description", "options"},
    "input": {"label", "description", "placeholder"},
    "markdown": {"value"},
    "textarea": {"label", "description", "placeholder", "render"},
}
"""The types of fields in an issue form that GitHub knows, and their attributes."""


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs():
    return [
        pytest.param(job, id=f"{path.stem}-{name}")
        for path in WORKFLOWS
        for name, job in read(path)["jobs"].items()
    ]


def commands(job):
    """The commands of a job's steps, split, one for each value of its matrix."""
    found = {step["run"] for step in job["steps"] if "run" in step}
    for name, values in job.get("strategy", {}).get("matrix", {}).items():
        place = f"${{{{ matrix.{name} }}}}"
        found = {each.replace(place, value) for each in found for value in values}
    return [shlex.split(each) for each in sorted(found)]


def environments():
    """The environments of tox."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    return {name.partition(":")[2] for name in tox.sections() if ":" in name}


def run_by_tox(*arguments):
    """Require that tox has the environment."""
    option, name, *_ = arguments
    assert option == "-e"
    assert name in environments()


def run_by_pip(verb, *arguments):
    """Require that pip installs what is in the repository, or has a pin."""
    assert verb == "install"
    names = {argument for argument in arguments if not argument.startswith("-")}
    if "-c" in arguments:
        (constraints,) = (arguments[i + 1] for i, each in enumerate(arguments) if each == "-c")
        pins = (ROOT / constraints).read_text(encoding="utf-8")
        names.remove(constraints)
        assert all(f"\n{name}==" in pins for name in names)


def run_by_python(option, module, *arguments):
    assert option == "-m"
    if module == "pip":
        run_by_pip(*arguments)
    else:
        assert (module, *arguments) == ("venv", ".venv")


PROGRAMS = {
    "nvidia-smi": lambda: None,
    "pip": run_by_pip,
    "python": run_by_python,
    "python3": run_by_python,
    "tox": run_by_tox,
}


@pytest.mark.parametrize("job", jobs())
def test_workflows_run_what_there_is(job):
    """A step's program is known, tox has its environment, and pip its pins; each job has an end."""
    assert job["timeout-minutes"] <= 180
    assert commands(job)
    for program, *arguments in commands(job):
        PROGRAMS[Path(program).name](*arguments)


def parts_of_all(tox):
    """The environments whose commands plain `tox` runs; none of them is left out of a part."""
    text = tox["testenv:all"]["commands"]
    parts = set(re.findall(r"\{\[testenv:(\w+)\]", text))
    for part in parts:
        whole = f"{{[testenv:{part}]commands}}"
        each = re.findall(rf"\{{\[testenv:{part}\]\w+\}}", tox[f"testenv:{part}"]["commands"])
        assert whole in text or (each and all(one in text for one in each))
    return parts


def test_workflows_run_what_contributors_run():
    """Workflows run the environments of plain `tox`, and what `.ci/run` runs besides."""
    called = [each for job in jobs() for each in commands(*job.values) if each[0] == "tox"]
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    assert tox["tox"]["env_list"] == "all"
    parts = parts_of_all(tox)
    assert parts == {"lint", "types", "docs", "tests"}
    assert {each[2] for each in called} >= {*parts, "wheel"}
    for more in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-2:]:
        setting, tox, *arguments = shlex.split(more)
        assert [Path(tox).name, *arguments] in [
            shlex.split(step["run"])
            for job in jobs()
            for step in job.values[0]["steps"]
            if setting in ["=".join(each) for each in step.get("env", {}).items()]
        ]


def test_all_has_what_its_parts_need():
    """Plain `tox` installs, once, what its parts install under their own names."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    parts = parts_of_all(tox)
    groups = [tox[f"testenv:{part}"].get("dependency_groups") or "tests" for part in parts]
    assert set(tox["testenv:all"]["dependency_groups"].split(", ")) == set(groups)
    assert all("set_env" not in tox[f"testenv:{part}"] for part in parts)


def test_versions_of_python():
    """Tests run with each Python that the package says it supports, and with no other."""
    checks = read(ROOT / ".github" / "workflows" / "checks.yml")
    tested = checks["jobs"]["tests"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: 3."
    named = [
        each.partition("Python :: ")[2]
        for each in PROJECT["classifiers"]
        if each.startswith(prefix)
    ]
    assert tested == named
    supported = SpecifierSet(PROJECT["requires-python"])
    assert [each in supported for each in (tested[0], "3.9")] == [True, False]
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    assert f"[testenv:resolve-py3{{{','.join(each.partition('.')[2] for each in tested)}}}]" in tox


def test_systems():
    """The wheel is installed on each operating system that the package says it supports."""
    checks = read(ROOT / ".github" / "workflows" / "checks.yml")
    tested = checks["jobs"]["wheel"]["strategy"]["matrix"]["system"]
    systems = {"Linux": "ubuntu-latest", "MacOS": "macos-latest", "Windows": "windows-latest"}
    named = {
        systems[each.rpartition(" :: ")[2]]
        for each in PROJECT["classifiers"]
        if each.startswith("Operating System")
    }
    assert named
    assert named <= set(tested)


def test_gpu_machines_run_no_code_of_forks():
    """A job on a self-hosted machine starts for a pull request in no workflow."""
    for path in WORKFLOWS:
        workflow = read(path)
        own = any("self-hosted" in job["runs-on"] for job in workflow["jobs"].values())
        # YAML reads the key "on" as true.
        assert not (own and {"pull_request", "pull_request_target"} & set(workflow[True]))
        assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_issue_forms(form):
    """A form has what GitHub asks of one, and asks for what `detmode` prints."""
    content = read(form)
    assert content.keys() == {"name", "description", "title", "labels", "body"}
    ids = [field["id"] for field in content["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids))
    assert "environment" in ids
    for field in content["body"]:
        assert field["attributes"].keys() <= FIELDS[field["type"]]
        assert field["type"] == "markdown" or field["attributes"]["label"]


@pytest.mark.parametrize(
    "path", [*FORMS, ROOT / "SECURITY.md", ROOT / "tox.ini"], ids=lambda path: path.name
)
def test_commands_that_are_named(path):
    """Each `detmode` command has its options, and each tox environment is there."""
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"(?:`|^ *)((?:detmode|tox) [^`\n]+)(?:`|$)", text, re.MULTILINE)
    assert named
    for program, *arguments in map(shlex.split, named):
        if program == "tox":
            run_by_tox(*arguments)
        else:
            options = {
                name for each in COMMANDS[arguments[0]]._actions for name in each.option_strings
            }
            assert {each for each in arguments[1:] if each.startswith("-")} <= options


def test_citation():
    """The citation is of this version, under the package's name, license and keywords."""
    citation = read(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == detmode.__version__
    assert citation["title"] == PROJECT["name"]
    assert citation["license"] == PROJECT["license"]
    assert citation["keywords"] == PROJECT["keywords"]
    assert citation["abstract"].rstrip(".") == PROJECT["description"]
    assert citation["message"]
    assert citation["authors"]


def test_read_the_docs_builds_as_tox_does():
    """The same configuration, warnings are errors, and the packages are the group's."""
    config = read(ROOT / ".readthedocs.yaml")
    assert config["version"] == 2
    assert (ROOT / config["sphinx"]["configuration"]).is_file()
    assert config["sphinx"]["fail_on_warning"]
    assert "-c constraints.txt --group docs" in config["build"]["jobs"]["install"][-1]
    assert config["build"]["tools"]["python"] in {each[-4:] for each in PROJECT["classifiers"]}


def run_action(tmp_path, **inputs):
    """Run the shell step of the action on the tests in a folder, as GitHub would."""
    action = read(ROOT / "action.yml")
    given = {name: each["default"] for name, each in action["inputs"].items()} | inputs
    step, upload = action["runs"]["steps"]
    environment = {
        name: re.sub(
            r"\$\{\{ (\w+)\.(\w+) \}\}", lambda m: given[m[2]] if m[1] == "inputs" else "", text
        )
        for name, text in step["env"].items()
    }
    assert "${{" not in step["run"], "a shell would parse what a pull request writes"
    assert upload["with"]["sarif_file"] == "${{ inputs.sarif }}"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment |= {"PATH": path, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["PYTEST_PLUGINS"] = pytest_plugin.__name__
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step["run"]],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="bash there may be another system's")
def test_action(tmp_path):
    """A call that may vary fails the step, and is in the file for code scanning, at its line."""
    (tmp_path / "test_it.py").write_text(
        "import torch\n\ndef test_varies():\n"
        "    torch.hspmm(torch.eye(2).to_sparse(), torch.ones(2, 2))\n"
    )
    done = run_action(tmp_path, arguments="-p no:cacheprovider -k 'test_varies or test_other'")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stderr + done.stdout
    (run,) = json.loads((tmp_path / "detmode.sarif").read_text())["runs"]
    (result,) = run["results"]
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "test_it.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 4},
    }
    plain = run_action(tmp_path, simulate="", sarif="other.sarif")
    assert plain.returncode == pytest.ExitCode.OK, plain.stdout
    assert json.loads((tmp_path / "other.sarif").read_text())["runs"][0]["results"] == []


def test_the_page_of_the_action():
    """It lists the inputs with their defaults, and its workflow gives inputs that there are."""
    page = (ROOT / "docs" / "how-to" / "pytest-and-ci.md").read_text(encoding="utf-8")
    inputs = {name: each["default"] for name, each in read(ROOT / "action.yml")["inputs"].items()}
    assert dict(re.findall(r"^\| `(\w+)` \| (?:`(.+?)`)? *\|", page, re.MULTILINE)) == inputs
    (workflow,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    content = yaml.safe_load(workflow)
    assert content["permissions"]["security-events"] == "write"
    (job,) = content["jobs"].values()
    (given,) = (step["with"] for step in job["steps"] if "/detmode@" in step.get("uses", ""))
    assert given.keys() <= inputs.keys()
