"""The command line: ``detmode run``, ``record``, ``diff``, ``probe``, and what asks the table.

Exit codes: 0 fine, 1 a check failed, 2 wrong usage; a program that is run and fails gives its own.
Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import detmode
from detmode.program import Program, die_of_interrupt, exit_status

if TYPE_CHECKING:
    from detmode.mode import DeterministicMode
    from detmode.report import Report
    from detmode.runs.probe_report import ProbeReport

ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONHASHSEED": "0"}
"""What must be set before Python, or CUDA, starts; a value that the user set wins."""

_DASHES = "\0--"  # stands for "--" while argparse reads: it would drop the program's own


class UsageError(Exception):
    """Asked for something that cannot be: printed on one line, exit code 2."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    try:
        options = parser.parse_args([_DASHES if each == "--" else each for each in arguments])
        command: Callable[[argparse.Namespace, list[str]], int] = options.command
        return command(options, arguments)
    except UsageError as error:
        print(f"detmode: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of a table has seen enough (`detmode rules | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message}; see '{self.prog} --help'", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="detmode", description="Run PyTorch programs bitwise reproducibly, and prove it."
    )
    parser.add_argument("--version", action="version", version=f"detmode {detmode.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = commands.add_parser("run", help="run an unchanged script or module under the mode")
    run.set_defaults(command=_run)
    run.add_argument("--warn-only", action="store_true", help="warn instead of raising")
    run.add_argument(
        "--no-substitute", action="store_true", help="PyTorch's behaviour: native path, warn, raise"
    )
    run.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="OP=ACTION",
        help="an operator, overload or glob to allow, warn, error, native or substitute",
    )

    record = commands.add_parser("record", help="run a script and record every call, for diff")
    record.set_defaults(command=_record)
    record.add_argument(
        "-o", "--output", type=Path, required=True, metavar="RUN", help="a folder to make"
    )

    probe = commands.add_parser(
        "probe", help="run a script, each operator several times, and list those that vary"
    )
    probe.set_defaults(command=_probe)
    probe.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="repeats of each call (default: 3)"
    )
    probe.add_argument(
        "--skip", action="append", default=[], metavar="OP", help="pass over an operator, or a glob"
    )
    for command in (record, probe):
        command.add_argument(
            "--deterministic",
            action="store_true",
            help="run it under the mode, as 'detmode run' does",
        )
    for command in (run, probe):
        command.add_argument(
            "--report", type=Path, metavar="FILE.json", help="write the report there too"
        )
    for command in (run, record, probe):
        command.add_argument(
            "--simulate",
            choices=["cuda"],
            help="treat CPU tensors as CUDA; kernels run on the host",
        )
        command.add_argument(
            "--schedule-seed", type=int, metavar="N", help="shuffle simulated blocks and threads"
        )
        command.add_argument("-m", dest="is_module", action="store_true", help="run a module")
        command.add_argument("program", metavar="script.py", help="the script, or the module")
        rest = command.add_argument(
            "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="for it"
        )
        rest.required = False  # argparse would name it where only the program is missing

    diff = commands.add_parser("diff", help="where two recorded runs part")
    diff.set_defaults(command=_diff)
    diff.add_argument("first", type=Path, metavar="RUN", help="what 'detmode record' wrote")
    diff.add_argument("second", type=Path, metavar="RUN")

    rules = commands.add_parser("rules", help="print the rule table")
    rules.set_defaults(command=_rules)
    rules.add_argument("--torch", metavar="VERSION", help="only rows that hold for that PyTorch")
    rules.add_argument("--op", metavar="GLOB", help="only rows of these operators")

    doctor = commands.add_parser(
        "doctor", help="what in this environment can break or slow reproducibility"
    )
    doctor.set_defaults(command=_doctor)

    verify = commands.add_parser(
        "verify", help="run every room's samples on this machine and check what is claimed"
    )
    verify.set_defaults(command=_verify)
    verify.add_argument(
        "--device",
        choices=["cuda", "host"],
        help="the GPU, or the host runner; default: a GPU if any",
    )
    verify.add_argument("--room", metavar="NAME", help="only this room")
    verify.add_argument(
        "--repeats", type=int, default=20, metavar="N", help="runs of each sample (default: 20)"
    )

    for table in (rules, doctor, verify, diff):
        table.add_argument("--format", choices=["table", "json"], default="table")
    return parser


# run


def _run(options: argparse.Namespace, arguments: list[str]) -> int:
    overrides = _overrides(options.override)
    _check_report(options)
    _restart_with_environment(arguments)
    program = _program(options)
    if isinstance(program, int):
        return program
    mode = _mode(
        options,
        warn_only=options.warn_only,
        substitute=not options.no_substitute,
        overrides=overrides,
    )
    failure = _execute(program, mode)
    return _end(options, failure, mode.report())


def _check_report(options: argparse.Namespace) -> None:
    if options.report is not None and not options.report.absolute().parent.is_dir():
        raise UsageError(f"--report: there is no folder {options.report.absolute().parent}")


def _end(
    options: argparse.Namespace, failure: BaseException | None, report: Report | ProbeReport
) -> int:
    """Say how the program ended, then what was seen; the program's exit code."""
    status = exit_status(failure)
    print(f"\n{report}", file=sys.stderr)
    if options.report is not None:
        _write(options.report, report.to_json() + "\n")
    if isinstance(failure, KeyboardInterrupt):
        die_of_interrupt()
    return status


def _program(options: argparse.Namespace) -> Program | int:
    """The program to run; what to exit with where it is no Python."""
    if options.schedule_seed is not None and options.simulate is None:
        raise UsageError("--schedule-seed orders the host runner; give --simulate cuda as well")
    arguments = ["--" if each == _DASHES else each for each in options.arguments]
    try:
        return Program(options.program, arguments, is_module=options.is_module)
    except OSError as error:
        raise UsageError(f"cannot open {options.program!r}: {error.strerror}") from error
    except ImportError as error:
        raise UsageError(f"cannot run {options.program!r}: {error}") from error
    except (SyntaxError, ValueError) as error:
        error.__traceback__ = None
        return exit_status(error)


def _mode(options: argparse.Namespace, **more: Any) -> DeterministicMode:
    from detmode.mode import DeterministicMode

    simulate, seed = options.simulate, options.schedule_seed
    if simulate:
        from detmode import cuda

        reason = cuda.unavailable("cpu")
        if reason is not None:
            print(f"detmode: note: not simulating CUDA: {reason}", file=sys.stderr)
            simulate = seed = None
    try:
        return DeterministicMode(simulate=simulate, schedule_seed=seed, **more)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _execute(program: Program, *contexts: AbstractContextManager[object]) -> BaseException | None:
    """Run a program in contexts; what Python itself would meet at the top of it."""
    failure: BaseException | None = None
    try:
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            program.run()
    except BaseException as error:
        failure = error
    if sys.stdout is not None:
        sys.stdout.flush()
    return failure


# record, diff and probe


def _record(options: argparse.Namespace, arguments: list[str]) -> int:
    _restart_with_environment(arguments)
    program = _program(options)
    if isinstance(program, int):
        return program
    from detmode.runs.recording import record
    from detmode.runs.trace_file import TraceError

    modes = [_mode(options)] if options.deterministic or options.simulate else []
    failure = _execute(program, *modes, record(options.output))
    if isinstance(failure, TraceError):
        raise UsageError(str(failure))
    status = exit_status(failure)
    print(f"detmode: recorded to {options.output}", file=sys.stderr)
    if isinstance(failure, KeyboardInterrupt):
        die_of_interrupt()
    return status


def _diff(options: argparse.Namespace, arguments: list[str]) -> int:
    from detmode.runs.diff import diff
    from detmode.runs.trace_file import TraceError

    try:
        comparison = diff(options.first, options.second)
    except TraceError as error:
        raise UsageError(str(error)) from error
    print(comparison.to_json() if options.format == "json" else comparison)
    return 0 if comparison.identical else 1


def _probe(options: argparse.Namespace, arguments: list[str]) -> int:
    if options.repeats < 1:
        raise UsageError(f"--repeats {options.repeats}: a call is compared with at least 1 repeat")
    _check_report(options)
    _restart_with_environment(arguments)
    program = _program(options)
    if isinstance(program, int):
        return program
    from detmode.runs.probing import Probe

    modes = [_mode(options)] if options.deterministic or options.simulate else []
    probing = Probe(options.repeats, skip=options.skip)
    # Outside the mode: a substituted call is probed as a whole, and counted once.
    failure = _execute(program, probing, *modes)
    report = probing.report()
    status = _end(options, failure, report)
    return status or int(report.varied)


def _overrides(pairs: Sequence[str]) -> dict[str, str]:
    overrides = {}
    for pair in pairs:
        op, equals, action = pair.rpartition("=")
        if not equals or not op or not action:
            raise UsageError(f"--override {pair!r}: give it as OP=ACTION, e.g. aten::histc=allow")
        overrides[op] = action
    return overrides


def _restart_with_environment(arguments: list[str]) -> None:
    """Start this process over, once, if something must be set before Python starts."""
    missing = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    if not missing:
        return
    # `python -m detmode` again if that is how it began, else the installed command.
    main_module = sys.modules["__main__"]
    again = ["-m", "detmode"] if getattr(main_module, "__spec__", None) else [sys.argv[0]]
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(
        sys.executable, [sys.executable, *flags, *again, *arguments], {**os.environ, **missing}
    )


def _write(path: Path, text: str) -> None:
    """All or nothing: a reader never finds half a report."""
    descriptor, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # mkstemp makes it private
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


# Tables


def _rules(options: argparse.Namespace, arguments: list[str]) -> int:
    from detmode.rules import default_rules

    table = default_rules()
    if options.torch is not None:
        try:
            table = table.for_version(options.torch)
        except ValueError as error:
            raise UsageError(f"--torch: {error}") from error
    rows = [
        {"room": row.room, **row.rule.as_text()}
        for row in table
        if options.op is None or _names(row.rule.op, options.op)
    ]
    if not rows and options.op is not None:
        print(f"detmode: note: no rule for {options.op!r}", file=sys.stderr)
    columns = ("op", "when", "action", "guarantee", "alert", "versions", "room")
    _print(rows, options.format, columns, widths=(None, 50, None, None, 50, None, None))
    return 0


def _names(op: str, pattern: str) -> bool:
    """Whether ``pattern`` means ``op``: with or without namespace, with or without overload."""
    bare = op.partition("::")[2]
    names = (op, bare, op.partition(".")[0], bare.partition(".")[0])
    return any(fnmatchcase(name, pattern) for name in names)


def _doctor(options: argparse.Namespace, arguments: list[str]) -> int:
    from detmode.doctor import findings

    rows = [finding.as_text() for finding in findings()]
    _print(
        rows, options.format, ("subject", "state", "effect", "remedy"), widths=(None, 40, 50, 50)
    )
    return 0


def _verify(options: argparse.Namespace, arguments: list[str]) -> int:
    if options.repeats < 2:
        raise UsageError(f"--repeats {options.repeats}: bits are compared, so give at least 2")
    from detmode import verify

    try:
        device = options.device or verify.default_device()
        outcomes = verify.verify(device=device, room=options.room, repeats=options.repeats)
    except verify.CannotVerifyError as error:
        raise UsageError(str(error)) from error
    columns = ("room", "dtype", "samples", "repeats", "error / ATen's", "guarantee", "verdict")
    _print([outcome.as_text() for outcome in outcomes], options.format, columns)
    failed = [failure for outcome in outcomes for failure in outcome.failures]
    for failure in failed:
        print(f"detmode: {failure}", file=sys.stderr)
    return 1 if failed else 0


def _print(
    rows: Sequence[Mapping[str, Any]],
    form: str,
    columns: Sequence[str],
    widths: Sequence[int | None] | None = None,
) -> None:
    if form == "json":
        print(json.dumps(rows, indent=2))
        return
    from tabulate import tabulate

    cells = [[_cell(row, column) for column in columns] for row in rows]
    print(
        tabulate(
            cells, headers=columns, disable_numparse=True, maxcolwidths=widths if cells else None
        )
    )


def _cell(row: Mapping[str, Any], column: str) -> str:
    if column == "versions":
        from detmode.rule import version_range

        return version_range(row["since"], row["until"])
    key = "error_over_aten" if column == "error / ATen's" else column
    value = row[key]
    return "" if value is None else str(value)
