"""PyTorch on a GPU alerts where the rule table says so, by the table's names, and only there."""

from functools import cache

import pytest
import torch

from detmode.mode.messages import alert_text
from detmode.process.torch_settings import deterministic_flag
from detmode.process.versions import parse_version
from detmode.rules import default_rules, families
from detmode.table.rule import CUBLAS
from detmode.table.rule_table import Row, resolve
from detmode.table.samples import Sample
from detmode.verify.cases import call, matching_row, name_of, samples_of

pytestmark = pytest.mark.cuda

ALERT = " does not have a deterministic implementation, but you set "
LEFT_OUT = {
    "attention": "its samples bind, and are no calls that a CUDA kernel could run",
    "collectives": "they need a group of processes",
    "rnn": "its samples bind, and are no calls that cuDNN could run",
}
"""Families whose samples do not run here, and why. None of their rows has an alert."""

DEAD = ("scatter_cuda_",)
"""Caller names that no call reaches: under the flag the call goes another way before."""


@cache
def met() -> dict[Row, list[tuple[Sample, torch.dtype]]]:
    """The samples on CUDA that meet each row, with this PyTorch and under its flag."""
    found: dict[Row, list[tuple[Sample, torch.dtype]]] = {}
    with deterministic_flag(True):
        for family in families():
            for sample in samples_of(family).cases if family not in LEFT_OUT else ():
                for dtype in sample.dtypes if sample.device == "cuda" else ():
                    row = matching_row(sample, dtype)
                    if row is not None:
                        found.setdefault(row, []).append((sample, dtype))
    return found


def names_of(row: Row) -> tuple[str, ...]:
    """The caller names that PyTorch may raise with for the row's operator and its variants."""
    alert = row.rule.alert
    names = alert if isinstance(alert, tuple) else (alert,)
    return tuple(name for name in names if name is not None and name not in DEAD)


def rows(*, alerting: bool) -> list[object]:
    """The rows that PyTorch alerts on, or does not."""
    return [
        pytest.param(row, id=f"{row.family}-{number}-{row.rule.op}")
        for number, row in enumerate(default_rules())
        if bool(names_of(row)) == alerting and CUBLAS not in names_of(row)
    ]


def samples_that_meet(row: Row) -> list[tuple[Sample, torch.dtype]]:
    if row not in met():
        pytest.skip("no sample on CUDA meets it, with this PyTorch and under its flag")
    return met()[row]


def said(sample: Sample, dtype: torch.dtype) -> str | None:
    """The message of the RuntimeError that PyTorch alone raises under its flag; None if none."""
    arguments = sample.arguments(dtype, "cuda")
    try:
        with deterministic_flag(True):
            call(sample, arguments)
    except RuntimeError as error:
        return str(error)
    except (IndexError, NotImplementedError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("row", rows(alerting=True))
def test_it_alerts(row: Row) -> None:
    """Every sample of the row raises, by the table's name, unless PyTorch refuses it otherwise."""
    texts = tuple(alert_text(name, warn=False) for name in names_of(row))
    alerted, silent, other = [], [], []
    for sample, dtype in samples_that_meet(row):
        message = said(sample, dtype)
        which = f"{sample.name} in {name_of(dtype)}"
        if message is None:
            silent.append(which)
        elif message.startswith(texts):
            alerted.append(which)
        elif ALERT in message:
            other.append(f"{which}: {message.partition(ALERT)[0]!r}")
    where = f"detmode/rules/{row.family}/__init__.py"
    assert not silent, f"{where}: {row.rule.op} {names_of(row)} does not alert for {silent}"
    assert not other, f"{where}: {row.rule.op} {names_of(row)}, but {other}"
    assert alerted, f"{where}: PyTorch refuses every sample of {row.rule.op}, with other words"


@pytest.mark.parametrize("row", rows(alerting=False))
def test_it_is_silent(row: Row) -> None:
    """No sample of a row without an alert meets one."""
    alerts = {
        f"{sample.name} in {name_of(dtype)}": message.partition(ALERT)[0]
        for sample, dtype in samples_that_meet(row)
        if ALERT in (message := said(sample, dtype) or "")
    }
    assert not alerts, f"detmode/rules/{row.family}/__init__.py: {row.rule.op} alerts: {alerts}"


def test_every_alerting_row_is_met() -> None:
    """The tests above leave out no row on CUDA whose alert this PyTorch raises."""
    seen = set(map(id, met()))
    missing = [
        f"{row.family}: {row.rule.op} when {row.rule.when}"
        for row in default_rules()
        if names_of(row) and "'cuda'" in str(row.rule.when) and resolve(row.rule.op) is not None
        if id(row) not in seen and row.rule.holds_for(parse_version(torch.__version__))
    ]
    assert not missing, f"no sample on CUDA meets {missing}"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=name_of)
def test_attention_is_silent(dtype: torch.dtype) -> None:
    """Whatever backend PyTorch takes, forward and backward of attention raise nothing."""
    query, key, value = (
        torch.randn(2, 4, 64, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)
    )
    with deterministic_flag(True):
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        output.sum().backward()
    assert torch.isfinite(query.grad).all()


def test_recurrent_networks_are_silent() -> None:
    """The same for cuDNN's LSTM."""
    lstm = torch.nn.LSTM(8, 16, num_layers=2).cuda()
    with deterministic_flag(True):
        lstm(torch.randn(5, 3, 8, device="cuda"))[0].sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in lstm.parameters())
