"""The map of the engines that a configuration names, without an engine."""

import pytest

from tests.unit.layout.models import architecture, moe
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError, LayoutError
from verl_hpc.layout.rollout import rollout_shard_map, stage_groups
from verl_hpc.layout.vllm import vllm_shard_map

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


@pytest.mark.parametrize("tied", [True, False])
def test_a_stage_has_its_layers_and_the_ends_of_the_model_lie_at_the_ends(tied):
    arch = architecture(num_layers=4, tied_embeddings=tied)
    config = RolloutConfig(pipeline_parallel=2)
    shard_map = rollout_shard_map(config, arch, ((4, 5, 6, 7),), "float32")
    holders = {}
    for region in shard_map.regions:
        holders.setdefault(region.tensor, set()).update(region.holders)
    first, last = {4, 5}, {6, 7}
    for name, ranks in holders.items():
        if name == "model.embed_tokens.weight":
            assert ranks == (first | last if tied else first)
        elif name.startswith(("model.layers.0.", "model.layers.1.")):
            assert ranks == first
        else:
            assert ranks == last, name
    assert holders.keys() == shard_map.tensors.keys()


def test_an_engine_has_its_stages_one_after_another():
    assert stage_groups(((0, 1, 2, 3), (4, 5, 6, 7)), 2) == [[(0, 1), (4, 5)], [(2, 3), (6, 7)]]


def test_layers_that_do_not_divide_over_stages_are_refused():
    config = RolloutConfig(pipeline_parallel=3)
    with pytest.raises(LayoutError, match=r"pipeline_parallel = 3 does not divide .* 4 layers"):
        rollout_shard_map(config, architecture(num_layers=4), ((0, 1, 2),), "float32")


def test_a_stage_without_experts_is_refused_where_vllm_refuses_it():
    glm = moe("glm4_moe", num_layers=4, num_dense_layers=2, dense_ffn_size=12)
    told = r"pipeline_parallel = 2: the 2 layers of the first stage have no experts"
    with pytest.raises(LayoutError, match=told):
        rollout_shard_map(RolloutConfig(pipeline_parallel=2), glm, ((0, 1),), "float32")
    rollout_shard_map(RolloutConfig(), glm, ((0, 1),), "float32")


def test_vllm_has_a_router_in_float32():
    glm = moe("glm4_moe", num_dense_layers=1, dense_ffn_size=12)
    found = rollout_shard_map(RolloutConfig(), glm, ((0,),), "bfloat16").tensors
    in_float32 = {name for name, spec in found.items() if spec.dtype == "float32"}
    names = ("gate.weight", "gate.e_score_correction_bias")
    assert in_float32 == {f"model.layers.{n}.mlp.{name}" for n in (1, 2, 3) for name in names}
