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
from verl_hpc.config.load import parse_config
from verl_hpc.errors import VerlHpcError
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.planner.hardware import KINDS, Hardware
from verl_hpc.planner.layouts import run_layouts
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


MODELS = {
    "Qwen2-7B": _model("qwen2", 28, 3584, 18944, 28, 4, 152064),
    "Qwen2.5-14B": _model("qwen2", 48, 5120, 13824, 40, 8, 152064),
    "Qwen2.5-32B": _model("qwen2", 64, 5120, 27648, 40, 8, 152064),
    "Qwen2-72B": _model("qwen2", 80, 8192, 29568, 64, 8, 152064),
    "Qwen3-32B": _model("qwen3", 64, 5120, 25600, 64, 8, 151936, head_dim=128),
    "Llama-2-70B": _model("llama", 80, 8192, 28672, 64, 8, 32000),
    "LLaMA-65B": _model("llama", 80, 8192, 22016, 64, 64, 32000),
    "LLaMA-7B": _model("llama", 32, 4096, 11008, 32, 32, 32000),
    "Llama-3.1-8B": PUBLISHED["Llama-3.1-8B"][0] | {"max_position_embeddings": 131072},
    "Llama-3.1-405B": PUBLISHED["Llama-3.1-405B"][0],
}
VERL = "verl docs/perf/device_tuning.rst (25 June 2025), tag MIN"
NEMO = "NeMo-RL examples/configs/recipes/llm/"
LLAMA_3 = "arXiv 2407.21783, section 6.1"


@dataclass(frozen=True)
class Claim:
    """That a task on so many GPUs fits, or does not."""

    name: str
    model: str
    gpu: str
    num_ranks: int
    fits: bool
    source: str
    recipe: str = "grpo"
    """sft, dpo, grpo or ppo; or serve: an engine alone."""
    sizes: tuple[int, int] | None = None
    """tensor_parallel and pipeline_parallel of training; None tries what there is."""
    rollout: tuple[int, int] = (1, 1)
    """The same of an engine."""
    tokens: int = 2048
    """Of a micro-batch, and of a prompt with its response."""
    recompute: str = "full"


CLAIMS = [
    Claim("qwen2-7b-grpo-2", "Qwen2-7B", "H800", 2, True, VERL, rollout=(2, 1)),
    Claim("qwen2-14b-grpo-4", "Qwen2.5-14B", "H800", 4, True, VERL, rollout=(4, 1)),
    Claim("qwen2-32b-grpo-8", "Qwen2.5-32B", "H20", 8, True, VERL, rollout=(4, 1)),
    Claim("qwen2-70b-grpo-32-h20", "Qwen2-72B", "H20", 32, True, VERL, rollout=(8, 1)),
    Claim("qwen2-70b-grpo-32-h800", "Qwen2-72B", "H800", 32, True, VERL, rollout=(8, 1)),
    Claim(
        "llama3.1-8b-dpo-32",
        "Llama-3.1-8B",
        "H100-80",
        32,
        True,
        NEMO + "dpo-llama3.1-8b-instruct-4n8g-megatrontp2pp2-quick.yaml",
        recipe="dpo",
        sizes=(2, 2),
        recompute="none",
    ),
    Claim(
        "qwen3-32b-grpo-32",
        "Qwen3-32B",
        "H100-80",
        32,
        True,
        NEMO + "performance/grpo-qwen3-32b-4n8g.yaml",
        sizes=(4, 4),
        rollout=(4, 1),
        tokens=4096,
        recompute="none",
    ),
    Claim(
        "llama3.1-8b-grpo-16",
        "Llama-3.1-8B",
        "H100-80",
        16,
        True,
        NEMO + "performance/grpo-llama3.1-8b-instruct-2n8g.yaml",
        sizes=(1, 2),
        tokens=4096,
    ),
    Claim(
        "qwen2-7b-grpo-8-megatron",
        "Qwen2-7B",
        "H100-80",
        8,
        True,
        "verl examples/grpo_trainer/run_qwen2-7b_math_megatron.sh (on GPUs of 80 GB, assumed)",
        sizes=(2, 2),
        rollout=(2, 1),
        tokens=8192,
    ),
    Claim(
        "llama-70b-ppo-128",
        "Llama-2-70B",
        "A100-80",
        128,
        True,
        "HybridFlow (arXiv 2409.19256), section 8.1 and Figure 14: T = P = 8, generation T = 8",
        recipe="ppo",
        sizes=(8, 8),
        rollout=(8, 1),
    ),
    Claim("405b-serve-8", "Llama-3.1-405B", "H100-80", 8, False, LLAMA_3, "serve", None, (8, 1)),
    Claim("405b-serve-16", "Llama-3.1-405B", "H100-80", 16, True, LLAMA_3, "serve", None, (8, 2)),
    Claim(
        "405b-serve-8-mi300x",
        "Llama-3.1-405B",
        "MI300X",
        8,
        True,
        "tensorwave.com/blog/405-billion-parameters-1-node (23 July 2024)",
        "serve",
        None,
        (8, 1),
    ),
    Claim(
        "65b-sft-8",
        "LLaMA-65B",
        "A100-80",
        8,
        False,
        "QLoRA (arXiv 2305.14314), section 1: 16-bit finetuning of 65B needs more than 780 GB",
        recipe="sft",
    ),
    Claim(
        "7b-sft-1",
        "LLaMA-7B",
        "A100-80",
        1,
        False,
        "LOMO (arXiv 2306.09782), Table 1: 102 GB for 7B with AdamW",
        recipe="sft",
        tokens=512,
    ),
]
DISAGREES: dict[str, str] = {}
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
    """By the ledger: as it is given, or on some layout of its ranks."""
    arch = architecture_from(MODELS[claim.model])
    hardware = Hardware(KINDS[claim.gpu], min(claim.num_ranks, 8))
    if claim.recipe == "serve":
        config = _config(claim, 1, 1, 0.95).rollout
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
                "max_prompt_tokens": min(claim.tokens, 2048) // 2,
                "max_response_tokens": min(claim.tokens, 2048) // 2,
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
