"""What others have published to fit, or not to fit, against the ledger.

A source gives a model, a task and GPUs, seldom our settings. Where it gives the sizes of a layout
they are taken; where it does not, the run fits if some layout on its ranks does, with everything
offloaded and recomputed that can be. DISAGREES lists those that the ledger sees otherwise, with the
reason; at least 10 of 12 must agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest

from tests.unit.layout.models import PUBLISHED
from verl_hpc.cluster.gpu import GpuFigures
from verl_hpc.config.load import parse_config
from verl_hpc.errors import VerlHpcError
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.planner.memory.ledger import ledger
from verl_hpc.planner.memory.rollout import RolloutShape, why_not


def _model(family, layers, hidden, ffn, heads, kv_heads, vocab, **more):
    return {
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        **more,
    }


def _gpt(layers, hidden, heads):
    """Has as many parameters as GPT with a feed-forward of four times the hidden size."""
    return _model("llama", layers, hidden, hidden * 8 // 3 // 64 * 64, heads, heads, 51200)


MODELS = {
    "Qwen2-7B": _model("qwen2", 28, 3584, 18944, 28, 4, 152064),
    "Qwen2.5-14B": _model("qwen2", 48, 5120, 13824, 40, 8, 152064),
    "Qwen2.5-32B": _model("qwen2", 64, 5120, 27648, 40, 8, 152064),
    "Qwen2-72B": _model("qwen2", 80, 8192, 29568, 64, 8, 152064),
    "Qwen3-32B": _model("qwen3", 64, 5120, 25600, 64, 8, 151936, head_dim=128),
    "Llama-2-70B": _model("llama", 80, 8192, 28672, 64, 8, 32000),
    "LLaMA-65B": _model("llama", 80, 8192, 22016, 64, 64, 32000),
    "LLaMA-7B": _model("llama", 32, 4096, 11008, 32, 32, 32000),
    "Llama-3-70B": _model("llama", 80, 8192, 28672, 64, 8, 128256),
    "GPT-22B": _gpt(48, 6144, 64),
    "GPT-1T": _gpt(128, 25600, 160),
    "Llama-3.1-8B": PUBLISHED["Llama-3.1-8B"][0] | {"max_position_embeddings": 131072},
    "Llama-3.1-405B": PUBLISHED["Llama-3.1-405B"][0],
}
RTX_3090 = GpuFigures(
    memory_gib=23.69, bfloat16_tflops=71.0, float32_tflops=35.6, hbm_gb_s=936.0
).kind("RTX 3090")
"""PyTorch's messages say 23.69 GiB; speeds do not matter here."""
GPUS = {**KINDS, RTX_3090.name: RTX_3090}
SOURCES = {
    "verl": "verl docs/perf/device_tuning.rst (25 June 2025), tag MIN",
    "verl-megatron": "verl examples/grpo_trainer/run_qwen2-7b_math_megatron.sh (80 GB, assumed)",
    "nemo-dpo": "NeMo-RL recipes/llm/dpo-llama3.1-8b-instruct-4n8g-megatrontp2pp2-quick.yaml",
    "nemo-32b": "NeMo-RL recipes/llm/performance/grpo-qwen3-32b-4n8g.yaml",
    "nemo-8b": "NeMo-RL recipes/llm/performance/grpo-llama3.1-8b-instruct-2n8g.yaml",
    "hybridflow": "arXiv 2409.19256, section 8.1 and Figure 14: T = P = 8, generation T = 8",
    "llama-3": "arXiv 2407.21783, section 6.1",
    "tensorwave": "tensorwave.com/blog/405-billion-parameters-1-node (23 July 2024)",
    "qlora": "arXiv 2305.14314, section 1: 16-bit finetuning of 65B needs more than 780 GB",
    "lomo": "arXiv 2306.09782, Table 1: 102 GB for 7B with AdamW",
    # Near the edge: lengths within 16 % of what a cache has room for, but for the last; and 9 GiB.
    "cached-8b": "Graph-COM/SubgraphRAG issue 19: the cache of vLLM has room for 39,024 tokens",
    # TP2 and 80 GB follow from its 1,638 blocks of 4 GiB of host memory and from the weights.
    "cached-70b": "OpenRLHF issue 336: the cache of vLLM has room for 6,048 tokens, not for 8,192",
    "recomputation": "arXiv 2205.05198, Table 3, with its sequence parallelism; on GPUs of 80 GB",
}


@dataclass(frozen=True)
class Claim:
    """A task that fits on so many GPUs, or does not."""

    name: str
    model: str
    gpu: str
    num_ranks: int
    fits: bool
    source: str
    recipe: str
    """sft, dpo, grpo or ppo; or serve: an engine alone."""
    sizes: tuple[int, int] | None = None
    """tensor_parallel and pipeline_parallel of training; None tries what there is."""
    rollout: tuple[int, int] = (1, 1)
    """tensor_parallel and pipeline_parallel of an engine."""
    tokens: int = 2048
    """Tokens of a micro-batch, and of a prompt with its response."""
    recompute: str = "full"
    batched: int | None = None
    """Prompt tokens that an engine computes at a time, where a user's log tells of it."""


ROWS = """
qwen2-7b-grpo-2 Qwen2-7B H800 2 fits verl grpo rollout=2x1
qwen2-14b-grpo-4 Qwen2.5-14B H800 4 fits verl grpo rollout=4x1
qwen2-32b-grpo-8 Qwen2.5-32B H20 8 fits verl grpo rollout=4x1
qwen2-70b-grpo-32-h20 Qwen2-72B H20 32 fits verl grpo rollout=8x1
qwen2-70b-grpo-32-h800 Qwen2-72B H800 32 fits verl grpo rollout=8x1
qwen2-7b-megatron-8 Qwen2-7B H100-80 8 fits verl-megatron grpo rollout=2x1 sizes=2x2 tokens=8192
llama3.1-8b-dpo-32 Llama-3.1-8B H100-80 32 fits nemo-dpo dpo sizes=2x2 recompute=none
qwen3-32b Qwen3-32B H100-80 32 fits nemo-32b grpo rollout=4x1 sizes=4x4 tokens=4096 recompute=none
llama3.1-8b-grpo-16 Llama-3.1-8B H100-80 16 fits nemo-8b grpo sizes=1x2 tokens=4096
llama-70b-ppo-128 Llama-2-70B A100-80 128 fits hybridflow ppo rollout=8x1 sizes=8x8
405b-serve-8 Llama-3.1-405B H100-80 8 - llama-3 serve rollout=8x1
405b-serve-16 Llama-3.1-405B H100-80 16 fits llama-3 serve rollout=8x2
405b-serve-8-mi300x Llama-3.1-405B MI300X 8 fits tensorwave serve rollout=8x1
65b-sft-8 LLaMA-65B A100-80 8 - qlora sft
7b-sft-1 LLaMA-7B A100-80 1 - lomo sft tokens=512
8b-serve-1-36864 Llama-3.1-8B RTX_3090 1 fits cached-8b serve tokens=36864 batched=2048
8b-serve-1-40960 Llama-3.1-8B RTX_3090 1 - cached-8b serve tokens=40960 batched=2048
70b-serve-2-5120 Llama-3-70B A100-80 2 fits cached-70b serve rollout=2x1 tokens=5120 batched=8192
70b-serve-2-8192 Llama-3-70B A100-80 2 - cached-70b serve rollout=2x1 tokens=8192 batched=8192
gpt-22b-8 GPT-22B A100-80 8 fits recomputation sft sizes=8x1 tokens=8192 recompute=none
gpt-1t-512 GPT-1T A100-80 512 fits recomputation sft sizes=8x64 recompute=none
"""


def _claim(row: str) -> Claim:
    name, model, gpu, num_ranks, fits, source, recipe, *options = row.split()
    read = {"recompute": str, "sizes": _pair, "rollout": _pair}
    pairs = [option.split("=") for option in options]
    given = {key: read.get(key, int)(text) for key, text in pairs}
    known = name, model, gpu.replace("_", " "), int(num_ranks), fits == "fits", SOURCES[source]
    return Claim(*known, recipe, **given)


def _pair(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


CLAIMS = [_claim(row) for row in ROWS.strip().splitlines()]
DISAGREES: dict[str, str] = {
    "70b-serve-2-8192": "vLLM of June 2024 left its cache 2.1 GiB less than the ledger does"
}
_RECIPES = {
    "sft": {"recipe": "sft"},
    "dpo": {"recipe": "dpo"},
    "grpo": {"recipe": "rl", "algorithm": {"kl": {"placement": "loss"}}},
    "ppo": {
        "recipe": "rl",
        "algorithm": {"advantage": {"name": "gae"}, "kl": {"placement": "reward"}},
    },
}


def fits(claim: Claim) -> bool:
    """Whether the ledger says that it fits, as given or on some layout of its ranks."""
    arch = architecture_from(MODELS[claim.model])
    hardware = Hardware(GPUS[claim.gpu], min(claim.num_ranks, 8))
    if claim.recipe == "serve":
        share = 0.95 if claim.batched is None else 0.9  # vLLM's default
        config = _config(claim, 1, 1, share).rollout
        engine = RolloutShape.of(arch, config, "bfloat16", True)
        return all(
            why_not(engine, stage, hardware.device_bytes) is None
            for stage in range(claim.rollout[1])
        )
    sizes = [claim.sizes] if claim.sizes else list(product((1, 2, 4, 8), (1, 2, 4, 8)))
    return any(
        _fits(_config(claim, tp, pp, share), arch, claim.num_ranks, hardware)
        for tp, pp in sizes
        for share in (0.3, 0.5, 0.7)
    )


def _fits(config, arch, num_ranks: int, hardware: Hardware) -> bool:
    try:
        layouts = run_layouts(config, arch, num_ranks)
    except VerlHpcError:
        return False
    return ledger(config, arch, layouts, hardware).fits


def _config(claim: Claim, tp: int, pp: int, share: float):
    recipe = _RECIPES.get(claim.recipe, _RECIPES["sft"])
    samples = 4 if claim.recipe == "grpo" else 1
    length = claim.tokens if claim.recipe == "serve" else min(claim.tokens, 2048)
    options = {} if claim.batched is None else {"max_num_batched_tokens": claim.batched}
    return parse_config(
        {
            "name": "claim",
            "steps": 1,
            "model": {"path": "none"},
            "parallel": {
                "tensor_parallel": tp,
                "pipeline_parallel": pp,
                "sequence_parallel": tp > 1,
                "recompute": claim.recompute,
            },
            "offload": {"parameters": True, "gradients": True, "optimizer": True},
            "batch": {"size": 512, "max_tokens_per_micro_batch": claim.tokens},
            "rollout": {
                "tensor_parallel": claim.rollout[0],
                "pipeline_parallel": claim.rollout[1],
                "num_samples": samples,
                "gpu_memory_utilization": share,
                "max_num_seqs": 256,
                "max_prompt_tokens": length // 2,
                "max_response_tokens": length // 2,
                "engine_options": options,
            },
            "data": {"train": {"kind": "files", "paths": ["none"]}},
            **recipe,
        }
    )


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_published_fits_and_misfits(claim):
    assert (fits(claim) == claim.fits) == (claim.name not in DISAGREES)


def test_at_least_10_of_12_agree():
    assert all(claim.source for claim in CLAIMS)
    assert DISAGREES.keys() <= {claim.name for claim in CLAIMS}
    assert len(DISAGREES) <= len(CLAIMS) / 6
