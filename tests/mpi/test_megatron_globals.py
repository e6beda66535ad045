"""Megatron-core's globals inside an engine of a layout, and outside."""

import pytest
import torch.distributed as dist
from megatron.core import parallel_state

from tests.mpi.engines_for_tests import build_engine, layouts, some_sequences
from verl_hpc.engines.factory import start_layouts
from verl_hpc.engines.megatron import parallel
from verl_hpc.layout.megatron import TrainLayout

pytestmark = pytest.mark.world(4)

SIZES = layouts(
    "one tp4 pp4 tp2 tp2-pp2 tp2-pp2-vpp2 ep4 tp2-ep2-etp2 tp2-pp2-ep2 tp4-etp2"
    " cp4 cp2 cp2-tp2 cp2-pp2-ep2 cp2-ep4"
)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_layouts_globals_are_those_that_megatron_core_sets(here, sizes):
    dp = here.world.size // (sizes.get("tp", 1) * sizes.get("pp", 1))
    layout = TrainLayout(**sizes, dp=dp)
    start_layouts(here.groups, [layout], seed=1)
    ours = parallel.started(layout).globals()
    before = set(dist.distributed_c10d._world.pg_map)
    vpp = layout.vpp if layout.vpp > 1 else None
    parallel_state.initialize_model_parallel(
        layout.tp,
        layout.pp,
        vpp,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp,
    )
    try:
        theirs = {name: vars(parallel_state)[name] for name in parallel.UNSET}
        assert parallel_state.is_initialized()
        compared = theirs.keys() - {"_GLOBAL_MEMORY_BUFFER"}
        assert {n: ranks_in(ours[n]) for n in compared} == {
            n: ranks_in(theirs[n]) for n in compared
        }
    finally:
        vars(parallel_state).update(parallel.UNSET)
        for group in set(dist.distributed_c10d._world.pg_map) - before:
            dist.destroy_process_group(group)


def ranks_in(value):
    if isinstance(value, dist.ProcessGroup):
        return dist.get_process_group_ranks(value)
    return list(value) if isinstance(value, (list, tuple)) else value


def test_outside_an_engine_megatron_core_knows_no_layout(here, tiny_model):
    layout = TrainLayout(tp=2, pp=2, vpp=2)
    engine = build_engine(here, tiny_model(num_hidden_layers=4), layout)
    engine.infer(some_sequences(4, engine.arch.vocab_size))
    assert not known_globals()
    entered = parallel.started(layout).entered
    with entered():
        assert parallel_state.is_initialized()
        with pytest.raises(KeyError), entered():
            raise KeyError
        assert parallel_state.is_initialized()
    assert not known_globals()


def known_globals() -> list[str]:
    state = vars(parallel_state)
    return [name for name, value in parallel.UNSET.items() if state[name] is not value]
