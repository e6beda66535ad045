"""What micro-batches keep; tests/mpi/test_ledger_activations.py counts it on engines."""

from tests.unit.layout.models import architecture
from verl_hpc.config.model import ModelConfig, ParallelConfig
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.planner.memory.activations import in_flight, layer
from verl_hpc.planner.shape import RoleShape

ARCH = architecture(hidden_size=64, head_size=8)
MODEL = ModelConfig(path="none")


def shape(layout=None, **settings):
    return RoleShape.of(ARCH, layout or TrainLayout(), MODEL, ParallelConfig(**settings))


def test_inputs_of_layers_wait_in_host_memory():
    stages = TrainLayout(pp=2)
    there = in_flight(shape(stages, recompute="full"), 0, 100)
    away = in_flight(shape(stages, recompute="full", offload_activations=True), 0, 100)
    assert there.on_host == 0
    assert away.on_host == 2 * 2 * 100 * 64 * 2  # micro-batches, layers, tokens, bfloat16
    assert away.always + away.on_host == there.always
    assert away.again == there.again + 100 * 64 * 2  # the input that is on its way back


def test_context_parallel_ranks_on_gpus_keep_their_tokens_alone():
    alone, shared = shape(), shape(TrainLayout(dp=4, cp=4))
    assert layer(shared, 250).whole * 4 == layer(alone, 1000).whole
