"""Reading `config.json`: published models' sizes, transformers' own tensors, and refusals."""

import json
import re
from math import prod
from pathlib import Path

import pytest

from tests.mpi.any_models import (
    BFLOAT16_IN_VLLM,
    LATENT,
    MODELS,
    NO_AUX,
    NOT_IN_VLLM,
    OTHER_IN_VLLM,
    UNKNOWN_TO_VLLM,
)
from tests.unit.layout.models import LLAMA_31_ROPE, PUBLISHED
from verl_hpc.errors import LayoutError, ModelError
from verl_hpc.hf.model import resolved
from verl_hpc.layout.architecture import architecture_from, read_architecture
from verl_hpc.layout.families import FAMILIES
from verl_hpc.layout.megatron import TrainLayout, check_megatron_layout
from verl_hpc.layout.not_mapped import BY_NAME, COMPUTED, NOT_MAPPED
from verl_hpc.layout.not_mapped import REFUSED as NOT_TRAINED
from verl_hpc.layout.published import listed_shapes
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.layout.vllm import check_vllm_layout
from verl_hpc.testing.tiny import make_tiny_model

LLAMA = PUBLISHED["Llama-3.1-8B"][0]
MOE = PUBLISHED["Qwen3-30B-A3B"][0]
PHI = PUBLISHED["Phi-4"][0]
ERNIE = PUBLISHED["ERNIE-4.5-0.3B-PT"][0]
MISTRAL = PUBLISHED["Mistral-7B-v0.3"][0]
QWEN = PUBLISHED["Qwen2.5-7B"][0]
DEEPSEEK = PUBLISHED["DeepSeek-V3"][0]
GLM = PUBLISHED["GLM-4.5-Air"][0]
GATED = PUBLISHED["Qwen1.5-MoE-A2.7B"][0]
GPT_OSS = PUBLISHED["gpt-oss-20b"][0]


def without(config, *names):
    return {name: value for name, value in config.items() if name not in names}


@pytest.mark.parametrize("model", PUBLISHED)
def test_parameters_of_published_models(model):
    config, parameters = PUBLISHED[model]
    arch = architecture_from(config)
    tensors = arch.tensors()
    assert arch.num_parameters == parameters
    in_float32 = sum(prod(tensors[name].shape) for name in arch.buffers)
    assert sum(spec.num_bytes for spec in tensors.values()) == 2 * (parameters + in_float32)
    assert sum(spec.num_bytes for spec in arch.tensors("float32").values()) == 4 * parameters


def test_every_family_is_among_the_published_models():
    assert {config["model_type"] for config, _ in PUBLISHED.values()} == set(FAMILIES)


@pytest.mark.parametrize(
    "family, needs",
    [
        ("qwen", "its publisher's own Python code, which is not run here"),
        ("qwen2_vl", "images in prompts of a family whose image tokens were not compared"),
    ],
)
def test_a_known_family_is_refused_with_what_it_needs(family, needs):
    """Also where sizes are in a section for text, which no mapped family has."""
    message = f"model_type = '{family}' is not supported: it needs {needs}"
    with pytest.raises(ModelError, match=message):
        architecture_from({"model_type": family, "text_config": {}})


def test_what_has_no_table_or_is_refused_is_transformers_name():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    mixtures = {name for name, family in FAMILIES.items() if family.table.expert_rows}
    assert not {*FAMILIES, *BY_NAME} & NOT_TRAINED.keys()
    assert FAMILIES.keys() & BY_NAME.keys() == mixtures
    assert NOT_MAPPED.keys() <= BY_NAME.keys() - mixtures
    unknown = {*BY_NAME, *NOT_TRAINED} - CONFIG_MAPPING_NAMES.keys()
    assert unknown == {"kimi_k2", "qwen"}
    # Every one of them was trained in tests, by the engine that it says.
    assert {family for family, _ in MODELS.values()} | {"kimi_k2"} == BY_NAME.keys()
    assert {n for n, e in BY_NAME.items() if e == "hf"} == OTHER_IN_VLLM | UNKNOWN_TO_VLLM


def test_the_page_has_each_family_in_the_row_of_its_tests():
    page = Path(__file__).parents[3].joinpath("docs/models.md").read_text(encoding="utf-8")
    _, table = page.split("| `model_type` | the trainer's and vLLM's log-probs |\n|---|---|\n")
    rows = table.partition("\n\n")[0].splitlines()
    near = MODELS.keys() - BFLOAT16_IN_VLLM - NOT_IN_VLLM - OTHER_IN_VLLM - {"nemotron_h_dense"}
    assert [set(re.findall(r"`(\w+)`", row)) for row in rows] == [
        near | {"nemotron_h"},
        BFLOAT16_IN_VLLM,
        NOT_IN_VLLM - {"mpt"},
        OTHER_IN_VLLM | {"cohere2", "mpt"},
    ]


def test_a_family_without_a_table_has_the_tensors_of_its_files(tmp_path):
    model = make_tiny_model(tmp_path, "olmo2", num_hidden_layers=1)
    arch = read_architecture(model)
    assert not arch.is_mapped and not arch.is_moe
    files = safetensors_shard_map(model)
    assert arch.tensors("float32") == files.tensors
    assert arch.num_parameters == files.num_bytes // 4
    with pytest.raises(LayoutError, match="'olmo2': it has no layer table.*engine: fsdp alone"):
        check_megatron_layout(arch, TrainLayout())
    (model / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"config.json alone does not .* no \*.safetensors"):
        read_architecture(model).tensors()


def test_sizes_that_publishers_of_gemma3_leave_out_are_those_of_transformers():
    from transformers import AutoConfig

    arch = architecture_from({"model_type": "gemma3", "vision_config": {"depth": 1}, **LEFT_OUT})
    text = AutoConfig.for_model("gemma3", **LEFT_OUT).text_config
    assert arch.vocab_size == text.vocab_size and arch.head_size == text.head_dim
    assert (arch.num_heads, arch.num_kv_heads) == (
        text.num_attention_heads,
        text.num_key_value_heads,
    )
    assert (arch.num_layers, arch.max_positions) == (34, text.max_position_embeddings)


LEFT_OUT = {"text_config": {"hidden_size": 2560, "num_hidden_layers": 34}}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden_size": None}, "hidden_size or n_embd .* not given as a positive integer"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers or .* not given as a positive integer"),
        ({"quantization_config": {"bits": 4}}, "quantised weights are not trained; convert them"),
        ({"is_encoder_decoder": True}, "only decoders are trained"),
        ({"use_bidirectional_attention": True}, "only models that read to the left are trained"),
        ({"vision_config": {"depth": 2}}, "images are in prompts of gemma3, qwen2_5_vl,"),
        ({"text_config": "x"}, "config: text_config = 'x': not a section of names and values"),
        ({"num_experts_per_tok": "8"}, "num_experts_per_tok = '8': not an integer of at least 0"),
        ({"num_experts_per_tok": [2, 2]}, r"num_experts_per_tok = \[2, 2\]: not an integer"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads = '2': not an integer of at least 1"),
        ({"head_dim": "x"}, "head_dim = 'x': not an integer"),
        ({"head_dim": -2}, "head_dim = -2: not an integer"),
        ({"moe_intermediate_size": [8]}, r"moe_intermediate_size = \[8\]: not an integer"),
        ({"num_hidden_layers": None, "layers_block_type": 4}, "num_hidden_layers or .* not given"),
    ],
)
def test_a_config_without_a_table_is_checked(changes, problem):
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {"model_type": "olmo2", "vocab_size": 9, "max_position_embeddings": 8, **sizes}
    assert architecture_from(config).num_layers == 2
    bloom = {"n_embed": 8, "n_layer": 2, "n_head": 2, "seq_length": 8, "vocab_size": 9}
    assert architecture_from({"model_type": "bloom", **bloom}).hidden_size == 8
    without = {n: v for n, v in config.items() if n in ("model_type", "vocab_size")}
    recurrent = architecture_from({**without, "n_embd": 8, "n_layers": 2})
    assert (recurrent.num_heads, recurrent.head_size, recurrent.max_positions) == (1, 8, None)
    check_vllm_layout(recurrent, 2)
    with pytest.raises(ModelError, match=problem):
        architecture_from(config | changes)


@pytest.mark.parametrize(
    "tensors", [["a"], {"a": 3}, {"a": ["x"]}, {"a": [0]}, {"a.{x}.b": [3]}], ids=str
)
def test_what_is_no_list_of_tensors_is_refused(tensors):
    with pytest.raises(ModelError, match="config.json: tensors.*: (not a section|give a list)"):
        listed_shapes({"tensors": tensors}, "config.json")


@pytest.mark.parametrize("family", COMPUTED)
def test_a_field_that_transformers_does_not_read_is_refused(family):
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 9}
    fields = COMPUTED[family]
    config = {"model_type": family, "text_config": sizes}
    known = {name: values[-1] for name, values in fields.items()}
    trained = config | {"text_config": sizes | known}
    assert architecture_from(trained, engine="fsdp").family == family
    for name, values in fields.items():
        other = "other" if isinstance(values[0], str) else not values[0]
        with pytest.raises(ModelError, match=f"{name} = {other!r}: .*{family} by {values[0]!r}"):
            architecture_from(config | {"text_config": sizes | {name: other}}, engine="fsdp")


EXPERTS = {
    "Qwen3-30B-A3B": {
        "47.mlp.gate": (128, 2048),
        "0.mlp.experts.127.up_proj": (768, 2048),
        "0.mlp.experts.0.down_proj": (2048, 768),
    },
    "Mixtral-8x7B": {
        "31.block_sparse_moe.gate": (8, 4096),
        "31.block_sparse_moe.experts.7.w1": (14336, 4096),
        "31.block_sparse_moe.experts.7.w3": (14336, 4096),
        "31.block_sparse_moe.experts.7.w2": (4096, 14336),
    },
}


@pytest.mark.parametrize("model", EXPERTS)
def test_every_expert_has_tensors_of_its_own(model):
    tensors, expected = architecture_from(PUBLISHED[model][0]).tensors(), EXPERTS[model]
    assert {n: tensors[f"model.layers.{n}.weight"].shape for n in expected} == expected


@pytest.mark.parametrize(
    "family", [name for name, family in FAMILIES.items() if not family.table.expert_rows]
)
@pytest.mark.parametrize("tied", [False, True])
def test_tensors_are_those_of_transformers(family, tied):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        family,
        num_hidden_layers=2,
        hidden_size=24,
        intermediate_size=40,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=50,
        tie_word_embeddings=tied,
        sliding_window=None,
        pad_token_id=None,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    arch = architecture_from(json.loads(config.to_json_string()))
    theirs = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert {name: spec.shape for name, spec in arch.tensors().items()} == theirs
    assert ("lm_head.weight" in theirs) is not tied


MIXTURES = {
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 24},
    "deepseek_v3": LATENT | NO_AUX,
    "direct queries": LATENT | NO_AUX | {"q_lora_rank": None, "n_shared_experts": 2},
    "glm4_moe": MODELS["glm4_moe"][1] | {"attention_bias": True},
    "qwen2_moe": MODELS["qwen2_moe"][1],
}


@pytest.mark.parametrize("name", MIXTURES)
def test_tensors_of_mixtures_are_those_that_transformers_saves(tmp_path, name):
    """Files have each expert on its own, and a router's bias; by table, and by names."""
    model = make_tiny_model(
        tmp_path, name.replace("direct queries", "deepseek_v3"), **MIXTURES[name]
    )
    arch, by_name = read_architecture(model), read_architecture(model, "fsdp")
    assert (arch.is_mapped, by_name.is_mapped) == (True, False)
    assert arch.tensors("float32") == safetensors_shard_map(model).tensors
    assert arch.tensors() == (found := resolved(by_name)).tensors(arch.dtype)
    assert arch.buffers == found.buffers


READ_ALIKE = {
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_size",
    "tie_word_embeddings": "tied_embeddings",
    "rms_norm_eps": "norm_epsilon",
    "max_position_embeddings": "max_positions",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "ffn_size",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_config_leaves_out_is_as_in_transformers(family):
    from transformers import AutoConfig

    theirs = AutoConfig.for_model("deepseek_v3" if family == "kimi_k2" else family)
    sizes = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
    given = {name: getattr(theirs, name) for name in (*sizes, "vocab_size")}
    experts = {"num_experts": 128} if FAMILIES[family].table.expert_rows else {}
    if FAMILIES[family].sigmoid_router:  # which vLLM does not take for granted
        experts = NO_AUX | {"norm_topk_prob": True}
    given |= {"model_type": family, "use_sliding_window": False}
    if given["hidden_size"] % given["num_attention_heads"]:  # nobody leaves it out there
        given["head_dim"] = 128
    ours = architecture_from(given | experts)
    for name, attribute in READ_ALIKE.items():
        if ours.latent is not None and name == "head_dim":  # theirs is that of rotated parts
            assert ours.latent.rope_size == theirs.head_dim
        elif (value := getattr(theirs, name, None)) is not None:
            assert getattr(ours, attribute) == value, name
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    is_scaled = theirs.rope_parameters["rope_type"] != "default"
    assert ours.rope_scaling == (theirs.rope_parameters if is_scaled else None)


def test_tensors_come_in_checkpoint_order():
    names = list(architecture_from({**LLAMA, "num_hidden_layers": 2}).tensors())
    assert names[0] == "model.embed_tokens.weight"
    assert names[-2:] == ["model.norm.weight", "lm_head.weight"]
    layers = [name.split(".")[2] for name in names[1:-2]]
    assert layers == sorted(layers)


def test_what_older_configs_leave_out():
    arch = architecture_from(without(LLAMA, "num_key_value_heads", "torch_dtype"))
    assert arch.num_kv_heads == arch.num_heads == 32
    assert arch.head_size == 4096 // 32
    assert (arch.rope_theta, arch.rope_scaling, arch.dtype) == (10000.0, None, "float32")


def test_newer_fields_win():
    assert architecture_from(PUBLISHED["Qwen3-0.6B"][0]).head_size == 128
    assert architecture_from({**LLAMA, "dtype": "float16"}).dtype == "float16"
    assert architecture_from(LLAMA).dtype == "bfloat16"


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA_31_ROPE},
        {"rope_parameters": {**LLAMA_31_ROPE, "rope_theta": 5e5}},
        {
            "rope_theta": 5e5,
            "rope_scaling": without(LLAMA_31_ROPE, "rope_type") | {"type": "llama3"},
        },
    ],
    ids=["pair of fields", "rope_parameters", "type instead of rope_type"],
)
def test_every_spelling_of_rotary_settings(fields):
    arch = architecture_from({**LLAMA, **fields})
    assert arch.rope_theta == 5e5
    assert {k: arch.rope_scaling[k] for k in LLAMA_31_ROPE} == LLAMA_31_ROPE


@pytest.mark.parametrize("scaling", [None, {}, {"rope_type": "default"}, {"type": "default"}])
def test_plain_rotary_embeddings_have_no_scaling(scaling):
    assert architecture_from({**LLAMA, "rope_scaling": scaling}).rope_scaling is None


PHI_128K = {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
SHORT = {"max_position_embeddings": 32768}
REFUSED = [
    (LLAMA, {"attention_bias": True}, "attention_bias = True"),
    (LLAMA, {"mlp_bias": True}, "mlp_bias = True"),
    (ERNIE, {"use_bias": True}, "use_bias = True"),
    (LLAMA, {"quantization_config": {"quant_method": "fp8"}}, "quantization_config", "fp8"),
    (LLAMA, {"hidden_act": "gelu"}, "hidden_act = 'gelu'", "silu"),
    # frequencies by length
    (
        LLAMA,
        {"rope_scaling": {"type": "dynamic", "factor": 2}},
        *("rope_type = 'dynamic'", "default, llama3, linear, yarn"),
    ),
    # a part of heads, also as older configurations say it
    (
        LLAMA,
        {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        "partial_rotary_factor = 0.5",
    ),
    (PHI, {"partial_rotary_factor": 0.75}, "partial_rotary_factor = 0.75"),
    (PHI, {"rope_scaling": PHI_128K}, "rope_type = 'longrope'"),
    # the window of Phi-3-mini-4k
    (
        PHI,
        {"sliding_window": 2047, "max_position_embeddings": 4096},
        *("sliding_window = 2047", "to 2047 in config.json"),
    ),
    (MOE, {"mlp_only_layers": [0]}, "mixture-of-experts"),
    (MOE, {"num_experts": 0}, "mixture of experts", "num_experts"),
    (MOE, {"decoder_sparse_step": 2}, "mixture-of-experts"),
    (
        MISTRAL,
        {"sliding_window": 4096} | SHORT,
        *("sliding_window = 4096", "max_position_embeddings = 32768", "to 4096 in config.json"),
    ),
    (
        QWEN,
        {"use_sliding_window": True, "sliding_window": 4096},
        *("sliding_window = 4096", "131072"),
    ),
    # windows that are left to transformers
    (without(MISTRAL, "sliding_window"), SHORT, "sliding_window = 4096", "to 4096 in config.json"),
    (
        without(QWEN, "sliding_window"),
        {"use_sliding_window": True},
        *("sliding_window = 4096", "131072"),
    ),
    (QWEN, WINDOWS, "layer_types", "sliding_attention", "full_attention"),
    (
        PUBLISHED["Qwen3-8B"][0],
        {"layer_types": ["linear_attention"]},
        *("layer_types", "linear_attention", "full_attention"),
    ),
    # transformers takes it for another family
    (MISTRAL, {"layer_types": ["full_attention"]}, "layer_types", "mistral", "ministral"),
    # rotary settings by kind of layer
    (
        LLAMA,
        {"rope_parameters": {"full_attention": {"rope_theta": 5.0}}},
        "rope_parameters.full_attention",
    ),
    (LLAMA, {"is_encoder_decoder": True}, "is_encoder_decoder = True"),
    # what Megatron-core's router by sigmoids, or vLLM, would compute otherwise
    (DEEPSEEK, {"scoring_func": "softmax"}, "scoring_func = 'softmax'", "computed with 'sigmoid'"),
    (without(DEEPSEEK, "topk_method"), {}, "topk_method = None", "set it to 'noaux_tc'"),
    (DEEPSEEK, {"norm_topk_prob": False}, "norm_topk_prob = False", "computed with True"),
    (DEEPSEEK, {"n_group": 7}, "n_group = 7 and topk_group = 4 with 256 experts"),
    (DEEPSEEK, {"topk_group": 9}, "n_group = 8 and topk_group = 9"),
    (DEEPSEEK, {"num_experts_per_tok": 1}, "num_experts_per_tok = 1: Megatron-core", "fsdp"),
    (DEEPSEEK, {"first_k_dense_replace": 61}, "first_k_dense_replace = 61", "61 layers"),
    (DEEPSEEK, {"moe_layer_freq": 2}, "dense layers among mixture-of-experts layers"),
    (DEEPSEEK, {"n_routed_experts": 0}, "mixture of experts", "n_routed_experts"),
    (DEEPSEEK, {"kv_lora_rank": None}, "kv_lora_rank = null", "needs this size"),
    (DEEPSEEK, {"num_key_value_heads": 64}, "num_key_value_heads = 64", "as many of both"),
    (DEEPSEEK, {"rope_interleave": False}, "rope_interleave = False"),
    (
        DEEPSEEK,
        {"rope_scaling": {"type": "linear", "factor": 2}},
        *("rope_type = 'linear'", "takes default and yarn"),
    ),
    # rotary embeddings of a part of each head
    (GLM, {"norm_topk_prob": False}, "norm_topk_prob = False", "computed with True"),
    (GLM, {"partial_rotary_factor": 1.5}, "partial_rotary_factor = 1.5", "heads of 128 elements"),
    (GLM, {"partial_rotary_factor": 0.51}, "partial_rotary_factor = 0.51", "an even number"),
    (
        GLM,
        {"rope_scaling": {"type": "linear", "factor": 2}},
        *("rope_type = 'linear' with partial_rotary_factor = 0.5", "parallel.engine: fsdp"),
    ),
    # what transformers refuses, or reads otherwise than vLLM
    (GLM, {"num_experts_per_tok": 0}, "num_experts_per_tok = 0", "remove it for 8"),
    (GLM, {"partial_rotary_factor": None}, "partial_rotary_factor = None", "remove it for 0.5"),
    (GATED, {"num_experts_per_tok": 0}, "num_experts_per_tok = 0", "remove it for 4"),
    (
        GATED,
        {"shared_expert_intermediate_size": None},
        *("shared_expert_intermediate_size = None", "remove it for 5632"),
    ),
    # what vLLM does not read
    (GATED, {"qkv_bias": False}, "qkv_bias = False"),
    (GATED, {"head_dim": 64}, "head_dim = 64 in a qwen2_moe", "2048 / 16"),
    (GATED, {"sliding_window": 0, "use_sliding_window": True}, "sliding_window = 0; a window"),
    # what is computed whatever these fields say
    (GPT_OSS, {"attention_bias": False}, "attention_bias = False; a gpt_oss", "with True alone"),
    (GPT_OSS, {"rms_norm_eps": 1e-6}, "rms_norm_eps = 1e-06; a gpt_oss", "rollout.engine: hf"),
    (GPT_OSS, {"swiglu_limit": 8.0}, "swiglu_limit = 8.0; a gpt_oss", "with 7.0 alone"),
    (GPT_OSS, {"swiglu_alpha": 1.0}, "swiglu_alpha = 1.0; a gpt_oss", "with 1.702 alone"),
    (GPT_OSS, {"tie_word_embeddings": True}, "tie_word_embeddings = True", "with False alone"),
    (GLM, {"tie_word_embeddings": True}, "tie_word_embeddings = True", "rollout.engine: hf"),
    (GPT_OSS, {"num_experts_per_tok": 1}, "num_experts_per_tok = 1", "parallel.engine: fsdp"),
    (
        GPT_OSS,
        {"rope_scaling": {**GPT_OSS["rope_scaling"], "attention_factor": 1.0}},
        *("rope_parameters.attention_factor = 1.0, which vLLM does not read", "engine: hf"),
    ),
    (
        GPT_OSS,
        {"rope_scaling": {**GPT_OSS["rope_scaling"], "beta_fast": None}},
        *("rope_parameters.beta_fast is not there, and vLLM needs it",),
    ),
    (GPT_OSS, {"rope_scaling": None}, "rope_type = 'default' is not supported", "are yarn"),
    (GPT_OSS, {"sliding_window": None}, "sliding_window = None and layer_types = None; every 2"),
    (GPT_OSS, {"layer_types": ["full_attention"] * 24}, "layer_types = ['full_attention', "),
    (GPT_OSS, {"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4", "to bfloat16 with"),
    ({}, {}, "model_type = None", "whose model_type names its family"),
    (LLAMA, {"model_type": {}}, "model_type = {}", "whose model_type names its family"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[2])
def test_variants_that_would_be_computed_wrongly_are_refused(case):
    config, changes, *expected = case
    with pytest.raises(ModelError) as caught:
        architecture_from({**config, **changes}, "dir/config.json")
    message = str(caught.value)
    assert message.startswith("dir/config.json: ")
    assert [words for words in expected if words not in message] == []


EVERY_WINDOW = {"layer_types": ["sliding_attention"], "use_sliding_window": True}


@pytest.mark.parametrize(
    "config, changes",
    [
        # a window that is switched off, that is of every position, or of shortened ones
        (QWEN, {"sliding_window": 4096}),
        (QWEN, {"use_sliding_window": True}),
        (MISTRAL, {"sliding_window": 4096, "max_position_embeddings": 4096}),
        (QWEN, EVERY_WINDOW),
        (QWEN, {"attention_bias": True}),
        # as transformers saves them
        (GATED, {"head_dim": 128, "qkv_bias": True, "sliding_window": 0}),
        (QWEN, {"layer_types": ["full_attention"], "return_dict": True}),
        (LLAMA, {"pad_token_id": -1}),
        (GPT_OSS, {"layer_types": ["sliding_attention", "full_attention"] * 12}),
        (LLAMA, {"is_encoder_decoder": False}),
    ],
)
def test_variants_that_change_nothing_are_read(config, changes):
    architecture_from({**config, **changes})


def test_missing_fields_are_named_together():
    message = r"^config: hidden_size, vocab_size are needed and not given; give"
    with pytest.raises(ModelError, match=message):
        architecture_from(without(LLAMA, "hidden_size", "vocab_size"))


def test_a_directory_or_the_file_itself(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA))
    assert read_architecture(tmp_path) == read_architecture(str(file)) == architecture_from(LLAMA)


def test_an_absent_config_is_named(tmp_path):
    for absent in (tmp_path, tmp_path / "nothing"):
        message = f"no config.json at {re.escape(str(absent))}.*; give a Hugging Face"
        with pytest.raises(ModelError, match=message):
            read_architecture(absent)
