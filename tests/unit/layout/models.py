"""Architectures small enough to enumerate, and `config.json` contents of published models."""

from collections.abc import Mapping
from typing import NamedTuple

from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.blocks import LatentAttention, RouterShape


class ExpertNames(NamedTuple):
    router: str
    experts: str
    gate: str
    up: str
    down: str


_IN_MLP = ExpertNames("mlp.gate.weight", "mlp.experts", "gate_proj", "up_proj", "down_proj")
EXPERT_NAMES: Mapping[str, ExpertNames] = {
    "mixtral": ExpertNames(
        "block_sparse_moe.gate.weight", "block_sparse_moe.experts", "w1", "w3", "w2"
    ),
    "qwen3_moe": _IN_MLP,
    "deepseek_v3": _IN_MLP,
    "glm4_moe": _IN_MLP,
    "qwen2_moe": _IN_MLP,
}


def architecture(**changes) -> Architecture:
    sizes = dict(
        family="llama",
        num_layers=4,
        hidden_size=6,
        ffn_size=8,
        num_heads=8,
        num_kv_heads=4,
        head_size=2,
        vocab_size=70,
        tied_embeddings=False,
        dtype="float32",
    )
    return Architecture(**{**sizes, **changes})


def moe(family="mixtral", **changes) -> Architecture:
    return architecture(family=family, **{"num_experts": 4, **changes})


LATENT = LatentAttention(q_rank=8, kv_rank=12, rope_size=4, nope_size=2, value_size=3)


def deepseek(**changes) -> Architecture:
    """Layers of both kinds: one of 4 is dense."""
    sizes = dict(
        family="deepseek_v3",
        num_kv_heads=8,
        head_size=6,
        ffn_size=4,
        num_experts=4,
        num_dense_layers=1,
        dense_ffn_size=12,
        shared_ffn_size=8,
        latent=LATENT,
        router=RouterShape(True, 2, 1, 2.5, True),
    )
    return architecture(**{**sizes, **changes})


def _config(family, sizes, **more):
    """`sizes` are layers, hidden, ffn, heads, key-value heads and vocabulary."""
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
    named = zip((*names, "num_key_value_heads", "vocab_size"), sizes, strict=True)
    return dict(model_type=family, **dict(named), hidden_act="silu", torch_dtype="bfloat16", **more)


LLAMA_31_ROPE = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}

LLAMA_31_405B = _config(
    "llama",
    (126, 16384, 53248, 128, 8, 128256),
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    rope_scaling=LLAMA_31_ROPE,
    max_position_embeddings=131072,
    attention_bias=False,
    mlp_bias=False,
    tie_word_embeddings=False,
)

DEEPSEEK_ROPE = {
    "type": "yarn",
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}

GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}

PUBLISHED = {
    "Llama-3.1-405B": (LLAMA_31_405B, 405_853_388_800),
    "Llama-3.1-70B": (_config("llama", (80, 8192, 28672, 64, 8, 128256)), 70_553_706_496),
    "Llama-3.1-8B": (_config("llama", (32, 4096, 14336, 32, 8, 128256)), 8_030_261_248),
    "Mistral-7B-v0.3": (
        _config("mistral", (32, 4096, 14336, 32, 8, 32768), sliding_window=None),
        7_248_023_552,
    ),
    "Qwen2.5-7B": (
        _config(
            "qwen2",
            (28, 3584, 18944, 28, 4, 152064),
            sliding_window=131072,
            use_sliding_window=False,
            max_position_embeddings=131072,
        ),
        7_615_616_512,
    ),
    "Qwen3-8B": (
        _config("qwen3", (36, 4096, 12288, 32, 8, 151936), head_dim=128, attention_bias=False),
        8_190_735_360,
    ),
    "Qwen3-0.6B": (
        _config("qwen3", (28, 1024, 3072, 16, 8, 151936), head_dim=128, tie_word_embeddings=True),
        596_049_920,
    ),
    "Phi-4": (
        _config(
            "phi3",
            (40, 5120, 17920, 40, 10, 100352),
            attention_bias=False,
            bos_token_id=100257,
            eos_token_id=100265,
            pad_token_id=100349,
            embd_pdrop=0.0,
            max_position_embeddings=16384,
            original_max_position_embeddings=16384,
            rms_norm_eps=1e-5,
            rope_scaling=None,
            rope_theta=250000,
            sliding_window=None,
            tie_word_embeddings=False,
        ),
        14_659_507_200,
    ),
    "ERNIE-4.5-0.3B-PT": (
        _config(
            "ernie4_5",
            (18, 1024, 3072, 16, 2, 103424),
            head_dim=128,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            max_position_embeddings=131072,
            rms_norm_eps=1e-5,
            rope_scaling=None,
            rope_theta=500000.0,
            tie_word_embeddings=True,
            use_bias=False,
        ),
        360_748_032,
    ),
    "Mixtral-8x7B": (
        _config(
            "mixtral",
            (32, 4096, 14336, 32, 8, 32000),
            num_local_experts=8,
            num_experts_per_tok=2,
            sliding_window=None,
        ),
        46_702_792_704,
    ),
    "Qwen3-30B-A3B": (
        _config(
            "qwen3_moe",
            (48, 2048, 6144, 32, 4, 151936),
            head_dim=128,
            moe_intermediate_size=768,
            num_experts=128,
            num_experts_per_tok=8,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        ),
        30_532_122_624,
    ),
    "DeepSeek-V3": (
        _config(
            "deepseek_v3",
            (61, 7168, 18432, 128, 128, 129280),
            first_k_dense_replace=3,
            kv_lora_rank=512,
            max_position_embeddings=163840,
            moe_intermediate_size=2048,
            moe_layer_freq=1,
            n_group=8,
            n_routed_experts=256,
            n_shared_experts=1,
            norm_topk_prob=True,
            num_experts_per_tok=8,
            num_nextn_predict_layers=1,
            q_lora_rank=1536,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            rms_norm_eps=1e-6,
            rope_scaling=DEEPSEEK_ROPE,
            routed_scaling_factor=2.5,
            scoring_func="sigmoid",
            topk_group=4,
            topk_method="noaux_tc",
            v_head_dim=128,
        ),
        671_026_419_200,
    ),
    "Kimi-K2": (
        _config(
            "kimi_k2",
            (61, 7168, 18432, 64, 64, 163840),
            first_k_dense_replace=1,
            max_position_embeddings=131072,
            n_group=1,
            n_routed_experts=384,
            norm_topk_prob=True,
            rope_scaling=DEEPSEEK_ROPE | {"factor": 32.0},
            rope_theta=50000.0,
            routed_scaling_factor=2.827,
            scoring_func="sigmoid",
            topk_group=1,
            topk_method="noaux_tc",
        ),
        1_026_408_232_448,
    ),
    "GLM-4.5-Air": (
        _config(
            "glm4_moe",
            (46, 4096, 10944, 96, 8, 151552),
            attention_bias=True,
            first_k_dense_replace=1,
            head_dim=128,
            max_position_embeddings=131072,
            moe_intermediate_size=1408,
            n_group=1,
            n_routed_experts=128,
            n_shared_experts=1,
            norm_topk_prob=True,
            num_experts_per_tok=8,
            num_nextn_predict_layers=1,
            partial_rotary_factor=0.5,
            rms_norm_eps=1e-5,
            rope_scaling=None,
            rope_theta=1000000,
            routed_scaling_factor=1.0,
            topk_group=1,
            use_qk_norm=False,
        ),
        106_852_251_264,
    ),
    "Qwen1.5-MoE-A2.7B": (
        _config(
            "qwen2_moe",
            (24, 2048, 5632, 16, 16, 151936),
            decoder_sparse_step=1,
            max_position_embeddings=8192,
            moe_intermediate_size=1408,
            norm_topk_prob=False,
            num_experts=60,
            num_experts_per_tok=4,
            rope_theta=1000000.0,
            shared_expert_intermediate_size=5632,
            sliding_window=32768,
            use_sliding_window=False,
        ),
        14_315_784_192,
    ),
    "gpt-oss-20b": (
        _config(
            "gpt_oss",
            (24, 2880, 2880, 64, 8, 201088),
            attention_bias=True,
            head_dim=64,
            max_position_embeddings=131072,
            num_experts_per_tok=4,
            num_local_experts=32,
            rms_norm_eps=1e-5,
            rope_scaling=GPT_OSS_ROPE,
            rope_theta=150000,
            sliding_window=128,
            swiglu_limit=7.0,
            tie_word_embeddings=False,
        ),
        20_914_757_184,
    ),
}
"""Contents of `config.json` and number of parameters; tied embeddings count once."""
