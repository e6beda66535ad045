"""Weights of vLLM engines: the ledger's bytes are those of the engine's storages, on every rank."""

from contextlib import closing

import pytest

from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import rollout_of
from tests.mpi.storages import storage_bytes
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.planner.memory.rollout import RolloutShape, rollout_weights

pytestmark = pytest.mark.world(4)
SIZES = VLLM_HEADS | {"num_hidden_layers": 4, "num_key_value_heads": 1}
EXPERTS = {
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2},
    "mixtral": {"num_local_experts": 4, "intermediate_size": 32},
}


# (tensor parallelism, pipeline stages, family, tied embeddings, dtype, whole experts)
CASES = [
    (1, 1, "llama", False, "bfloat16", False),
    (1, 2, "qwen2", True, "float32", False),
    (2, 1, "qwen3_moe", False, "float32", False),
    (2, 2, "qwen2", False, "bfloat16", False),
    (2, 2, "mixtral", False, "float32", True),
    (2, 2, "qwen3_moe", True, "bfloat16", True),
    (4, 1, "qwen3", True, "float32", False),
]


@pytest.mark.parametrize("tp, pp, family, tied, dtype, whole", CASES)
def test_weights_are_the_bytes_of_storages(here, tiny_model, tp, pp, family, tied, dtype, whole):
    fields = EXPERTS.get(family, {})
    directory = tiny_model(family, tied, **SIZES, **fields)
    size = tp * pp
    replicas = tuple(tuple(range(first, first + size)) for first in range(0, here.world.size, size))
    config = RolloutConfig(
        tensor_parallel=tp,
        pipeline_parallel=pp,
        expert_parallel=whole,
        max_prompt_tokens=32,
        max_response_tokens=16,
        kv_cache_gib=0.03,
    )
    shape = RolloutShape.of(read_architecture(directory), config, dtype, on_gpu=False)
    with closing(rollout_of(here, directory, replicas, config, dtype)) as engine:
        expected = rollout_weights(shape, here.world.rank % size // tp)
        assert storage_bytes(engine.weights.values()) == expected
