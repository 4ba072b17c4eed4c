"""Samples of FBGEMM's jagged sums: sequences that were selected several times, and a reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from detmode.rules.fbgemm import JAGGED
from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker, Sample, Samples, made_by, sample

Arguments = dict[str, Any]


def _sequences(make: Maker, selected: int, sequences: int, longest: int, columns: int) -> Arguments:
    lengths = make.integers(0, longest + 1, sequences)
    indices = make.integers(0, sequences, selected)
    offsets = lengths[indices].cumsum(0)
    rows = int(offsets[-1]) if selected else 0
    return {
        "values": make.normal(rows, columns),
        "indices": indices,
        "input_offsets": offsets,
        "output_offsets": lengths.cumsum(0),
        "num_output_rows": int(lengths.sum()),
        "num_dense_input_rows": rows,
    }


def _group(make: Maker) -> Arguments:
    gradients, indices = [make.normal(6, 4)], [make.integers(0, 3, 6)]
    args, saved, inputs = make.integers(0, 9, 3), make.integers(0, 9, 5), make.normal(3, 4)
    return {"all_inputs": [*gradients, *indices, args, saved, inputs], "output_shape_group": [3, 4]}


_ANY = (*FLOATING, torch.int64)


def _jagged(op: str) -> tuple[Sample, ...]:
    case = made_by(_sequences, op=op, dtypes=FLOATING)
    return (
        case(
            *("sequences", 40, 5, 6, 3),
            covers="collisions",
            dtypes=_ANY,
            variants=("cpu", "non_contiguous"),
        ),
        case("nothing", 0, 5, 6, 3, covers="empty"),
        case("odd", 63, 7, 30, 65, covers="odd_sizes"),
        case("one_column", 200, 3, 9, 1),
    )


def jagged_reference(
    values: Tensor,
    indices: Tensor,
    input_offsets: Tensor,
    output_offsets: Tensor,
    num_output_rows: int,
    num_dense_input_rows: int | None = None,
) -> Tensor:
    """The sums of sequences, one sequence after the other."""
    result = values.new_zeros(num_output_rows, values.shape[1])
    begin = 0
    for index, end in zip(indices.tolist(), input_offsets.tolist()):
        first = int(output_offsets[index - 1]) if index else 0
        result[first : first + end - begin] += values[begin:end]
        begin = end
    return result


_CASES = {op: _jagged(op) for op in JAGGED}

SAMPLES = Samples(
    cases=(
        *(case for cases in _CASES.values() for case in cases),
        sample(
            "group",
            _group,
            op="fbgemm::group_index_select_dim0_gpu_backward",
            dtypes=(torch.float32,),
            variants=("cpu",),
        ),
    ),
    errors=tuple(
        cases[0].but("values_not_a_matrix", values=lambda values: values[0], dtypes=FLOATING[2:3])
        for cases in _CASES.values()
    ),
    bench=tuple(
        made_by(_sequences, op=op, dtypes=(torch.float32,))("lists_64k", 1 << 16, 1 << 12, 20, 128)
        for op in JAGGED
    ),
    not_applicable={
        "channels_last": "values is a matrix",
        "negative_dim": "the operator takes no dimension",
    },
    references=dict.fromkeys(JAGGED, jagged_reference),
)
