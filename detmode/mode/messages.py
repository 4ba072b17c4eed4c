"""The messages: PyTorch's own, verbatim, and the lines that detmode adds."""

from __future__ import annotations

from detmode.process.interface import Interface
from detmode.sites.source_lines import source_of
from detmode.table.rule import CUBLAS, Rule

_ERROR = (
    "{caller} does not have a deterministic implementation, but you set "
    "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this "
    "operation, or you can use the 'warn_only=True' option, if that's acceptable for your "
    "application. You can also file an issue at https://github.com/pytorch/pytorch/issues to help "
    "us prioritize adding deterministic support for this operation."
)
_WARNING = (
    "{caller} does not have a deterministic implementation, but you set "
    "'torch.use_deterministic_algorithms(True, warn_only=True)'. You can file an issue at "
    "https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support "
    "for this operation."
)
_CUBLAS = (
    "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or "
    "`at::Context::setDeterministicAlgorithms(true)`, but this operation is not deterministic "
    "because it uses CuBLAS and you have CUDA >= 10.2. To enable deterministic behavior in this "
    "case, you must set an environment variable before running your PyTorch application: "
    "CUBLAS_WORKSPACE_CONFIG=:4096:8 or CUBLAS_WORKSPACE_CONFIG=:16:8. For more information, go to "
    "https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility"
)
_EXPLANATIONS = {
    "This compiled backward function is being run with torch.use_deterministic_algorithms(True)": (
        "DeterministicMode: the backward of a compiled function ran inside the mode, but its "
        "forward was called outside, where the backward was compiled without deterministic "
        "operators. Call the function inside the mode too, or run its backward outside"
    ),
    "GLOBAL_STATE changed: deterministic_algorithms": (
        "DeterministicMode: a function compiled by aot_compile outside the mode was called inside. "
        "Give it to torch.compile and call it without aot_compile, or call it outside"
    ),
}
"""By what PyTorch's errors say of its flag: what that means for a program with a mode."""


def explanation_of(error: BaseException | None) -> str | None:
    """Return what an error of PyTorch's about its flag means for a program with a mode."""
    text = str(error) if isinstance(error, RuntimeError) else ""
    return next((words for part, words in _EXPLANATIONS.items() if part in text), None)


def alert_text(caller: str, *, warn: bool) -> str:
    """Return PyTorch's message for a caller name: the error, or under ``warn_only`` the warning."""
    if caller == CUBLAS:
        return _CUBLAS
    return (_WARNING if warn else _ERROR).format(caller=caller)


def own_text(overload: str, why: str) -> str:
    """Return detmode's message for a call that may vary without an alert of PyTorch's."""
    return f"{overload} may vary between runs, and PyTorch gives no alert: {why}"


def setting_changed(value: str, interface: Interface) -> str:
    """Return the message that native calls may vary because of a setting's value, in words."""
    listed, every = (interface.option("intercept", calls) for calls in ("listed", "all"))
    return (
        f"{value} from here on: {listed} leaves native calls to PyTorch's settings, so "
        "that these may vary. Leave the setting as it is inside the block, or use "
        f"{every}, which decides on each call"
    )


def flag_is_off(rule: Rule) -> str:
    """Say that nothing guards the call, as the program turned the flag off in the block."""
    return f"torch.use_deterministic_algorithms was turned off inside the block ({rule.because})"


class _PlacedText(str):
    """A message that knows the user's line, for those that show errors."""

    site: str

    def __new__(cls, text: str, site: str = "") -> _PlacedText:
        """Make the text; what unpickles it gives the site later."""
        placed = super().__new__(cls, text)
        placed.site = site
        return placed


def with_place(text: str, site: str, module: str | None, remedy: str | None) -> _PlacedText:
    """Return the whole message, PyTorch's text first, so that code that matches it still does.

    The line of code stands below its place, as in a traceback.
    """
    where = f"{site} ({module})" if module else site
    code = f"\n    {source}" if (source := source_of(site)) else ""
    return _PlacedText(f"{text}\n  at {where}{code}\n  {remedy}", site)


def site_of(error: BaseException) -> str | None:
    """Return the user's line, as "file:line", of a refused call; None for any other error."""
    text = error.args[0] if error.args else None
    return text.site if isinstance(text, _PlacedText) else None
