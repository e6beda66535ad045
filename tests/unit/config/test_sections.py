"""Rules inside one section, and the bounds of every kind of number."""

from functools import reduce

import pytest

from tests.unit.config.trees import GAE, parse
from verl_hpc.errors import ConfigError

INFINITY = float("inf")
FSDP, HF = {"engine": "fsdp"}, {"engine": "hf"}


GYM = {"kind": "reasoning_gym", "task": "a", "size": 1}
FILES = {"kind": "files", "paths": ["a.jsonl"]}
OUT_OF_BOUNDS = {
    "steps": [0, 1.5, True, "3", 2**31],
    "seed": [-1, 2**63, 10**30],
    "batch__size": [0, 10**9],
    "batch__max_tokens_per_micro_batch": [2**31],
    "optimizer__lr": [0.0, True, 1e30, INFINITY, "fast"],
    "optimizer__weight_decay": [-1e-9, 1e308],
    "optimizer__clip_grad": [1e308],
    "optimizer__beta1": [1.0, 1.1],
    "optimizer__beta2": [1],
    "roles__critic__optimizer": [{"beta1": 1.0}],
    "roles__critic__head": ["values"],
    "roles__critic__placement": ["Train"],
    "placement__train": [-1, 1.5, "1/0", "half", "", "0-3,5", "9" * 200],
    "rollout__num_samples": [10**9],
    "rollout__temperature": [-0.1, 1e-308, 0.0099, 1e308, float("nan")],
    "rollout__kv_cache_gib": [1e30],
    "rollout__top_p": [0.0, 1.1],
    "rollout__top_k": [-2],
    "rollout__gpu_memory_utilization": [0.0, 1.0],
    "runtime__threads_per_rank": [1_000_000],
    "runtime__collective_timeout_s": [1e308, 1e-300],
    "runtime__late_after_s": [1e-300, INFINITY],
    "reward__timeout_s": [0, 1e308, 1e-300],
    "algorithm__kl": [{"coefficient": 1e300}, {"estimator": "k4"}],
    "algorithm__loss__clip_low": [-0.1, 1.1],
    "algorithm__loss__clip_high": [-0.1],
    "algorithm__loss__dual_clip": [1.0],
    "algorithm__loss_scale": [0.0],
    "algorithm__entropy_coefficient": [INFINITY],
    "algorithm__aggregation": ["mean"],
    "checkpoint__keep": [0],
    "checkpoint__every": [-1],
    "data__train": [
        *(GYM | {"size": 10**30}, GYM | {"size": 10**9}, GYM | {"template": "no slot"}),
        *(FILES | {"paths": []}, FILES | {"limit": 10**30}),
    ],
}


@pytest.mark.parametrize("name, value", [(n, v) for n, vs in OUT_OF_BOUNDS.items() for v in vs])
def test_values_out_of_bounds_are_named(name, value):
    with pytest.raises(ConfigError) as caught:
        parse(**{name: value})
    assert name.replace("__", ".") in str(caught.value)


AT_BOUNDS = {
    "algorithm__loss__clip_low": [0.0, 1.0],
    "algorithm__loss__clip_high": [3.0],
    "algorithm__loss__dual_clip": [None],
    "algorithm__entropy_coefficient": [-0.01],
    "rollout__top_p": [1.0],
    "rollout__top_k": [-1],
    "optimizer__clip_grad": [0.0],
    "checkpoint__every": [0],
}


@pytest.mark.parametrize("name, value", [(n, v) for n, vs in AT_BOUNDS.items() for v in vs])
def test_values_at_their_bounds_are_taken(name, value):
    assert reduce(getattr, name.split("__"), parse(**{name: value})) == value


SELECTIVE = {"recompute": "selective"}
ELSEWHERE = {
    "max_num_seqs": (8, "max_num_seqs"),
    "quantization": ("fp8", "quantization"),
    "pipeline_parallel_size": (2, "pipeline_parallel"),
    "enable_expert_parallel": (True, "expert_parallel"),
}
EXPERTS = {
    "moe_backend": "flashinfer_trtllm",
    "enable_eplb": True,
    "expert_placement_strategy": "round_robin",
    "kernel_config": {"moe_backend": "aiter"},
}
LATE = {"schedule": "cosine", "decay_steps": 1, "warmup_steps": 2}
CONTRADICTIONS = [
    *(
        ("rollout", {"engine_options": {name: value}}, f"{name}: set rollout.{other} instead")
        for name, (value, other) in ELSEWHERE.items()
    ),
    *(
        ("rollout", {"engine_options": {name: value}}, "cannot be chosen: weights are written into")
        for name, value in EXPERTS.items()
    ),
    ("parallel", {"virtual_pipeline": 2}, "virtual_pipeline > 1 needs pipeline_parallel > 1"),
    ("parallel", {"sequence_parallel": True}, "sequence_parallel needs tensor_parallel > 1"),
    ("rollout", {"quantization": "fp8"}, "fp8 without algorithm.correction"),
    ("rollout", {"kv_cache_dtype": "fp8"}, "kv_cache_dtype = fp8 without algorithm.correction"),
    ("rollout", {"ignored_layers": ["layers.0"]}, "ignored_layers needs quantization: fp8"),
    ("rollout", HF | {"quantization": "fp8"}, "quantization: fp8 needs engine: vllm"),
    ("rollout", {"quantization": "fp8", "dtype": "float32"}, "fp8 with dtype: float32"),
    ("rollout", {"expert_parallel": True}, "expert_parallel needs tensor_parallel > 1: its"),
    ("rollout", HF | {"expert_parallel": True}, "expert_parallel needs engine: vllm"),
    ("rollout", HF | {"pipeline_parallel": 2}, "pipeline_parallel needs engine: vllm"),
    ("rollout", HF | {"engine_options": {"block_size": 32}}, "engine_options needs engine: vllm"),
    (
        "rollout",
        {"grouping": "zero_redundancy", "pipeline_parallel": 2},
        "grouping = zero_redundancy needs pipeline_parallel = 1; choose contiguous",
    ),
    ("parallel", {"recompute_num_layers": 2}, "recompute_num_layers needs recompute: full"),
    ("parallel", SELECTIVE | {"recompute_method": "block"}, "recompute_method needs recompute: f"),
    (
        "parallel",
        {"recompute": "full", "recompute_modules": ["mlp"]},
        "recompute_modules needs recompute: selective",
    ),
    ("parallel", SELECTIVE | {"recompute_modules": []}, "recompute_modules is empty"),
    *(
        ("parallel", SELECTIVE | {"recompute_modules": modules}, f"{modules[-1]} cannot be {why}")
        for modules, why in (
            (["layernorm"], "recomputed: Transformer Engine fuses"),
            (["mlp", "moe_act"], "recomputed: experts are"),
        )
    ),
    ("optimizer", LATE | {"schedule": "linear"}, "decay_steps = 1 is not above warmup_steps = 2"),
    ("optimizer", {"lr": 1e-6, "min_lr": 1e-5}, "min_lr = 1e-05 is above lr = 1e-06"),
    ("roles", {"critic": {"optimizer": LATE}}, "decay_steps = 1 is not above warmup_steps = 2"),
    ("algorithm.kl", {"controller": "adaptive"}, "adaptive needs placement: reward"),
    ("algorithm.kl", {"controller": "adaptive", "placement": "loss"}, "needs placement: reward"),
]


@pytest.mark.parametrize("section, settings, words", CONTRADICTIONS)
def test_settings_that_contradict_each_other(section, settings, words):
    changes = {f"{section}.{name}".replace(".", "__"): value for name, value in settings.items()}
    with pytest.raises(ConfigError) as caught:
        parse(**(GAE if section == "roles" else {}) | changes)
    assert words in str(caught.value)
    assert section.partition(".")[0] in str(caught.value), "the section is named"


KL_PLACEMENTS = [
    ("loss", "k1", ["expected gradient is zero", "k3 (the default)", "k2"]),
    ("loss", "abs", ["does not fade", "k3 (the default)"]),
    ("reward", "k2", ["hardly", "k1 (the default)"]),
    ("reward", "k3", ["hardly", "k1 (the default)"]),
    ("reward", "abs", ["hardly", "k1 (the default)"]),
]


@pytest.mark.parametrize("placement, estimator, words", KL_PLACEMENTS)
def test_kl_that_does_not_pull_to_the_reference(placement, estimator, words):
    kl = {"placement": placement, "estimator": estimator}
    with pytest.raises(ConfigError) as caught:
        parse(algorithm__kl=kl)
    allowed = "allow_biased: true"
    for word in [*words, "algorithm.kl", f"estimator: {estimator}", "arXiv 2512.21852", allowed]:
        assert word in str(caught.value)
    assert parse(algorithm__kl=kl | {"allow_biased": True}).algorithm.kl.estimator == estimator


@pytest.mark.parametrize("estimator", ["k1+", "k3+"])
def test_a_gradient_chosen_where_there_is_none(estimator):
    kl = {"placement": "reward", "estimator": estimator, "allow_biased": True}
    with pytest.raises(ConfigError, match=r"a reward has no gradient.*\+") as caught:
        parse(algorithm__kl=kl)
    assert "k1 (the default)" in str(caught.value)


def test_vllm_refuses_what_is_hotter_than_two():
    with pytest.raises(ConfigError, match=r"rollout.*temperature = 2.5: vLLM samples up to 2;"):
        parse(rollout__temperature=2.5)
    parse(rollout__temperature=2.0)
    parse(rollout__temperature=2.5, rollout__engine="hf")


def test_settings_that_agree():
    parse(parallel__virtual_pipeline=2, parallel__pipeline_parallel=2)
    parse(parallel__sequence_parallel=True, parallel__tensor_parallel=2)
    parse(optimizer__schedule="cosine", optimizer__decay_steps=5)
    parse(optimizer__schedule="cosine", optimizer__warmup_steps=5)
    parse(optimizer__lr=1e-6, optimizer__min_lr=1e-6)
    parse(algorithm__kl={"controller": "adaptive", "placement": "reward"})


def test_the_critic_learns_faster_than_the_actor():
    config = parse(**GAE)
    roles = config.role_settings
    assert roles["critic"].optimizer.lr == 1e-5
    assert roles["actor"].optimizer.lr == config.optimizer.lr == 1e-6


UNKNOWN_REWARDS = [
    ("gsm8", "reward.function = 'gsm8': no such function; did you mean gsm8k?"),
    ("zzz", "math, multiple_choice, reasoning_gym; your own is named"),
    ("my/reward.py", "path/to/file.py:function"),
]


@pytest.mark.parametrize("name, words", UNKNOWN_REWARDS)
def test_a_reward_function_that_is_not_known(name, words):
    with pytest.raises(ConfigError) as raised:
        parse(reward__function=name)
    assert words in str(raised.value)


WRONG_PATHS = {
    "": "at least 1 character",
    "a\0b": "control character",
    "a\nb": "line break",
    "x/" * 2500: "at most 4000",
    "a/" + "x" * 256: "255 bytes",
    "a/" + "é" * 128: "255 bytes",
}


@pytest.mark.parametrize(("path", "told"), WRONG_PATHS.items())
def test_paths_that_no_file_can_have(path, told):
    changes = {
        name: {name.replace(".", "__"): path}
        for name in ("model.path", "model.tokenizer", "directory", "roles.critic.path")
    }
    changes["roles.critic.path"] |= GAE
    changes["data.train.paths.0"] = {"data__train": {"kind": "files", "paths": [path]}}
    if path:
        changes["reward.function"] = {"reward__function": f"{path}:score"}
    for name, change in changes.items():
        with pytest.raises(ConfigError, match=f"  {name} = .*{told}") as caught:
            parse(**change)
        assert len(str(caught.value)) < 500


SFT = {"recipe": "sft", "evaluation__every": 1, "data__evaluation": GYM}
WITHOUT_ENGINE = [
    ({"recipe": "rl", "rollout__num_samples": 2}, "recipe: rl generates"),
    (SFT, "an evaluation generates"),
]


@pytest.mark.parametrize("changes, words", WITHOUT_ENGINE)
def test_what_generates_needs_an_engine(changes, words):
    with pytest.raises(ConfigError, match=f"rollout.engine = none, and {words}; choose vllm or hf"):
        parse(rollout__engine="none", **changes)


def test_a_recipe_of_ones_own_may_generate_nothing():
    assert parse(recipe="mine.py:dpo").generates
    assert not parse(recipe="mine.py:dpo", rollout__engine="none").generates


FULL = {"recompute": "full", "recompute_num_layers": 2}
GRAPHS = FSDP | {"fsdp": {"compile": "reduce-overhead"}}
NOT_SHARDED = [
    ({"parallel": {"engine": "deepspeed"}}, "deepspeed'?: .*choose fsdp"),
    ({"rollout__engine": "sglang"}, "rollout.engine = 'sglang': SGLang .*choose vllm, or hf"),
    ({"parallel": FSDP | {"tensor_parallel": 2}}, "tensor_parallel = 2 with engine = fsdp"),
    ({"parallel": FSDP | {"pipeline_parallel": 2}}, "pipeline_parallel = 2 with"),
    ({"parallel": FSDP | {"context_parallel": 2}}, "context_parallel = 2 with"),
    ({"parallel": FSDP | {"expert_parallel": 2}}, "expert_parallel = 2 with"),
    ({"parallel": GRAPHS}, "compile = 'reduce-overhead': this .*CUDA graphs.*Choose default, or n"),
    ({"parallel": FSDP | {"fsdp": {"compile": "max-autotune"}}}, "'max-autotune': .* CUDA graphs"),
    ({"parallel": FSDP | {"recompute": "selective"}}, "recompute = selective with"),
    ({"parallel": FSDP | FULL}, "recompute_num_layers = 2 with"),
    ({"parallel": {"fsdp": {"reduce_dtype": "bfloat16"}}}, "fsdp is given with engine = meg"),
    ({"parallel": FSDP, "lora": {"rank": 2}}, "lora .of the actor. with parallel.engine"),
    ({"parallel": FSDP, "model__fp8": {}}, "model.fp8 with parallel.engine = fsdp"),
    ({"parallel": FSDP, "model__router": {"z_loss": 1e-3}}, "model.router with"),
    (GAE | {"roles": {"critic": {"parallel": FSDP, "lora": {"rank": 2}}}}, "of the critic"),
]


@pytest.mark.parametrize(("changes", "words"), NOT_SHARDED)
def test_what_fully_shard_does_not_do_is_named(changes, words):
    with pytest.raises(ConfigError, match=words):
        parse(**changes)


def test_a_role_may_have_an_engine_of_its_own():
    chosen = {"engine": "fsdp", "recompute": "full", "fsdp": {"reshard_after_forward": False}}
    settings = parse(**GAE, roles={"critic": {"parallel": chosen}}).role_settings
    assert settings["actor"].parallel.engine == "megatron"
    assert not settings["critic"].parallel.fsdp.reshard_after_forward
