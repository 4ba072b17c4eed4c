"""The doctor's findings on numbers: precisions, libraries, tuning and compilers."""

import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from detmode.environment import known
from detmode.environment.doctor import numerics
from tests.environment.findings import finding


def test_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both settings count."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    assert finding("cuDNN").remedy is None
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert finding("cuDNN").remedy is not None
    assert finding("cuDNN").state == "deterministic=True, benchmark=True"


def test_recurrent_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With cuDNN they need a workspace; the RNN's own values are accepted."""
    subject = "cuDNN recurrent networks"
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: None)
    assert finding(subject).state == "no cuDNN"
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert finding(subject).remedy is not None
    assert "91002" in finding(subject).state
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2")
    assert finding(subject).remedy is None

    def broken() -> None:
        raise RuntimeError("cuDNN version incompatibility")

    monkeypatch.setattr(torch.backends.cudnn, "version", broken)
    assert "incompatibility" in finding(subject).effect


def test_reduced_precision_reductions() -> None:
    """Each of the settings is named while it is on."""
    subject, matmul = "float16 and bfloat16 matmul", torch.backends.cuda.matmul
    names = [f"allow_{each}_reduced_precision_reduction" for each in ("fp16", "bf16")]
    with ExitStack() as undo:
        for name in names:
            undo.callback(setattr, matmul, name, getattr(matmul, name))
            setattr(matmul, name, False)
        assert finding(subject).remedy is None
        setattr(matmul, names[1], True)
        assert finding(subject).state == names[1]
        assert finding(subject).remedy is not None


def test_tunable_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch is asked where it can be, the variables where it cannot; tuning is an error."""
    monkeypatch.setattr(torch._C, "_cuda_tunableop_tuning_is_enabled", None, raising=False)
    name = "_cuda_tunableop_is_enabled"
    for read, enabled in ((lambda: True, "0"), (None, "1")):
        monkeypatch.setattr(torch._C, name, read, raising=False)
        monkeypatch.setenv("PYTORCH_TUNABLEOP_ENABLED", enabled)
        for tuning, severity in (("1", "error"), ("0", "warning")):
            monkeypatch.setenv("PYTORCH_TUNABLEOP_TUNING", tuning)
            found = finding("TunableOp")
            assert (found.severity, bool(found.remedy)) == (severity, True)
    monkeypatch.delenv("PYTORCH_TUNABLEOP_ENABLED")
    assert finding("TunableOp").remedy is None


def test_attention() -> None:
    """CuDNN's backend needs a remedy; without fused ones the effect is that of products."""
    subject = "attention backends"
    fused = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, *fused]):
        assert "enable_cudnn_sdp(False)" in str(finding(subject).remedy)
    with sdpa_kernel(fused):
        assert finding(subject).remedy is None
        assert "outside the mode" in finding(subject).effect
    with sdpa_kernel(SDPBackend.MATH):
        assert finding(subject).state == "math"
        assert "products" in finding(subject).effect


@pytest.mark.parametrize("fill", [True, False])
def test_fill(fill: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have a price: a write, or a doubt."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", fill)
    found = finding("fill_uninitialized_memory")
    assert found.severity == ("note" if fill else "warning")
    assert found.state == str(fill)
    assert f"fill_uninitialized_memory={not fill}" in str(found.remedy)


def test_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's settings where it is imported, else the variables that it will read."""
    subject = "torch.compile (inductor)"
    config = SimpleNamespace(deterministic=False, max_autotune=True)
    monkeypatch.setitem(sys.modules, "torch._inductor.config", config)
    assert finding(subject).state == "deterministic=False, max_autotune=True"
    config.deterministic = True
    assert finding(subject).remedy is None
    monkeypatch.delitem(sys.modules, "torch._inductor.config")
    monkeypatch.setenv("TORCHINDUCTOR_COORDINATE_DESCENT_TUNING", "1")
    assert finding(subject).state == "deterministic=False, coordinate_descent_tuning=True"
    monkeypatch.setenv("TORCHINDUCTOR_DETERMINISTIC", "1")
    assert finding(subject).remedy is None
    assert "torch._inductor.config" not in sys.modules


def test_compiler_has_these_settings() -> None:
    """The names are inductor's own: a look at a name that is gone would always say False."""
    from torch._inductor import config

    assert hasattr(config, "max_autotune")
    assert hasattr(config, "max_autotune_gemm")
    assert hasattr(config, "coordinate_descent_tuning")


def test_precision_before_pytorch_2_9(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the newer settings the older functions are read."""
    if hasattr(torch.backends.cudnn, "conv"):
        backends = SimpleNamespace(
            cuda=SimpleNamespace(matmul=None), cudnn=SimpleNamespace(allow_tf32=False)
        )
        monkeypatch.setattr(
            known,
            "torch",
            SimpleNamespace(backends=backends, get_float32_matmul_precision=lambda: "medium"),
        )
    else:
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    expected = {"matmul": "bf16", "convolution": "float32", "RNN": "float32"}
    assert numerics._float32_precisions() == expected
