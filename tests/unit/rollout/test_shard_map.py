"""The map of the engines that a configuration names, without an engine."""

import pytest

from tests.unit.layout.models import architecture
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError
from verl_hpc.layout.vllm import vllm_shard_map
from verl_hpc.rollout.shard_map import rollout_shard_map

ARCH = architecture()


def test_vllm_shards_over_the_ranks_of_a_replica():
    found = rollout_shard_map(RolloutConfig(), ARCH, ((2, 3),), "bfloat16")
    assert found.regions == vllm_shard_map(ARCH, ((2, 3),), "bfloat16").regions
    assert found.holders == (2, 3)


def test_transformers_has_every_tensor_whole_on_every_rank_that_generates():
    found = rollout_shard_map(RolloutConfig(engine="hf"), ARCH, ((2,), (4,)), "bfloat16")
    assert {region.holders for region in found.regions} == {(2, 4)}
    assert {r.tensor: r.box.shape for r in found.regions} == {
        name: spec.shape for name, spec in found.tensors.items()
    }
    assert {spec.dtype for spec in found.tensors.values()} == {"bfloat16"}


def test_transformers_has_no_tensor_parallelism():
    with pytest.raises(ConfigError, match=r"rollout.tensor_parallel = 2 .* choose 1, or engine"):
        rollout_shard_map(RolloutConfig(engine="hf"), ARCH, ((2, 3),), "float32")
