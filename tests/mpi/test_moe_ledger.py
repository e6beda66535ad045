"""What the ledger calls exact of a mixture of experts is the bytes of its engine's storages."""

from itertools import product

import pytest
import torch.distributed as dist

from tests.mpi import plugin
from tests.mpi.engines_for_tests import layouts
from tests.mpi.mixtures import engine_on, mixture
from tests.mpi.test_ledger import counted
from tests.slow import mostly_slow
from verl_hpc.config.model import ModelConfig, ParallelConfig
from verl_hpc.planner.memory.role import resident
from verl_hpc.planner.shape import RoleShape

LAYOUTS = {
    1: layouts("one"),
    2: layouts("dp2 dp2-ep2 dp2-etp2 tp2 tp2-ep2 tp2-etp2 pp2"),
    4: layouts("tp2-dp2-ep4 tp2-dp2-ep2 tp2-dp2-ep2-etp2 pp2-vpp2-dp2-ep2 dp4-ep2"),
    8: layouts("tp2-pp2-dp2-ep2-etp2 dp8-ep4"),
}


MIXTURES = ["normalised", "latent", "mixtral", "glm", "gated", "sinks"]


def pytest_generate_tests(metafunc):
    """Each layout with each model, head and element type; all eight of them take --slow."""
    sizes = LAYOUTS.get(plugin.session.world.size, [])
    models, heads, dtypes = MIXTURES, ["language_model", "value"], ["float32", "bfloat16"]
    cases = mostly_slow(product(sizes, models, heads, dtypes), every=3)
    metafunc.parametrize("sizes, model, head, dtype", cases)


@pytest.mark.world(*LAYOUTS)
def test_exact_terms_are_the_bytes_of_storages(here, tiny_model, sizes, model, head, dtype):
    # No powers of two, so that buffers are padded.
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    directory, _ = mixture(tiny_model, model, hidden_size=72, **heads)
    engine = engine_on(here, directory, sizes, dtype=dtype, head=head)
    layout = engine.layout
    shape = RoleShape.of(
        engine.arch,
        layout,
        ModelConfig(path="none", dtype=dtype),
        ParallelConfig(tensor_parallel=layout.tp, sequence_parallel=layout.tp > 1),
        head=head,
        on_gpu=False,
    )
    place = layout.grid.coordinates(dist.get_rank())
    replica, stage = place["dp"], place["pp"]
    counts = counted(engine)
    held = resident(shape, stage, replica)
    for term in ("weights", "gradients"):
        assert held[term] == counts[term], term
    told = here.control.allgather((held["masters"], held["moments"]))
    wanted = here.control.allgather((counts["masters"], counts["moments"]))
    assert told == wanted
