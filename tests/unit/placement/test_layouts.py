"""From a configuration to layouts, and the refusals on the way."""

from dataclasses import replace

import pytest

from tests.unit.config.trees import GAE, parse
from tests.unit.layout.models import architecture, deepseek, moe
from verl_hpc.errors import ConfigError
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.published import Published
from verl_hpc.placement.layouts import layouts_of, run_layouts

MODEL = architecture(vocab_size=128, max_positions=1024)


def lay_out(num_ranks, archs=None, ranks_per_node=None, **changes):
    config = parse(**changes)
    return run_layouts(config, MODEL, num_ranks, archs=archs, ranks_per_node=ranks_per_node)


def refusal(num_ranks, **changes):
    with pytest.raises(ConfigError) as caught:
        lay_out(num_ranks, **changes)
    return str(caught.value)


def ranks_of(layouts):
    """Where every role, the rollout and the scoring are."""
    return {name: layouts.pools[pool].ranks for name, pool in layouts.pool_of.items()}


def test_data_parallelism_takes_the_ranks_that_are_left():
    layouts = lay_out(8, parallel__tensor_parallel=2, parallel__pipeline_parallel=2)
    assert layouts.train == {"actor": TrainLayout(tp=2, pp=2, dp=2)}
    assert layouts.pools["train"].groups == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert layouts.pools["train"].ranks == tuple(range(8))
    assert lay_out(1).train == {"actor": TrainLayout()}


def test_context_parallel_ranks_have_the_same_samples():
    layouts = lay_out(8, parallel__context_parallel=2, parallel__pipeline_parallel=2)
    (layout,) = layouts.train.values()
    assert layout == TrainLayout(cp=2, pp=2, dp=4) and layout.num_replicas == 2
    assert layouts.pools["train"].groups == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert layouts_of(layouts)["actor"] == {"tp": 1, "pp": 2, "dp": 2, "cp": 2}
    lay_out(8, parallel__context_parallel=4, parallel__data_parallel=2)
    assert "x context_parallel 3 = 3 does not divide the 8 ranks" in refusal(
        8, parallel__context_parallel=3
    )
    message = refusal(8, parallel__context_parallel=4, parallel__data_parallel=8)
    assert "give 2; start 32 ranks" in message


def test_the_papers_grouping_where_it_applies():
    layouts = lay_out(8, parallel__tensor_parallel=4, rollout__tensor_parallel=2)
    assert layouts.grouping == "zero_redundancy"
    assert layouts.replicas == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert layouts.num_replicas == 4


def test_neighbours_where_it_does_not_or_where_asked():
    wider = lay_out(8, parallel__tensor_parallel=2, rollout__tensor_parallel=4)
    assert (wider.grouping, wider.replicas) == ("contiguous", ((0, 1, 2, 3), (4, 5, 6, 7)))
    asked = lay_out(
        4, parallel__tensor_parallel=4, rollout__tensor_parallel=2, rollout__grouping="contiguous"
    )
    assert asked.replicas == ((0, 1), (2, 3))


def test_engines_of_several_stages_are_neighbours():
    layouts = lay_out(8, parallel__tensor_parallel=2, rollout__pipeline_parallel=2)
    assert (layouts.grouping, layouts.replicas) == ("contiguous", ((0, 1), (2, 3), (4, 5), (6, 7)))
    message = refusal(3, rollout__pipeline_parallel=3)
    assert "rollout pipeline_parallel = 3 does not divide the model's 4 layers" in message


def test_chunks_of_an_interleaved_pipeline():
    layouts = lay_out(2, parallel__pipeline_parallel=2, parallel__virtual_pipeline=2)
    assert layouts.train["actor"] == TrainLayout(pp=2, vpp=2)


def test_a_stated_number_of_replicas_is_checked():
    sizes = {"parallel__tensor_parallel": 2, "parallel__data_parallel": 4}
    assert lay_out(8, **sizes).train["actor"].dp == 4
    message = refusal(4, **sizes)
    for words in (
        "data_parallel = 4",
        "4 ranks",
        "2 ranks of a replica",
        "give 2",
        "start 8 ranks",
    ):
        assert words in message


def test_sequences_fit_the_models_positions():
    message = refusal(1, rollout__max_prompt_tokens=1000, rollout__max_response_tokens=25)
    for words in ("max_prompt_tokens 1000", "max_response_tokens 25 = 1025", "1024 positions"):
        assert words in message
    lay_out(1, rollout__max_prompt_tokens=1000, rollout__max_response_tokens=24)


def test_answers_of_an_evaluation_fit_the_actors_positions():
    source = {"kind": "files", "paths": ["test.jsonl"]}
    lengths = {"rollout__max_prompt_tokens": 500, "rollout__max_response_tokens": 100}
    sets = {"aime24": {"source": source, "max_response_tokens": 525}}
    message = refusal(1, evaluation__sets=sets, **lengths)
    told = "500 + evaluation.sets.aime24.max_response_tokens 525 = 1025 is above the 1024 positions"
    assert told in message
    sets["aime24"]["max_response_tokens"] = 524
    lay_out(1, evaluation__sets=sets, **lengths)
    short = architecture(vocab_size=128, max_positions=600)
    lay_out(1, **GAE, archs={"critic": short}, evaluation__sets=sets, **lengths)


def test_sequences_fit_the_positions_of_every_model():
    short = architecture(vocab_size=128, max_positions=512)
    lengths = {"rollout__max_prompt_tokens": 500, "rollout__max_response_tokens": 100}
    message = refusal(1, **GAE, archs={"critic": short}, **lengths)
    told = "500 + rollout.max_response_tokens 100 = 600 is above the 512 positions of the critic"
    assert told in message
    lay_out(1, **GAE, **lengths)


def test_responses_of_a_task_fit_the_positions_of_every_model():
    short = architecture(vocab_size=128, max_positions=512)
    lengths = {"rollout__max_prompt_tokens": 500, "rollout__max_response_tokens": 8}
    tasks = {"sums": {"max_response_tokens": 13}, "words": {}}
    message = refusal(1, **GAE, archs={"critic": short}, tasks=tasks, **lengths)
    assert "500 + tasks.sums.max_response_tokens 13 = 513 is above the 512 positions" in message
    tasks["sums"]["max_response_tokens"] = 12
    lay_out(1, **GAE, archs={"critic": short}, tasks=tasks, **lengths)


# Roles on ranks of their own

PPO = GAE | {"algorithm__kl": {"placement": "reward"}}
HALVES = {"train": "0-1", "rollout": "2-3"}


def test_without_labels_every_rank_does_everything():
    layouts = lay_out(4, **PPO)
    everyone = (0, 1, 2, 3)
    assert ranks_of(layouts) == dict.fromkeys(
        ["actor", "critic", "reference", "rollout", "scoring"], everyone
    )
    assert not layouts.is_split
    # Equal groups are one pool; what generates has its own, whose groups are the engines.
    assert {name: pool.groups for name, pool in layouts.pools.items()} == {
        "train": ((0,), (1,), (2,), (3,)),
        "rollout": ((0,), (1,), (2,), (3,)),
    }


def test_roles_run_on_the_label_of_their_name_or_on_train():
    layouts = lay_out(6, **PPO, placement={"train": "0-1", "rollout": "2-3", "critic": "4-5"})
    assert ranks_of(layouts) == {
        "actor": (0, 1), "critic": (4, 5), "reference": (0, 1),
        "rollout": (2, 3), "scoring": (2, 3),
    }  # fmt: skip
    assert layouts.is_split
    assert layouts.train["critic"] == TrainLayout(dp=2, first_rank=4)
    assert layouts.replicas == ((2,), (3,))


def test_generation_follows_the_actor():
    layouts = lay_out(4, **PPO, placement={"actor": "0-1", "critic": "2-3", "reference": "0-3"})
    found = ranks_of(layouts)
    assert found["rollout"] == found["scoring"] == found["actor"] == (0, 1)
    assert found["reference"] == (0, 1, 2, 3)
    assert found["critic"] == (2, 3)


def test_the_reference_is_where_the_actor_is():
    layouts = lay_out(4, **PPO, placement={"mine": "0-1", "train": "2-3"},
                      roles={"actor": {"placement": "mine"}})  # fmt: skip
    found = ranks_of(layouts)
    assert found["reference"] == found["actor"] == found["rollout"] == (0, 1)
    assert found["critic"] == (2, 3)


def test_a_shared_reference_has_the_layout_of_the_actor():
    layouts = lay_out(4, **PPO, roles={"actor": {"parallel": {"tensor_parallel": 2}}})
    assert layouts.train["reference"] == layouts.train["actor"] == TrainLayout(tp=2, dp=2)
    assert layouts.pool_of["reference"] == layouts.pool_of["actor"]
    assert layouts.train["critic"] == TrainLayout(dp=4)


def test_two_layouts_on_the_label_of_a_role_are_two_pools():
    """The actor on the critic's label, and the critic there, too."""
    layouts = lay_out(
        4,
        **GAE,
        placement={"critic": "0-3"},
        roles={"actor": {"placement": "critic", "parallel": {"tensor_parallel": 2}}},
    )
    assert layouts.pools[layouts.pool_of["actor"]].groups == ((0, 1), (2, 3))
    assert layouts.pools[layouts.pool_of["critic"]].groups == ((0,), (1,), (2,), (3,))


def test_the_reward_function_has_a_label_too():
    layouts = lay_out(4, placement=HALVES | {"rollout": 2, "reward": 3})
    assert ranks_of(layouts) == {"actor": (0, 1), "rollout": (2,), "scoring": (3,)}
    assert layouts.pools["reward"].groups == ((3,),)
    # A reward model on that label leaves the function where responses are generated.
    layouts = lay_out(
        4, placement=HALVES | {"rollout": 2, "reward": 3}, roles={"reward": {"path": "models/r"}}
    )
    assert ranks_of(layouts)["reward"] == (3,)
    assert ranks_of(layouts)["scoring"] == (2,)


def test_roles_have_layouts_of_their_own():
    layouts = lay_out(4, **PPO, parallel__tensor_parallel=2,
                      roles={"critic": {"parallel": {"pipeline_parallel": 2}}})  # fmt: skip
    assert layouts.train["actor"] == TrainLayout(tp=2, dp=2)
    assert layouts.train["critic"] == TrainLayout(pp=2, dp=2)
    assert layouts.pools[layouts.pool_of["actor"]].groups == ((0, 1), (2, 3))
    assert layouts.pools[layouts.pool_of["critic"]].groups == ((0, 2), (1, 3))


def test_engines_interleave_only_on_the_actors_ranks():
    layouts = lay_out(8, parallel__tensor_parallel=4, rollout__tensor_parallel=2,
                      placement={"train": "0-3", "rollout": "4-7"})  # fmt: skip
    assert (layouts.grouping, layouts.replicas) == ("contiguous", ((4, 5), (6, 7)))


def test_nodes_need_their_size():
    layouts = lay_out(4, ranks_per_node=2, placement={"train": "node 0", "rollout": "node 1"})
    assert ranks_of(layouts)["rollout"] == (2, 3)


def test_all_roles_read_the_same_token_ids():
    other = architecture(vocab_size=64, max_positions=1024)
    message = refusal(2, **GAE, archs={"critic": other})
    for word in ("roles.critic", "64 tokens", "128", "same tokenizer", "padded alike"):
        assert word in message


def test_a_teacher_names_no_more_tokens_than_there_are():
    def follows(top_k, **more):
        return {
            "recipe": "distillation",
            "distillation": {"name": "forward_kl", "top_k": top_k},
            "roles": {"teacher": {"path": "models/teacher"}},
            **more,
        }

    message = refusal(1, **follows(129))
    for word in ("distillation.top_k = 129", "128 tokens", "at most"):
        assert word in message
    lay_out(1, **follows(128))
    other = {"teacher": architecture(vocab_size=64, max_positions=1024)}
    assert "roles.teacher" in refusal(1, **follows(5, archs=other))


def test_delayed_fp8_shares_all_ranks_or_none():
    fp8 = {"model__fp8": {"recipe": "delayed"}, "model__dtype": "bfloat16"}
    message = refusal(4, **PPO, **fp8, placement={"train": "0-3", "critic": "2-3"})
    for word in ("model.fp8.recipe = delayed", "actor and critic", "share some"):
        assert word in message
    lay_out(4, **PPO, **fp8, placement={"train": "0-1", "critic": "2-3"})
    lay_out(4, **PPO, **fp8)


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"lora": {"rank": 4}}, "lora: a phi3's checkpoint has several layers in one tensor"),
        (
            {"rollout__quantization": "fp8", "algorithm__correction": {}},
            "rollout.quantization: a phi3's checkpoint has several layers in one tensor",
        ),
    ],
)
def test_what_is_not_mapped_of_tensors_that_hold_several_layers(changes, told):
    fused = architecture(family="phi3", vocab_size=128, max_positions=1024)
    with pytest.raises(ConfigError, match=told):
        run_layouts(parse(**changes), fused, 1)
    run_layouts(parse(), fused, 1)


def test_adapters_of_fully_shard_are_checked_by_names():
    shapes = {"model.layers.0.mlp.w1.weight": (8, 4), "model.layers.0.mlp.experts.w2": (2, 8, 4)}
    own = {"vocab_size": 128, "max_positions": 1024}
    arch = architecture(family="olmo2", published=Published({}, shapes), **own)
    run_layouts(parse(parallel__engine="fsdp", lora={"target_modules": ["w1"]}), arch, 2)
    told = "lora.target_modules: w2 is no linear layer of a olmo2 .* these are w1"
    with pytest.raises(ConfigError, match=told):
        run_layouts(parse(parallel__engine="fsdp", lora={"target_modules": ["w1", "w2"]}), arch, 2)
    fused = architecture(family="phi3", **own)
    with pytest.raises(ConfigError, match="lora: a phi3's checkpoint has several layers in one"):
        run_layouts(parse(parallel__engine="fsdp", lora={}), fused, 2)
    dense = architecture(**own)
    with pytest.raises(ConfigError, match="lora.target_modules: w1 is no linear layer"):
        run_layouts(parse(parallel__engine="fsdp", lora={"target_modules": ["w1"]}), dense, 2)
    run_layouts(parse(parallel__engine="fsdp", lora={"target_modules": ["q_proj"]}), dense, 2)


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"lora": {"rank": 4}}, "lora: adapters of a deepseek_v3's multi-latent attention"),
        (
            {"rollout__quantization": "fp8", "algorithm__correction": {}},
            "rollout.quantization: scales of kv_b_proj of a deepseek_v3",
        ),
    ],
)
def test_what_is_not_mapped_of_latent_attention_and_layers_of_two_kinds(changes, told):
    arch = deepseek(vocab_size=128, max_positions=1024)
    with pytest.raises(ConfigError, match=told):
        run_layouts(parse(**changes), arch, 1)
    run_layouts(parse(parallel__pipeline_parallel=2), arch, 4)


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"lora": {"rank": 4}}, "lora: a glm4_moe has shared experts, or dense layers"),
        (
            {"rollout__quantization": "fp8", "algorithm__correction": {}},
            "rollout.quantization: a glm4_moe has shared experts, or dense layers",
        ),
    ],
)
def test_what_is_not_mapped_of_mlps_besides_routed_experts(changes, told):
    sizes = {"num_dense_layers": 1, "dense_ffn_size": 12, "shared_ffn_size": 8}
    arch = moe("glm4_moe", vocab_size=128, max_positions=1024, **sizes)
    with pytest.raises(ConfigError, match=told):
        run_layouts(parse(**changes), arch, 1)


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"lora": {"rank": 4}}, "lora: a gpt_oss has .* or all experts in one tensor"),
        (
            {"rollout__quantization": "fp8", "algorithm__correction": {}},
            "rollout.quantization: a gpt_oss's checkpoint has several layers in one tensor",
        ),
    ],
)
def test_what_is_not_mapped_of_experts_in_one_tensor(changes, told):
    arch = moe("gpt_oss", vocab_size=128, max_positions=1024)
    with pytest.raises(ConfigError, match=told):
        run_layouts(parse(**changes), arch, 1)


def test_a_router_without_a_bias_is_not_balanced_by_it():
    changes = {"model__router": {"bias_update_rate": 0.001}}
    run_layouts(parse(**changes), deepseek(vocab_size=128, max_positions=1024), 1)
    told = "model.router.bias_update_rate = 0.001: the routers of a mixtral choose"
    with pytest.raises(ConfigError, match=told):
        run_layouts(parse(**changes), moe(vocab_size=128, max_positions=1024), 1)


def stages(**parallel):
    sizes = {"pipeline_parallel": 2, "recompute": "full", **parallel}
    return {f"parallel__{name}": value for name, value in sizes.items()}


REFUSED = [
    (6, {"parallel__tensor_parallel": 2, "parallel__pipeline_parallel": 2},
     ["tensor_parallel 2 x pipeline_parallel 2 = 4", "6 ranks", "multiple of 4"]),
    (3, {"parallel__tensor_parallel": 3}, ["parallel: ", "tensor_parallel = 3", "8 attention"]),
    (7, {"parallel__pipeline_parallel": 7}, ["parallel: ", "4 layers", "pipeline_parallel = "]),
    (4, {"rollout__tensor_parallel": 3}, ["rollout: ", "tensor_parallel = 3", "4 ranks"]),
    (16, {"parallel__tensor_parallel": 8, "rollout__tensor_parallel": 16},
     ["rollout: ", "tensor_parallel = 16", "8 attention heads"]),
    (4, {"parallel__tensor_parallel": 2, "rollout__tensor_parallel": 4,
         "rollout__grouping": "zero_redundancy"},
     ["parallel / rollout: ", "zero-redundancy", "(2)", "(4)"]),
    (2, stages(recompute_num_layers=4), ["= 4 does not divide", "(2)", "block"]),
    (2, stages(recompute_method="block", recompute_num_layers=3), ["= 3", "more than 2"]),
    (1, {"algorithm__router_replay": "rollout"},
     ["algorithm.router_replay = rollout", "no mixture of experts", "leave it out"]),
    (4, {"placement": {"train": "0-1", "rollout": "2"}}, ["rank 3 of 4", "nothing to do"]),
    (4, {"placement": {"train": "0", "rollout": "1"}}, ["rank 2 and 1 more of 4", "fewer ranks"]),
    (4, {"placement": {"train": "0-1", "rolout": "2-3"}},
     ["placement.rolout", "no role of recipe rl", "did you mean rollout"]),
    (4, {"recipe": "sft", "placement": {"train": "0-1", "rollout": "2-3"}},
     ["placement.rollout", "no role of recipe sft"]),
    (4, {"roles": {"actor": {"placement": "trainn"}}, "placement": HALVES},
     ["roles.actor.placement = trainn", "no such label", "did you mean train"]),
    (4, {"placement": {"train": "0-2", "rollout": "3"}, "parallel__tensor_parallel": 2},
     ["parallel: ", "the 3 ranks of placement.train; give it a multiple of 2"]),
    (4, GAE | {"placement": {"train": "0-1", "critic": "2-3"},
               "roles": {"critic": {"parallel": {"data_parallel": 4}}}},
     ["roles.critic.parallel.data_parallel = 4", "2 ranks"]),
    (4, GAE | {"roles": {"critic": {"parallel": {"pipeline_parallel": 4, "virtual_pipeline": 3}}}},
     ["roles.critic.parallel: "]),
    (4, {"placement": {"train": "0-1", "rollout": "2-3"}, "rollout__tensor_parallel": 4},
     ["rollout tensor_parallel = 4", "2 ranks"]),
]  # fmt: skip
"""Ranks, changes of the configuration, and what the refusal says."""


def test_what_cannot_be_laid_out_is_refused():
    for num_ranks, changes, words in REFUSED:
        message = refusal(num_ranks, **changes)
        for word in words:
            assert word in message, (changes, message)
    lay_out(2, **stages(recompute_num_layers=2))


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"algorithm__router_replay": "rollout"}, "parallel: .* parallel.engine: fsdp alone"),
        (
            {
                "parallel__engine": "fsdp",
                "rollout__tensor_parallel": 2,
                "rollout__expert_parallel": True,
            },
            "rollout.expert_parallel = True: a olmo2 has no layer table .*: leave it out",
        ),
        (
            {"parallel__engine": "fsdp", "rollout__pipeline_parallel": 2},
            "rollout.pipeline_parallel = 2: a olmo2 has no layer table .*: leave it out",
        ),
    ],
)
def test_advice_is_true_for_a_family_without_a_layer_table(changes, told):
    """Megatron-core does not train it, and it may have experts."""
    changes = {"rollout__engine": "vllm"} | changes
    by_name = replace(MODEL, family="olmo2", published=Published({}, {}))
    with pytest.raises(ConfigError, match=told):
        run_layouts(parse(**changes), by_name, 2)
