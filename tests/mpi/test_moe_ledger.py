"""What the ledger calls exact of a mixture of experts is the bytes of its engine's storages."""

from itertools import product

import pytest
import torch.distributed as dist

from tests.mpi import plugin
from tests.mpi.engines_for_tests import build_engine
from tests.mpi.mixtures import MODELS
from tests.mpi.test_ledger import counted
from tests.slow import mostly_slow
from verl_hpc.config.model import ModelConfig, ParallelConfig
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.planner.memory.role import resident
from verl_hpc.planner.memory.shape import RoleShape

LAYOUTS = {
    1: [{}],
    2: [
        {"dp": 2},
        {"dp": 2, "ep": 2},
        {"dp": 2, "etp": 2},
        {"tp": 2},
        {"tp": 2, "ep": 2},
        {"tp": 2, "etp": 2},
        {"pp": 2},
    ],
    4: [
        {"tp": 2, "dp": 2, "ep": 4},
        {"tp": 2, "dp": 2, "ep": 2},
        {"tp": 2, "dp": 2, "ep": 2, "etp": 2},
        {"pp": 2, "vpp": 2, "dp": 2, "ep": 2},
        {"dp": 4, "ep": 2},
    ],
    8: [{"tp": 2, "pp": 2, "dp": 2, "ep": 2, "etp": 2}, {"dp": 8, "ep": 4}],
}


MIXTURES = ["normalised", "mixtral"]


def pytest_generate_tests(metafunc):
    """Each layout with each model, head and element type; all eight of them take --slow."""
    sizes = LAYOUTS.get(plugin.session.world.size, [])
    models, heads, dtypes = MIXTURES, ["language_model", "value"], ["float32", "bfloat16"]
    cases = mostly_slow(product(sizes, models, heads, dtypes), every=3)
    metafunc.parametrize("sizes, model, head, dtype", cases)


@pytest.mark.world(*LAYOUTS)
def test_exact_terms_are_the_bytes_of_storages(here, tiny_model, sizes, model, head, dtype):
    layout = TrainLayout(**sizes)
    family, fields = MODELS[model]
    odd = {"hidden_size": 72, "num_attention_heads": 4, "num_key_value_heads": 4}
    # No powers of two, so that buffers are padded.
    directory = tiny_model(family, num_hidden_layers=4, **odd, **fields)
    engine = build_engine(
        here, directory, layout, sequence_parallel=layout.tp > 1, dtype=dtype, head=head
    )
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
    found = counted(engine)
    held = resident(shape, stage, replica)
    for term in ("weights", "gradients"):
        assert held[term] == found[term], term
    told = here.control.allgather((held["masters"], held["moments"]))
    wanted = here.control.allgather((found["masters"], found["moments"]))
    assert told == wanted
