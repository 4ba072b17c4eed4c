"""The mutants that ``tools/mutate.py`` makes: one line each, and the tests that concern it.

A mutant is a plausible slip: a bound that is off by one, a forgotten case, the wrong sign, an order
turned round. What no test could tell from the right line is no mutant.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A line, and what it is changed to.

    Args:
        file: relative to the project's root.
        old: text that stands in the file exactly once.
        new: the text that takes its place.
        tests: arguments of pytest.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {self.old.strip()} -> {self.new.strip() or '(nothing)'}"

    def apply(self, text: str) -> str:
        """The file's text with the mutant in it.

        Raises:
            ValueError: the line is not there, or more than once.
        """
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.file}: {self.old!r} stands there {text.count(self.old)} times; "
                "correct the mutant in tools/mutants.py"
            )
        return text.replace(self.old, self.new)


def _of(file: str, tests: str, *changes: tuple[str, str]) -> tuple[Mutant, ...]:
    return tuple(Mutant(file, old, new, tuple(tests.split())) for old, new in changes)


_ROWS, _INCLUDE, _RULES = "detmode/cuda/rows/", "detmode/cuda/include/", "detmode/rules/"
_FUZZ = "tests/rules/test_{}_fuzz.py".format

KERNELS = (
    *_of(
        _ROWS + "assign.cu",
        _FUZZ("index"),
        (
            "if (place + 1 < rows && keys[place + 1] == position) continue;",
            "if (place > 0 && keys[place - 1] == position) continue;",
        ),
        (
            "elect_last(owners, destination, static_cast<owner_t>(i));",
            "elect_last(owners, destination, static_cast<owner_t>(-i));",
        ),
    ),
    *_of(
        _INCLUDE + "owner.cuh",
        "tests/rules/test_bits.py -k race --family index_copy",
        ("raise_to(owners + destination, position);", "owners[destination] = position;"),
    ),
    *_of(
        _ROWS + "integer_sums.cu",
        _FUZZ("scatter"),
        (
            "auto value = include_self ? to_opmath(self[i])",
            "auto value = true ? to_opmath(self[i])",
        ),
        ("count + (include_self ? 1 : 0)", "count"),
        (
            "auto value = include_self ? to_opmath(out_of_strip[i])",
            "auto value = true ? to_opmath(out_of_strip[i])",
        ),
        (
            "if (in_strip < 0 || in_strip >= owned) continue;\n          auto value",
            "if (in_strip < 0) continue;\n          auto value",
        ),
        ("      if (place >= share.end) break;\n", ""),
        ("min_index(first + k * blockDim.x, end - 1)", "min_index(first + k, end - 1)"),
    ),
    *_of(
        _ROWS + "integer_sums.cu",
        "tests/rules/test_bits.py -k race --family scatter_reduce",
        ("if (mean) atomicAdd(counts + in_strip, 1);", "if (mean) counts[in_strip] += 1;"),
    ),
    *_of(
        _ROWS + "sorted_rows.cu",
        "tests/rules/test_index_fuzz.py -k narrow_ones",
        (
            "if (!wide || destination >= 0) {\n      loaded.initial = out.initial(destination);",
            "loaded.initial = out.initial(destination >= 0 ? destination : 0);\n"
            "    if (!wide || destination >= 0) {",
        ),
    ),
    *_of(
        _INCLUDE + "segment_reduce.cuh",
        _FUZZ("index"),
        ("carry(2 * p + 1, run_key, nothing);", "carry(2 * p + 1, run_key, run);"),
        ("if (first_run && !last_launch) {", "if (!last_launch) {"),
        ("carry(2 * p + 1, nothing);", "carry(2 * p + 1, run);"),
        ("joins ? earlier.plus(run) : run, start);", "run, start);"),
    ),
    *_of(
        _ROWS + "sort.cu",
        "tests/cuda/test_sort.py",
        ("of_warp += count;", "of_warp += 0;"),
        (
            "int d = has(r) ? digit_of(key[r], pass, width) : DIGITS - 1;",
            "int d = has(r) ? digit_of(key[r], pass, width) : 0;",
        ),
        ("met + __popc(alike));", "__popc(alike));"),
        (
            "begin.in_all - begin.in_tile + count_before",
            "begin.in_all - begin.in_tile + 0 * count_before",
        ),
    ),
    *_of(
        _ROWS + "scattered.py",
        _FUZZ("scatter"),
        ("all(repeats[dim + 1 :])", "True"),
    ),
    *_of(
        _ROWS + "sort.py",
        "tests/cuda/test_sort.py",
        ("_count(wraps).launch", "_count(False).launch"),
        ("else THREADS // 2, wraps, by", "else THREADS // 2, False, by"),
        ("_sort(dtype, THREADS, wraps, by", "_sort(dtype, THREADS, False, by"),
    ),
    *_of(
        _INCLUDE + "look_back.cuh",
        "tests/cuda/test_sort.py",
        (
            "sum += word[b] < 0 ? ~word[b] : word[b] - 1;",
            "sum += word[b] < 0 ? ~word[b] : word[b];",
        ),
        ("end = word[b] < 0 ? 0 : end - 1;", "end = end - 1;"),
        (
            "store_relaxed(words + tile * stride, ~(sum + count));",
            "store_relaxed(words + tile * stride, ~sum);",
        ),
    ),
    *_of(
        _INCLUDE + "crowd.cuh",
        "tests/cuda/test_primitives.py::test_sums_in_warps "
        "tests/cuda/test_primitives.py::test_a_crowd_makes_one_atomic",
        ("lane == leader ? sum : joins ? 0 : value[k]", "lane == leader ? sum : value[k]"),
        ("if (__popc(crowd) < CROWD) break;", "if (__popc(crowd) <= CROWD) break;"),
    ),
    *_of(
        _INCLUDE + "accumulator.cuh",
        "tests/cuda/test_accumulator.py",
        ("return quotient + (rest > middle ||", "return quotient + (rest >= middle ||"),
        ("(static_cast<uint64_t>(biased - 1)", "(static_cast<uint64_t>(biased)"),
        ("parts[0] = __double2ll_rn(", "parts[0] = __double2ll_rz("),
    ),
    *_of(
        _INCLUDE + "compensated_sum.cuh",
        "tests/cuda/test_compensated_sum.py " + _FUZZ("pads"),
        ("low = add_rn(low, lost_in_sum(high, value, total));", "low = add_rn(low, acc_t(0));"),
        ("return is_finite(low) ? add_rn(high, low) : high;", "return add_rn(high, low);"),
    ),
    *_of(
        _ROWS + "padding.cu",
        _FUZZ("pads"),
        (
            "if ((k == 0 && i == 0) || (k == 2 && i == axis.in - 1)) return -1;",
            "if (k == 0 && i == 0) return -1;",
        ),
        ("i == axis.in - 1 ? axis.out : least", "i == axis.in ? axis.out : least"),
    ),
    *_of(
        _RULES + "avg_pool3d/kernels.cu",
        _FUZZ("pools"),
        ("index_t margin = padded ? padding : 0;", "index_t margin = padding;"),
    ),
    *_of(
        _INCLUDE + "pooled_axis.cuh",
        _FUZZ("pools"),
        ("last * stride.value < part ? 1 : 0", "last * stride.value <= part ? 1 : 0"),
    ),
    *_of(
        _RULES + "adaptive_avg_pool/kernels.cu",
        _FUZZ("pools"),
        ("from.quotient((i + 1) * to.value - 1) + 1", "from.quotient((i + 1) * to.value - 1)"),
    ),
    *_of(
        _RULES + "adaptive_max_pool/kernels.cu",
        _FUZZ("pools"),
        ("in.quotient((i + 1) * out - 1) + 1", "in.quotient((i + 1) * out - 1)"),
    ),
    *_of(
        _RULES + "max_pool3d/kernels.cu",
        "tests/rules/test_truth.py --family max_pool3d",
        ("(axis.dilation > 1)", "(axis.dilation > 2)"),
    ),
    *_of(
        _INCLUDE + "chosen_windows.cuh",
        "tests/cuda/test_primitives.py -k chosen_windows",
        ("position)) |\n          static_cast<uint32_t>(bits >> 32)) == 0", "position))) == 0"),
    ),
    *_of(
        _INCLUDE + "chosen_windows.cuh",
        "tests/rules/test_pools_fuzz.py -k neighbours",
        ("if (ow < holding.begin || ow >= holding.end) continue;", ""),
        ("/ n | static_cast<uint32_t>(bits >> 32)", "/ n"),
        ("plane += hop", "plane += 2 * hop"),
        ("covering(2, w + columns - 1).end", "covering(2, w).end"),
    ),
    *_of(
        _RULES + "fractional_max_pool/kernels.cu",
        _FUZZ("fractional_max_pool"),
        ("quotient((low - 1) >> 4) + 1;", "quotient((low - 1) >> 4) + 2;"),
        ("if (taken[0] == n) return;", ""),
    ),
    *_of(
        _RULES + "embedding_bag/kernels.cu",
        _FUZZ("embedding"),
        ("row >= 0 && row != padding_idx &&", "row >= 0 &&"),
    ),
    *_of(
        _RULES + "histograms/kernels.cu",
        "tests/rules/test_truth.py tests/rules/test_bits.py --family histograms",
        ("values[b] <= high", "values[b] < high"),
        (
            "atomic_add(counts + b, static_cast<int64_t>(block_counts[b]))",
            "counts[b] += block_counts[b]",
        ),
    ),
    *_of(
        _RULES + "nll_loss2d/kernels.cu",
        _FUZZ("nll_loss2d"),
        (" || chosen[j] == ignore_index) continue;", ") continue;"),
        ("mean ? div_rn(loss, weight) : loss", "loss"),
    ),
    *_of(
        _RULES + "order_statistics/kernels.cu",
        "tests/rules/test_truth.py --family order_statistics",
        ("nans > 0 ? n - 1 : (n - 1) / 2", "nans > 0 ? n - 1 : n / 2"),
        ("(n - nans - 1) / 2", "(n - nans) / 2"),
    ),
    *_of(
        _INCLUDE + "ordered.cuh",
        "tests/cuda/test_ordered.py",
        ("if (is_nan(value)) return all;", "if (is_nan(value)) return 0;"),
        ("return key == static_cast<type>(sign - 1) ? sign : key;", "return key;"),
    ),
    *_of(
        _RULES + "scan/kernels.cu",
        "tests/rules/test_scan_fuzz.py tests/rules/test_truth.py --family scan",
        ("T factor = alike ? T(1) : exp_nonpositive", "T factor = exp_nonpositive"),
        (
            "narrowed<scalar_t>(add_rn(opmath_t<scalar_t>(0), sum.total()))",
            "narrowed<scalar_t>(sum.total())",
        ),
    ),
    *_of(
        _INCLUDE + "product.cuh",
        "tests/cuda/test_product.py",
        ("exponent + x.exponent + exponent_of(product)}", "exponent + exponent_of(product)}"),
        ("fabs(x) >= least && fabs(x) <", "fabs(x) <"),
        ("mul_rn(lost, power_of_two<T>(-carry))", "lost"),
    ),
    *_of(
        _INCLUDE + "scan.cuh",
        "tests/cuda/test_scan.py",
        ("op(later ? theirs : even, later ? odd : theirs)", "op(theirs, later ? odd : even)"),
        ("totals[children + node] = join(others, last);", "totals[children + node] = others;"),
        ("    nodes /= SCAN_CHILDREN;\n", ""),
        ("int64_t nodes = tiles - 1, base = 0;", "int64_t nodes = tiles, base = 0;"),
        ("lane < child ? totals[base", "lane <= child ? totals[base"),
    ),
    *_of(
        _INCLUDE + "exponential.cuh",
        "tests/cuda/test_exponential.py",
        ("return x < least ? T(0) : x;", "return T(0);"),
    ),
    *_of(
        _INCLUDE + "interpolation_gather.cuh",
        _FUZZ("upsample"),
        ("clamps && axis.at == 0 ? 0 : most(tap, 0);", "most(tap, 0);"),
    ),
    *_of(
        _INCLUDE + "interpolation_table.cuh",
        _FUZZ("upsample"),
        ("begin > i : end >= i", "begin > i : end > i"),
    ),
    *_of(
        _INCLUDE + "interpolation_small.cuh",
        _FUZZ("upsample"),
        ("__syncthreads();  // for the tables", "__syncwarp();"),
        ("__syncthreads();  // for the ranges", "__syncwarp();"),
        ("__syncthreads();  // for the weights", "__syncwarp();"),
        ("positions - first,", "positions,"),
        ("most(high_of(a)[count[a] - 1]", "most(high_of(a)[0]"),
    ),
    *_of(
        "detmode/cuda/rows/interpolation.py",
        "tests/rules/test_upsample_fuzz.py -k few",
        ("if _reads(axes) <= MAX_READS:", "if True:"),
        ("length * opmath.itemsize <= SHARED:", "length <= SHARED:"),
        ("_strip_bytes(axes, opmath) <= STRIP:", "STRIP:"),
        ("(behind if behind > 0 else 0) + 3", "3"),
    ),
    *_of(
        "detmode/cuda/rows/interpolation_tables.py",
        "tests/rules/test_upsample_fuzz.py -k kept",
        ("found is None or found.used > CAPACITY:", "found is None:"),
        ("if length > MOST_KEPT:", "if False:"),
        ("if start + length > CAPACITY:", "if False:"),
        ("known.update(new)", "pass"),
        ("or (new and new.get(given))", ""),
    ),
    *_of(
        "detmode/rules/fractional_max_pool/launch.py",
        _FUZZ("fractional_max_pool"),
        ("or indices_shape != out_shape", ""),
        ("if 0 in shape:", "if False:"),
        ("ones + shape[-n:], ones + pooled,", "ones + pooled, ones + shape[-n:],"),
        ("len(regions) < 3 or", ""),
        ("regions[2] < 1 << 31:", "regions[2]:"),
        ("return 18 * max(", "return 16 * max("),
    ),
    *_of(
        "detmode/cuda/rows/extrema.py",
        f"{_FUZZ('index')} {_FUZZ('scatter')}",
        ("by_row=by_row, largest=largest)", "by_row=by_row, largest=True)"),
        ('("n",), include_self=include_self,', '("n",), include_self=True,'),
    ),
    *_of(
        "detmode/cuda/signature.py",
        "tests/cuda/test_signature.py",
        ("if given.keys() != set(names):", "if False:"),
        ("tensors: put(buffer, 0,", "tensors: put(buffer, 8,"),
        ("packed[len(packed) - 8 * n_behind :]", "packed[: 8 * n_behind]"),
    ),
    *_of(
        "detmode/rules/grid_sampler/checks.py",
        "tests/rules/test_errors.py tests/rules/test_grid_sampler_fuzz.py -k grid",
        ("input[0] == grid[0] and grid[-1] == dims", "input[0] == grid[0]"),
        ("and 0 not in sizes:", ":"),
        ("if input[:1] != grid[:1]:", "if False:"),
        ("check_scalar_type(*dtypes)", "pass"),
    ),
    *_of(
        "detmode/cuda/launch.py",
        "tests/cuda/test_signature.py",
        ("0 <= x | (y | z) << 15 < 2**31", "0 <= x | y << 15 < 2**31"),
        ("0 <= x | (y | z) << 15 < 2**31", "x | (y | z) << 15 < 2**31"),
    ),
    *_of(
        "detmode/cuda/launch.py",
        "tests/cuda/test_signature.py",
        ("_device_of = Tensor.get_device", "_device_of = lambda tensor: tensor.get_device()"),
        ("source.signature(entry).check_tensors(bound[1])", "pass"),
        ("        if _are_alike:", "        if True:"),
        ('or name.startswith("_")', "or False"),
    ),
    *_of(
        _RULES + "upsample_aa/kernels.cu",
        "tests/rules/test_truth.py -k upsample_aa",
        ("if (resize.scale >= opmath_t(1)) support =", "if (resize.scale > opmath_t(2)) support ="),
    ),
    *_of(
        _RULES + "grid_sampler/sample.cuh",
        _FUZZ("grid_sampler"),
        ("y.index[j] >= 0 && z.index[k] >= 0;", "y.index[j] >= 0;"),
        ("stride.h == row) && (size.d", "true) && (size.d"),
    ),
    *_of(
        _RULES + "grid_sampler/kernels.cu",
        _FUZZ("grid_sampler"),
        ("sample.y.index[j] < 0 || sample.z.index[k] < 0", "sample.z.index[k] < 0"),
        ("pixel < first + owned && pixel + step > first", "pixel < first + owned && pixel > first"),
    ),
    *_of(
        _INCLUDE + "sum_to_zeros.cuh",
        _FUZZ("grid_sampler"),
        ("totals.any(0) || totals.any(1)", "totals.any(0)"),
    ),
    *_of(
        _INCLUDE + "accumulator.cuh",
        _FUZZ("grid_sampler"),
        ("to_opmath(sum) == 0 ? from_opmath<scalar_t>(0) : sum", "sum"),
        ("if (takes && before > keys[0].of[0]) keys[0].of[0] = before;", ""),
        ("if (takes) parts[0][k] += before;", ""),
    ),
    *_of(
        _INCLUDE + "index.cuh",
        _FUZZ("grid_sampler"),
        (
            "atomicAdd(halves, low) + low < low ? 1 : 0",
            "atomicAdd(halves, low) + low < low ? 0 : 0",
        ),
    ),
    *_of(
        _ROWS + "assign.cu",
        _FUZZ("max_unpool"),
        ("raise_in_block(owners + in_strip, from)", "owners[in_strip] = from"),
        ("source_of_plane[owners[i]]", "source_of_plane[owners[0]]"),
    ),
    *_of(
        _RULES + "deform_conv2d/kernels.cu",
        _FUZZ("deform_conv2d"),
        ("mul_rn(to_opmath(mask[taps.in_mask(tap)]), value) : value", "value : value"),
    ),
    *_of(
        _RULES + "roi_pools/align.cu",
        _FUZZ("roi_pools"),
        ("if (!aligned && !(size >= 1)) size = 1;", "if (!(size >= 1)) size = 1;"),
    ),
    *_of(
        _RULES + "roi_pools/pool.cu",
        _FUZZ("roi_pools"),
        ("if (pixel == -1) return -1;", "if (pixel <= 0) return -1;"),
    ),
    *_of(
        _RULES + "ctc_loss/kernels.cu",
        _FUZZ("ctc_loss"),
        ("compared == label && j < position", "compared == label && j <= position"),
    ),
    *_of(
        _ROWS + "extrema.cu",
        _FUZZ("index"),
        ("if (include_self && extremum<scalar_t>::key_of", "if (extremum<scalar_t>::key_of"),
    ),
)

TABLE = (
    *_of(
        "detmode/table/conditions.py",
        "tests/test_conditions.py",
        (
            "call.device_types.isdisjoint(device_types),",
            "call.device_types.issuperset(device_types),",
        ),
        ("tensor.requires_grad and torch.is_grad_enabled()", "tensor.requires_grad"),
        ("call.arguments.get(name) is not None, (name,)", "name in call.arguments, (name,)"),
        ("lambda call: first(call) and second(call)", "lambda call: first(call) or second(call)"),
    ),
    *_of(
        "detmode/table/rule.py",
        "tests/mode/test_table.py tests/rules/test_versions.py",
        ("return since <= version <= until", "return since <= version < until"),
        ('return self.alert[variant == "out"]', "return self.alert[0]"),
        ("(Refuse() if self.alert else Native())", "Native()"),
    ),
    *_of(
        "detmode/table/rule_table.py",
        "tests/mode/test_table.py tests/mode/test_variants.py",
        ("RuleTable._of([*other._rows, *kept]", "RuleTable._of([*kept, *other._rows]"),
        (
            "return (_overload_name(rule.op), rule.when, rule.since, rule.until)",
            "return (_overload_name(rule.op), rule.when)",
        ),
        ("functional_signature(functional) == functional_signature(func)", "True"),
    ),
)

STATE = (
    *_of(
        "detmode/cuda/allocation.py",
        "tests/cuda/test_allocation.py",
        ("step *= size or least", "step *= size"),
        ("return first, last, *between", "return first, *between, last"),
        ("elif input.is_contiguous():", "elif True:"),
        ("if is_formed and (", "if is_formed or ("),
        ("return _poison(_on_cpu(sizes, strides, dtype))", "pass"),
    ),
    *_of(
        "detmode/cuda/undo.py",
        "tests/mode/test_undo.py tests/mode/test_threads.py tests/mode/test_left_elsewhere.py",
        ("for step in reversed(self._steps):", "for step in self._steps:"),
        ("if self.is_here:", "if True:"),
        ("each is not mine and not each.is_idle()", "not each.is_idle()"),
        ("self._threads.clear()", "pass"),
    ),
    *_of(
        "detmode/environment/process_setting.py",
        "tests/mode/test_block.py tests/mode/test_threads.py tests/mode/test_flags.py",
        ("self._open[later[0]] = self._open[block]", "pass"),
        ("self._chosen = after = found", "after = found"),
        ("if len(self._active) > 1:", "if False:"),
        ("except Exception as error:", "except ConflictError as error:"),
    ),
    *_of(
        "detmode/environment/settings.py",
        "tests/mode/test_block.py tests/mode/test_threads.py tests/mode/test_flags.py",
        ("not _get_flag() or _get_warn_only() or", "not _get_flag() or"),
        ("UNSETTLED if FLAG._active or FLAG._waiting else", "UNSETTLED if FLAG._active else"),
    ),
    *_of(
        "detmode/environment/seeding.py",
        "tests/test_seeding.py",
        ("seed = worker.seed % (_LARGEST + 1)", "seed = worker_id"),
        ("return partial(torch.set_rng_state, on_host)", "return int"),
        ("if not 0 <= value <= _LARGEST:", "if not 0 <= value:"),
    ),
    *_of(
        "detmode/environment/nccl.py",
        "tests/test_doctor.py tests/test_conditions.py",
        ('("nvls",) if _on_one_node() else ("nvls", "nvlstree")', '("nvls",)'),
        ('_ALGORITHMS - listed if names.startswith("^") else listed', "listed"),
    ),
    *_of(
        "detmode/sites/forward_memory.py",
        "tests/mode/test_allow.py tests/mode/test_forward_memory.py",
        (" - node.name().endswith(_COPY_SLICES)", ""),
        ("allowed += self._allowed_around(node)", "pass"),
        ("[node, *_nodes_around()] if", "[node] if"),
        ("if all(patterns in note.allowed for note in notes)", "if True"),
        ("_get_frame(3)", "_get_frame(4)"),
    ),
)

MODE = (
    *_of(
        "detmode/mode/substitution.py",
        "tests/mode/test_variants.py tests/rules/test_written.py",
        ("if size > 1 and stride <= reach:", "if size > 1 and stride < reach:"),
        ("return start < last and first < end", "return start <= first < end"),
        ("            target.copy_(result)\n        return target", "        return target"),
        ('arguments = {**arguments, "dtype": target.dtype}', "pass"),
    ),
    *_of(
        "detmode/mode/decide.py",
        "tests/mode/test_decide.py",
        (
            "isinstance(rule.without_substitute, Native) and is_flag_on",
            "isinstance(rule.without_substitute, Native)",
        ),
        ("(is_silent and not policy.strict)", "is_silent"),
        ("not (policy.substitute or override)", "not policy.substitute"),
    ),
    *_of(
        "detmode/mode/interception.py",
        "tests/test_pytest_plugin.py",
        ("self._known is not None and self._known(call)", "False"),
    ),
    *_of(
        "detmode/mode/listed.py",
        "tests/mode/test_listed.py",
        ("return _guest_of(_levels[-1]) if _levels else None", "return None"),
        ("if not _levels or not batch.is_complete:", "if not _levels:"),
        ("and _choices(other) != _choices(level):", "and False:"),
    ),
    *_of(
        "detmode/mode/listed_operators.py",
        "tests/mode/test_listed.py tests/mode/test_listed_costs.py",
        ("is_forward = rows.is_forward(op)", "is_forward = False"),
        ("row.rule.when.arguments and _SETTINGS", "_SETTINGS"),
    ),
    *_of(
        "detmode/mode/changed_settings.py",
        "tests/mode/test_changed_settings.py",
        ("elif warns_only:", "elif False:"),
        ("if CUDNN_BENCHMARK.chosen():", "if False:"),
    ),
    *_of(
        "detmode/table/overload_info.py",
        "tests/mode/test_views.py",
        ('and func.namespace == "aten"', ""),
    ),
    *_of(
        "detmode/mode/row_counter.py",
        "tests/mode/test_report.py tests/mode/test_logging.py",
        ("calls.count += 1", "calls.count += 2"),
        ("if logged > _LINES:", "if logged >= _LINES:"),
    ),
)

RUNS = (
    *_of(
        "detmode/runs/align.py",
        "tests/runs/test_align.py",
        ("at = (anchor[0] + 1, anchor[1] + 1)", "at = anchor"),
    ),
    *_of(
        "detmode/runs/difference.py",
        "tests/runs/test_dumps.py tests/test_testing.py",
        ("(bytes_of_one != bytes_of_other).any(1)", "(bytes_of_one != bytes_of_other).all(1)"),
    ),
    *_of(
        "detmode/runs/diff.py",
        "tests/runs/test_recording.py tests/runs/test_faults.py",
        ("one.first_draws.get(name, i) >= i", "True"),
        ("if same_inputs and not _is_collective(", "if not _is_collective("),
    ),
    *_of(
        "detmode/runs/ranks.py",
        "tests/runs/test_ranks.py",
        ("if known is False:", "if known is None:"),
        ("key=lambda rank: (collectives_before(rank), rank)", "key=lambda rank: rank"),
    ),
    *_of(
        "detmode/runs/trace_index.py",
        "tests/runs/test_recording.py tests/runs/test_faults.py",
        ("self.anchors.append(whole if from_outside else 0)", "self.anchors.append(whole)"),
        (
            "kinds.setdefault((shape.overload, shape.sides), len(kinds))",
            "kinds.setdefault((shape.overload, shape.sides, shape.site), len(kinds))",
        ),
    ),
)

REPORTS = (
    *_of(
        "detmode/reports/report.py",
        "tests/mode/test_report.py",
        ("return self.overload, self.action, self.site", 'return self.overload, "", self.site'),
        (
            "(_NAMES.index(record.action), -record.count)",
            "(_NAMES.index(record.action), record.count)",
        ),
    ),
    *_of(
        "detmode/reports/verdict.py",
        "tests/mode/test_report.py",
        ('return bool(head.get("devices", rows))', "return True"),
        ("    elif gaps:\n", "    elif False:\n"),
    ),
    *_of(
        "detmode/environment/threads.py",
        "tests/mode/test_other_threads.py",
        ("    _local.followers = followers\n", ""),
    ),
    *_of(
        "detmode/environment/doctor/__init__.py",
        "tests/test_doctor.py",
        (
            "tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))",
            "tuple(found)",
        ),
    ),
    *_of("detmode/reports/html.py", "tests/reports", ("autoescape=True", "autoescape=False")),
    *_of(
        "detmode/reports/sarif.py",
        "tests/reports",
        ("max(int(line), 1)", "int(line) - 1"),
        (
            '"level": page.level(row.group),\n                "message"',
            '"level": "note",\n                "message"',
        ),
    ),
    *_of(
        "detmode/reports/modules.py",
        "tests/reports",
        ("alike.setdefault((names[0], len(names)), [])", "alike.setdefault((names[0], 0), [])"),
    ),
    *_of(
        "detmode/cli/program.py",
        "tests/test_cli.py",
        ('"DETMODE_LOG", "").lower() == "debug"', '"DETMODE_LOG", "").lower() != "debug"'),
        ("say(str(error.code))", "pass"),
    ),
    *_of(
        "detmode/testing/baseline.py",
        "tests/test_pytest_plugin.py",
        ("linecache.getline(file, int(line)).strip()", "line"),
    ),
    *_of(
        "detmode/cuda/files.py",
        "tests/test_files.py tests/cuda/test_cache.py",
        ("replace_entry(os.path.realpath(path),", "replace_entry(path,"),
        ("if os.getpid() == owner:", "if True:"),
        (
            "return None if stat.S_ISREG(about.st_mode) else os.open(path, os.O_WRONLY)",
            "return None",
        ),
    ),
    *_of(
        "detmode/cli/commands/output.py",
        "tests/test_files.py",
        ("setattr(options, name, path.absolute())", "pass"),
    ),
    *_of(
        "detmode/environment/lock/drift.py",
        "tests/test_foreign_files.py",
        ("return (*_unlocked(locked, here), *drifts(locked, here))", "return drifts(locked, here)"),
        ("return Drift(*map(in_a_line, texts))", "return Drift(*texts)"),
    ),
    *_of(
        "detmode/runs/trace_file.py",
        "tests/test_foreign_files.py",
        ("{text_of(key): text_of(each) for key", "{text_of(key): each for key"),
    ),
)

_COMPILED = "tests/compiled/test_{}.py".format

COMPILED = (
    *_of(
        "detmode/compiled/hooks.py",
        f"{_COMPILED('compiled')} {_COMPILED('loading')}",
        ("install_guard(source.make_guard(GuardBuilder.EQUALS_MATCH))", "pass"),
        ("        _forget_deterministic_code()\n", ""),
    ),
    *_of(
        "detmode/compiled/current.py",
        _COMPILED("compiled"),
        ("{mode._overrides} {mode._simulate}", "{mode._simulate}"),
    ),
    *_of(
        "detmode/compiled/lowering.py",
        f"{_COMPILED('compiled')} {_COMPILED('inductor')} {_COMPILED('versions_and_caches')}",
        ("return written not in others and further(node)", "return further(node)"),
        ('if "upsample" in func._opname or _stays_whole(mode, func):', "if False:"),
        ("lowered.append(bool(met))", "lowered.append(False)"),
        ("is_sparse = any(", "is_sparse = all("),
        ('mock.patch.object(ir, "SplitScan", _unsplit(ir.Scan)),', ""),
    ),
    *_of(
        "detmode/compiled/timing.py",
        _COMPILED("inductor"),
        ("if option.name in given and given[option.name] == option.timed:", "if False:"),
        ('if len(getattr(kernel, "configs", ())) > 1:', "if False:"),
    ),
    *_of(
        "detmode/table/twins.py",
        _COMPILED("inductor"),
        ("tags = (torch.Tag.cudagraph_unsafe,)", "tags = ()"),
    ),
    *_of(
        "detmode/sites/graphs.py",
        f"{_COMPILED('compiled')} {_COMPILED('programs')}",
        ("if root and outermost.startswith(root):", "if False:"),
        ('base = base.removesuffix("_")', "pass"),
    ),
    *_of(
        "detmode/sites/forward_memory.py",
        _COMPILED("programs"),
        ("self._callers.keep(number, caller)", "pass"),
        ("except ValueError:", "except KeyError:"),
    ),
    *_of(
        "detmode/sites/lines.py",
        "tests/mode " + _COMPILED("programs"),
        (
            "if places is _MODULES:\n                if module is None:",
            "if False:\n                if True:",
        ),
        ("            if places is _ENGINES:\n                return None", "            pass"),
        ("if inner.f_code is _ENGINE_CALL:", "if False:"),
        ("if code is _MODULE_CALL or _is_wrapper(code):", "if code is _MODULE_CALL:"),
        ("        elif has_wrappers and _is_wrapper(code):", "        elif False:"),
        ("return _OTHERS if code is INTERPRETER else _places", "return _places"),
        ("_compiled = convert_frame.input_codes.seen", "pass"),
        ("if path is None and (modules", "if path is not None and (modules"),
    ),
    *_of(
        "detmode/runs/graphs.py",
        _COMPILED("observers"),
        ('if options.get("is_backward"):', "if False:"),
        ("fresh -= used", "pass"),
    ),
)

_RANKS = "tests/distributed/test_{}.py".format

MANY_RANKS = (
    *_of(
        "detmode/distributed/exact_sums.py",
        _RANKS("exact_sums"),
        ("for places in (1, 2, 3):", "for places in (1, 2):"),
        ("return codes.add_(exponents.eq(_LARGEST_EXPONENT), alpha=_GAP)", "return codes"),
        ("nan | (positive == negative)", "nan"),
        ("for place in (2, 1):", "for place in (1, 2):"),
    ),
    *_of(
        "detmode/distributed/exact_norm.py",
        _RANKS("exact_sums"),
        ("_DIGITS, _BITS = 3, 28", "_DIGITS, _BITS = 1, 28"),
    ),
    *_of(
        "detmode/distributed/buckets.py",
        f"{_RANKS('buckets')} {_RANKS('microbatches')}",
        ("if self._used[number] or flags[number]:", "if self._used[number]:"),
        ("sizes = (-(-each.numel() // block) * block", "sizes = (each.numel()"),
        ("part[parameter.numel() :].zero_()", "pass"),
    ),
    *_of(
        "detmode/distributed/microbatches.py",
        _RANKS("microbatches"),
        ("seed_everything(digest((self._seed, step, index))", "seed_everything(digest((step,))"),
        ("set_rng_state(generators)", "pass"),
        ("self._ranks.broadcast(tensors)", "pass"),
        ("factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)", "factor = max_norm / (norm + 1e-6)"),
    ),
    *_of(
        "detmode/distributed/averaged_buffers.py",
        _RANKS("microbatches"),
        ("buffer.copy_(self._old[name])", "pass"),
        ("if not torch.equal(extremes[0], -extremes[1]):", "if False:"),
    ),
    *_of(
        "detmode/distributed/check.py",
        _RANKS("check_ranks"),
        ("self._optimizers[stepped] = any(", "self._optimizers[stepped] = True or any("),
        ("if self._steps % self._every == 0:", "if self._steps % self._every == 1:"),
        ("if tables[:, 0, 3].any():", "if False:"),
        ("self._agreed = check.step", "pass"),
        ("if len(set(steps.values())) > 1:", "if False:"),
    ),
    *_of(
        "detmode/distributed/verdict.py",
        _RANKS("check_ranks"),
        ("parties[1:] if len(parties[0]) * 2 > ranks else parties", "parties[1:]"),
        ("if each and each.shard == shard}", "if each}"),
    ),
    *_of(
        "detmode/distributed/one_report.py",
        f"{_RANKS('one_report')} {_RANKS('launchers')}",
        ("self.starts_again = failed and not rank.is_last_attempt", "self.starts_again = False"),
        ("elif died:", "elif False:"),
        ("named.pop(rank.name, None)", "pass"),
    ),
    *_of(
        "detmode/cli/launchers.py",
        _RANKS("launchers"),
        ('program = ["-m", *program]', "pass"),
        ('if launching[-1:] == ["--"]:', "if False:"),
    ),
    *_of(
        "detmode/environment/callbacks.py",
        _RANKS("hooks"),
        ("if not future.done() and", "if False and"),
    ),
    *_of(
        "detmode/environment/patched.py",
        "tests/test_patched.py",
        ("if self._held(owner) is stand_in.function:", "if True:"),
        ("return (replacement if self.is_active else original)(", "return replacement("),
        ("held = original = original.__wrapped__", "break"),
    ),
    *_of(
        "detmode/runs/collectives.py",
        "tests/runs/test_ranks.py tests/runs/test_parallel.py",
        ("self._counts[group, peers] += 1", "self._counts[group] += 1"),
        ("return ranks[self.peers[0] : self.peers[0] + 1]", "return ranks"),
    ),
    *_of(
        "detmode/runs/memory.py",
        "tests/runs/test_recording.py tests/runs/test_parallel.py",
        ("return UNDEFINED if undefined == n_bytes else PARTLY", "return UNDEFINED"),
        (
            "return DEFINED if storage.nbytes() or not tensor.numel() else UNDEFINED",
            "return DEFINED",
        ),
    ),
    *_of(
        "detmode/runs/marks.py",
        "tests/runs/test_recording.py tests/runs/test_uninitialized.py",
        ("new[self._places[put_back]] = self._held[put_back]", "pass"),
    ),
    *_of(
        "detmode/runs/levels.py",
        "tests/runs/test_levels.py",
        ("self._open.clear()", "pass"),
        ('"gradients": _plain([each.grad for each in parameters]),', ""),
        (
            "else [generator.get_state() for generator in default_generators().values()],",
            "else [],",
        ),
    ),
    *_of(
        "detmode/runs/trace_writer.py",
        "tests/runs/test_levels.py tests/runs/test_recording.py",
        ("continue  # one cannot be written", "pass  # one cannot be written"),
        ("self._thread.join()", "pass"),
    ),
    *_of(
        "detmode/runs/checkpoints.py",
        "tests/runs/test_levels.py tests/runs/test_ranks.py",
        ("if None not in leaves:", "if True:"),
        ("root_of(leaves).hex()", "root_of(leaves[:1]).hex()"),
    ),
)

_CERTIFICATES = "tests/certificates/test_commuting.py tests/certificates/test_certify.py"

CERTIFICATES = (
    *_of("detmode/cuda/host/intrinsics.h", _CERTIFICATES, ("(sizeof(T) == 8 ? 1 : 0)", "0")),
    *_of(
        "detmode/cuda/host/dropped.py",
        _CERTIFICATES,
        ('and all(words[each] == "{" for each in opened)', ""),
        ('and words[position + 1 : position + 2] == [";"]', ""),
        ("and not _is_compared(words, position)", ""),
    ),
    *_of(
        "detmode/verify/certificates/orders.py",
        _CERTIFICATES,
        ("(low < high) | (low == ORDERED)", "low < high"),
        ("if stops is None or stops in meets:", "if stops in meets:"),
    ),
    *_of(
        "detmode/verify/certificates/cuda.py",
        _CERTIFICATES,
        ("if touched is None or watch.stopped:", "if touched is None:"),
        ("touched = None if watch.stopped else watch.touched", "touched = watch.touched"),
    ),
)

# What no sample reaches: a second strip, what a failure leaves, the edges of shapes and versions.
UNSEEN = (
    *_of(
        _ROWS + "integer_sums.cu",
        _FUZZ("index") + " -k strips",
        (
            "totals.finish(i);\n    }\n    __syncthreads();\n  }\n}",
            "totals.finish(i);\n    }\n  }\n}",
        ),
    ),
    *_of(_ROWS + "shapes.py", _FUZZ("index") + " -k width", ("run % AT_ONCE == 0", "True")),
    *_of(
        _RULES + "index/launch.py",
        _FUZZ("index") + " -k mask",
        ("unique=masks == [True]", "unique=any(masks)"),
    ),
    *_of(
        _INCLUDE + "accumulator.cuh",
        "tests/cuda/test_primitives.py -k shifts",
        ("value > (uint64_t(1) << 63) ? 1", "value >= (uint64_t(1) << 63) ? 1"),
    ),
    *_of(
        "detmode/cuda/host/schedule.h",
        "tests/cuda/test_host.py -k barrier",
        ("S.shuffled && count > 1", "S.shuffled && count > 64"),
    ),
    *_of(
        "detmode/cuda/host/races.h",
        "tests/cuda/test_races.py",
        ("if (!reads) mark->releases.n = 0;", ""),
        ("(first.bytes == now.bytes && ordered(first, self))", "ordered(first, self)"),
        ("require_known(from, bytes, (kind & WRITE) != 0, code);\n    return;", "return;"),
    ),
    *_of(
        "detmode/verify/certificates/cuda.py",
        "tests/certificates/test_certify.py -k another_order",
        ("if conflicts.add(*_uses(touched)):", "if conflicts.add(*_uses(touched)) and False:"),
    ),
    *_of(
        "detmode/distributed/microbatches.py",
        "tests/distributed/test_microbatches.py -k failed",
        ("            self._gradients.clear()\n            set_rng", "            set_rng"),
        ("            self._buffers.restore()\n", ""),
    ),
    *_of(
        "detmode/runs/recording.py",
        "tests/runs/test_trace_file.py -k killed",
        ("mentions this call.\n                self._running -= 1", "mentions this call."),
    ),
    *_of(
        "detmode/table/conditions.py",
        "tests/test_conditions.py",
        ("zip(tensor.shape[-3:], pooled.shape[-3:])", "zip(tensor.shape[-2:], pooled.shape[-2:])"),
        ("decided(tensor.numel() == 1,", "decided(tensor.numel() <= 1,"),
    ),
    *_of(
        "detmode/table/chain.py",
        "tests/rules/test_versions.py -k both_ends",
        ('"since": "2.15",', '"since": "2.14",'),
    ),
    *_of(
        "detmode/integrations/training.py",
        "tests/distributed/test_buckets.py -k integration",
        ("world()[1] < 3", "world()[1] < 4"),
    ),
)

MUTANTS = (
    *(*KERNELS, *TABLE, *STATE, *MODE, *COMPILED, *RUNS, *MANY_RANKS, *REPORTS, *CERTIFICATES),
    *UNSEEN,
)
