"""The mutants that are kept by hand: plausible slips that no operator of ``mutations.py`` makes.

Each is seen only by a test that was written for it: a race, an interrupt, what outlives its owner,
the order in which things are undone, an input that no sample has, a whole program. What tests of
samples see is not kept here: ``tools/mutate.py`` makes it from the source.

A mutant names a file and a function by as little as tells them from others, and quotes the words
that change: what moves or is renamed around them leaves it as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutations import Mutant, closing

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Kept:
    """Words of a function, and what they are changed to.

    Args:
        tests: names of test files, below ``tests``, and further arguments of pytest.
        file: the end of its path below ``detmode``.
        function: the end of its qualified name; empty for the whole file.
        old: words that stand in the function exactly once.
        new: the words that take their place.
    """

    tests: str
    file: str
    function: str
    old: str
    new: str

    def mutant(self) -> Mutant:
        """The mutant of the sources as they are.

        Raises:
            ValueError: the words are nowhere, or in several places.
        """
        places = [
            (path, text, first + found.start())
            for path in sorted((ROOT / "detmode").rglob(self.file))
            for text in [path.read_text(encoding="utf-8")]
            for first, last in functions(path, text, self.function)
            for found in re.finditer(re.escape(self.old), text[first:last])
        ]
        if len(places) != 1:
            raise ValueError(
                f"{self.old!r} stands {len(places)} times in {self.function or 'the whole'} of "
                f"{self.file}; correct the mutant in tools/mutants.py"
            )
        path, text, start = places[0]
        file, line = path.relative_to(ROOT).as_posix(), text.count("\n", 0, start) + 1
        return Mutant(file, start, self.old, self.new, "kept", self._arguments(), line)

    def _arguments(self) -> tuple[str, ...]:
        """The tests, each file by its path."""
        arguments: list[str] = []
        for word in self.tests.split():
            files = sorted((ROOT / "tests").rglob(word)) if word.endswith(".py") else []
            if word.endswith(".py") and not files:
                raise ValueError(f"no {word} below tests/; correct tools/mutants.py")
            arguments += [str(file.relative_to(ROOT)) for file in files] or [word]
        return tuple(arguments)


def functions(path: Path, text: str, name: str) -> list[tuple[int, int]]:
    """The bodies of the functions with the end of a qualified name, by their two ends."""
    if not name:
        return [(0, len(text))]
    if path.suffix == ".py":
        starts = [0, *(found.end() for found in re.finditer("\n", text))]
        return [
            (starts[node.lineno - 1], starts[node.end_lineno - 1] + node.end_col_offset)
            for qualified, node in _qualified(ast.parse(text), "")
            if f".{qualified}".endswith(f".{name}")
        ]
    return list(_in_braces(text, name))


def _qualified(node: ast.AST, outer: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for below in ast.iter_child_nodes(node):
        if isinstance(below, ast.FunctionDef | ast.ClassDef):
            if isinstance(below, ast.FunctionDef):
                yield outer + below.name, below
            yield from _qualified(below, f"{outer}{below.name}.")
        else:
            yield from _qualified(below, outer)


def _in_braces(text: str, name: str) -> Iterator[tuple[int, int]]:
    """Of CUDA: what stands in braces behind a name and its parameters."""
    for found in re.finditer(rf"\b{name}\(", text):
        behind = closing(text, found.end()) + 1
        opened = re.compile(r"(?:\s|const\b|noexcept\b)*\{").match(text, behind)
        if opened is not None:
            yield opened.end(), closing(text, opened.end(), "{}")


def _seen_by(tests: str, *changes: tuple[str, str, str, str]) -> tuple[Kept, ...]:
    return tuple(Kept(tests, *change) for change in changes)


# Threads of one block or of several, and the runner that looks for what they do.
RACES = (
    *_seen_by(
        "test_bits.py -k race --family index_copy",
        (
            "owner.cuh",
            "elect_last",
            "raise_to(owners + destination, position)",
            "owners[destination] = position",
        ),
    ),
    *_seen_by(
        "rows/test_rows.py -k looks_like",
        ("owner.cuh", "elect_marked", "rival = atomic_max(mark, position)", "*mark = position"),
    ),
    *_seen_by(
        "test_bits.py -k race --family scatter_reduce",
        (
            "integer_sums.cu",
            "index_add_strips",
            "atomicAdd(counts + in_strip, 1)",
            "counts[in_strip] += 1",
        ),
    ),
    *_seen_by(
        "test_bits.py -k race --family histograms",
        ("histograms/kernels.cu", "histc_count", "atomic_add(counts + b,", "counts[b] += ("),
    ),
    *_seen_by(
        "rows/test_interpolation.py",
        (
            "interpolation_small.cuh",
            "upsample_small",
            "__syncthreads();  // for the tables",
            "__syncwarp();",
        ),
    ),
    *_seen_by(
        "grid_sampler/test_properties.py",
        ("index.cuh", "add_in_block", "? 1 : 0", "? 0 : 0"),
        ("few_taps.cuh", "slot_of", "taken == pixel + 1", "taken == pixel"),
        ("few_taps.cuh", "zero_in_block", "(thread < n - behind)", "(thread + 1 < n - behind)"),
    ),
    *_seen_by(
        "grid_sampler/test_tiles.py",
        ("grid_sampler/kernels.cu", "grid_sampler_strips", "*needed == 0", "*needed == -1"),
    ),
    *_seen_by("test_sort.py", ("look_back.cuh", "count_before", "~(sum + count)", "~sum")),
    *_seen_by("test_host.py -k barrier", ("schedule.h", "pop_ready", "count > 1", "count > 64")),
    *_seen_by(
        "test_races.py",
        ("races.h", "note_mark", "if (!reads)", "if (false)"),
        ("races.h", "note", "first.bytes == now.bytes &&", ""),
    ),
)

# Certificates: what orders of blocks prove, and what a run that stopped midway does not.
ORDERS = (
    *_seen_by(
        "test_commuting.py test_certify.py",
        ("orders.py", "conflicting", "| (low == ORDERED)", ""),
        ("orders.py", "Conflicts._normal_forms", "stops is None or", ""),
        ("certificates/cuda.py", "_Search._every_order", "or watch.stopped", ""),
        ("certificates/cuda.py", "_Search._every_order", "watch.stopped or", ""),
        (
            "certificates/cuda.py",
            "_Search._every_order",
            "if conflicts.add(",
            "if 0 and conflicts.add(",
        ),
        ("intrinsics.h", "", "(sizeof(T) == 8 ? 1 : 0)", "0"),
    ),
)

# What is undone: in which order, by which thread, after a fork, after a failure.
UNDONE = (
    *_seen_by(
        "test_block.py test_blocks_of_threads.py test_setting.py test_flags.py test_undo.py "
        "test_left_elsewhere.py",
        ("undo.py", "Undo._run", "reversed(self._steps)", "self._steps"),
        ("undo.py", "Undo.run_in_thread", "self.is_here", "True"),
        ("undo.py", "Calls.elsewhere", "calls is not mine and", ""),
        ("process/setting.py", "Setting._release", "self._chosen = after =", "after ="),
        ("process/setting.py", "Setting._restore", "except Exception", "except _ConflictError"),
        ("torch_settings.py", "call_if_settled", "or FLAG._waiting", ""),
    ),
    *_seen_by(
        "test_listed.py test_listed_surroundings.py",
        ("listed.py", "_leave", "or not batch.is_complete", ""),
        ("listed.py", "acting", "_guest_of(_levels[-1])", "None"),
    ),
    *_seen_by(
        "test_patched.py",
        ("patched.py", "Patched._restore", "self._held(owner) is stand_in.function", "True"),
        ("patched.py", "_StandIn.__init__.function", "if self.is_active else original", ""),
    ),
    *_seen_by(
        "test_hooks.py", ("callbacks.py", "_waiting.get_future", "not future.done()", "False")
    ),
    *_seen_by(
        "test_allocation.py",
        ("allocation.py", "on_cpu", "_poison(_on_cpu(sizes, strides, dtype))", "None"),
    ),
)

# Files of users: links, pipes, forks, a process that is killed; generators of workers.
FILES = (
    *_seen_by(
        "test_files.py test_cache.py",
        ("files.py", "replace_file", "os.path.realpath(path)", "path"),
        ("files.py", "remove_folder", "os.getpid() == owner", "True"),
        ("files.py", "_stream", "stat.S_ISREG(about.st_mode)", "True"),
        ("output.py", "_make_absolute", "path.absolute()", "path"),
    ),
    *_seen_by(
        "test_foreign_files.py",
        (
            "drift.py",
            "drift",
            "*map(in_a_line, (title, first, second, _remedy(section, name, locked)))",
            "title, first, second, _remedy(section, name, locked)",
        ),
        ("checked.py", "checked", "return text_of(value)", "return value"),
    ),
    *_seen_by(
        "test_seeding.py",
        ("seeding.py", "seed_worker", "worker.seed % (_LARGEST + 1)", "worker_id"),
        ("seeding.py", "_read_torch", "partial(torch.set_rng_state, on_host)", "int"),
    ),
)

# Code that is compiled, loaded again, and run under another mode.
COMPILED = (
    *_seen_by(
        "test_compiled.py test_loading.py",
        ("hooks.py", "call_user_compiler", "install_guard(", "id("),
        ("current.py", "key_of", "{mode.overrides} ", ""),
    ),
    *_seen_by(
        "test_compiled.py test_inductor.py test_versions_and_caches.py",
        ("lowering.py", "_in_place.is_alone", "written not in others and", ""),
        ("lowering.py", "_put_twins.with_twins", "bool(met)", "False"),
        (
            "lowering.py",
            "keeping_whole",
            'mock.patch.object(ir, "SplitScan", _unsplit(ir.Scan)),',
            "",
        ),
        ("twins.py", "twin_of", "(torch.Tag.cudagraph_unsafe,)", "()"),
    ),
    *_seen_by(
        "test_compiled.py test_programs.py",
        ("graph_nodes.py", "_name", 'base.removesuffix("_")', "base"),
    ),
)

# The line of the user: a frame too many or too few, a call that forward made.
SITES = (
    *_seen_by(
        "test_allow.py test_forward_memory.py",
        ("autograd_nodes.py", "values_of", "- node.name().endswith(COPY_SLICES)", ""),
        ("forward_memory.py", "ForwardMemory._allowed_around", ", *nodes_around()", ""),
    ),
    *_seen_by(
        "tests/mode test_programs.py",
        ("lines.py", "_calls_backward", "inner.f_code is _ENGINE_CALL", "False"),
        (
            "lines.py",
            "_look_at",
            "code is _MODULE_CALL or _is_wrapper(code)",
            "code is _MODULE_CALL",
        ),
        ("lines.py", "_look_at", "_OTHERS if code is INTERPRETER else", ""),
    ),
)

# Several ranks, each a process: who waits for whom, who is blamed, what a stop leaves.
RANKS = (
    *_seen_by(
        "test_buckets.py test_microbatches.py",
        ("buckets.py", "_Bucket.mean", "or flags[number]", ""),
        ("microbatches.py", "_loop", "(self._seed, step, index)", "(step,)"),
        ("averaged_buffers.py", "end_microbatch", "buffer.copy_(", "id("),
    ),
    *_seen_by(
        "test_check_ranks.py",
        ("check_verdict.py", "_suspects", "if len(parties[0]) * 2 > ranks else parties", ""),
    ),
    *_seen_by(
        "test_one_report.py test_launchers.py",
        ("one_report.py", "OneReport._of_all", "failed and not rank.is_last_attempt", "False"),
        ("launchers.py", "under_detmode", '["-m", *program]', "program"),
    ),
    *_seen_by(
        "test_ranks.py test_parallel.py",
        (
            "runs/ranks.py",
            "_joined",
            "(sum(part.place < 0 for part in parts[rank].values()), rank)",
            "rank",
        ),
        (
            "collectives.py",
            "numbered",
            "counts[group, peers] += 1",
            "counts[group] += 1",
        ),
    ),
    *_seen_by(
        "test_levels.py test_ranks.py",
        ("checkpoints.py", "create_global_plan", "root_of(leaves)", "root_of(leaves[:1])"),
    ),
)

# Inputs that no sample has: a second strip, widths, masks, halves, edges of versions.
UNSEEN = (
    *_seen_by("rows/test_ways.py", ("ways.py", "_are_wide", "run % AT_ONCE == 0", "True")),
    *_seen_by(
        "index/test_properties.py",
        ("index/launch.py", "index_put", "masks == [True]", "any(masks)"),
    ),
    *_seen_by(
        "rows/test_rows.py",
        ("row_elements.cuh", "", "min_index(first + k * blockDim.x", "min_index(first + k"),
    ),
    *_seen_by(
        "rows/test_exponent_bins.py",
        ("exponent_bins.cu", "", "low | (below ? 1 : 0)", "low"),
        ("exponent_bins.cu", "", "!positive && to_opmath(out[i]) == 0", "!positive"),
    ),
    *_seen_by(
        "test_accumulator.py",
        (
            "sum_component.cuh",
            "scaled_in_double",
            "return __double2ll_rn(",
            "return __double2ll_rz(",
        ),
        ("sum_component.cuh", "scaled_by_shift", "below_half + odd)", "below_half)"),
    ),
    *_seen_by("test_versions.py -k both_ends", ("chain.py", "on_mps", '"2.15"', '"2.14"')),
    *_seen_by(
        "test_unwritten.py test_uninitialized.py",
        ("unwritten.py", "Memory.content", "storage.nbytes() or", ""),
    ),
)

# What a plan of a call holds for, and what its player must do as the launcher did.
PLANS = (
    *_seen_by(
        "test_plans.py test_forms.py",
        ("forms.py", "_part", 'f"repr({value})"', "value"),
        ("forms.py", "_Matcher._differences", "source != target", "False"),
        ("forms.py", "_Matcher._differences", "f\"({' | '.join(aligned)}) & 15\"", '"False"'),
        ("forms.py", "_Matcher._guard", "() is {is_enabled()}", "() is not None"),
        ("plans.py", "recording_of", "call.signature.out_names or ", ""),
    ),
)

KEPT = (*RACES, *ORDERS, *UNDONE, *FILES, *COMPILED, *SITES, *RANKS, *UNSEEN, *PLANS)
