"""DDP and FSDP, whose optimizers split compiled graphs."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.mode.compiled.test_compiled import COMPILED
from tests.shared import needs

pytestmark = [
    needs.compiler,
    # The compiler warns, of Python and of itself, by version.
    pytest.mark.filterwarnings("ignore"),
    COMPILED,
    pytest.mark.usefixtures("no_caches"),
]


WORLD = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tests.mode.compiled.test_programs import Stack, inside, rows, same_bits, train

rank, store, how, backend = int(sys.argv[1]), *sys.argv[2:]
# Small enough to split a graph of three blocks.
dist._DEFAULT_FIRST_BUCKET_BYTES = 300
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)

def make(compiled):
    torch._dynamo.reset()
    net = Stack()
    if how == "ddp":
        net = DistributedDataParallel(net, bucket_cap_mb=0.0003)
        return torch.compile(net, backend=backend) if compiled else net
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2,))
    for block in net.blocks:
        if compiled and how == "fsdp-around":
            block.compile(backend=backend)
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return torch.compile(net, backend=backend) if compiled and how == "fsdp-inside" else net

def run(net, **options):
    got, mode = inside(lambda: train(net, 5 + rank), **options)
    local = [each.to_local() if hasattr(each, "to_local") else each for each in got]
    return local, {key: n for key, n in rows(mode).items() if not key[0].startswith("c10d")}

expected, told = run(make(False))
got, seen = run(make(True))
again, _ = run(make(True), schedule_seed=3)
assert seen == told and len(seen) > 2, (seen, told)
assert same_bits(got, again)
assert backend == "inductor" or same_bits(got, expected)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "backend"),
    [
        ("ddp", "aot_eager"),
        ("ddp", "inductor"),
        *(
            (how, name)
            for how in ("fsdp-around", "fsdp-inside")
            for name in ("aot_eager", "inductor")
        ),
    ],
)
def test_processes(how, backend, run_python, tmp_path):
    """DDP, whose optimizer splits graphs, and FSDP around and inside compiled modules."""
    (tmp_path / "program.py").write_text(WORLD)
    arguments = str(tmp_path / "store"), how, backend
    with ThreadPoolExecutor() as pool:
        ranks = pool.map(lambda rank: run_python("program.py", str(rank), *arguments), range(2))
    for rank in ranks:
        assert rank.returncode == 0, rank.stderr
