"""The memory that a substitute takes for a call."""

from unittest.mock import patch

import pytest
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from detmode.cuda import allocation
from detmode.verify.cases import Case, run_substituted, tensors_of
from tests.shared import needs
from tests.shared.selection import Group, cases, check_each, grouped, once


@needs.compiler
@pytest.mark.parametrize("group", grouped(once(cases())), ids=str)
def test_nothing_lasts_from_one_call_to_the_next(group: Group) -> None:
    """All memory that a call allocates is its results', or given back when it ends.

    What a later call reads could by then be a memory pool's that is paused, moved or reset.
    """

    def check(case: Case) -> None:
        taken: list[StorageWeakRef] = []
        new = allocation._new

        def noted(*arguments: object) -> Tensor:
            tensor = new(*arguments)
            taken.append(StorageWeakRef(tensor.untyped_storage()))
            return tensor

        with patch.object(allocation, "_new", noted):
            results = run_substituted(case.sample, case.dtype)
        returned = {each.untyped_storage()._cdata for each in tensors_of(results)}
        assert {each.cdata for each in taken if not each.expired()} <= returned

    check_each(group, check)
