"""For test suites: assert that a kernel gives the same bits in any order of its threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detmode.verify.certificates import certify
from detmode.verify.certificates.certificate import Certificate

# pytest and IPython leave out frames of this module: the line of the test is what matters.
__tracebackhide__ = True


def assert_order_independent(
    kernel: object, arguments: Mapping[str, Any] | Sequence[Any], **options: Any
) -> Certificate:
    """Certify a kernel of CUDA C++ or Triton, and require that its bits do not vary.

    >>> from detmode.testing import assert_order_independent
    >>> source = "__global__ void count(int* n) { atomicAdd(n, 1); }"
    >>> n = torch.zeros(1, dtype=torch.int32)
    >>> assert_order_independent(source, {"n": n}, grid=4, block=32).atomics
    ('integer add',)

    Args:
        kernel: as for :func:`detmode.certify`.
        arguments: as there.
        options: as there: ``grid``, ``block``, ``repeats`` and so on.

    Returns:
        The certificate.

    Raises:
        AssertionError: two schedules gave different bits, or there is a data race, an access out of
            bounds or another fault; the message is the certificate.
        TypeError, ValueError, detmode.cuda.CompileError: as :func:`detmode.certify`.
    """
    certificate = certify(kernel, arguments, **options)
    if not certificate.is_order_independent:
        raise AssertionError(str(certificate))
    return certificate
