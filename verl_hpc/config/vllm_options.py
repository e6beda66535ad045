"""vLLM's own engine options, and those of them that are not free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SETTINGS = {
    "dtype": "rollout.dtype",
    "enable_expert_parallel": "rollout.expert_parallel",
    "enable_return_routed_experts": "algorithm.router_replay",
    "enforce_eager": "rollout.enforce_eager",
    "gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "kv_cache_dtype": "rollout.kv_cache_dtype",
    "kv_cache_memory_bytes": "rollout.kv_cache_gib",
    "max_model_len": "rollout.max_prompt_tokens and rollout.max_response_tokens",
    "max_num_seqs": "rollout.max_num_seqs",
    "model": "model.path",
    "pipeline_parallel_size": "rollout.pipeline_parallel",
    "quantization": "rollout.quantization",
    "seed": "seed",
    "tensor_parallel_size": "rollout.tensor_parallel",
    "tokenizer": "model.tokenizer",
}
"""Our setting in the place of each option of vLLM."""

_PROCESS = "the engine lives in the ranks of the job, one a GPU"
_WEIGHTS = "every weight comes from the trainer, in the dtype and under the names of the model"
_DISTRIBUTION = "the trainer computes log-probs of the model's own distribution"
_EXPERTS = (
    "weights are written into experts where and as they lie after loading, which other kernels and "
    "placements of experts change"
)
_GROUPS = "the groups are the job's; set runtime.collective_timeout_s"
FIXED = {
    "aux_output_config": "algorithm.router_replay says whether experts are kept",
    "cpu_distributed_timeout_seconds": _GROUPS,
    "cpu_offload_gb": _WEIGHTS,
    "data_parallel_size": _PROCESS,
    "decode_context_parallel_size": _PROCESS,
    "disable_log_stats": "nothing reads them",
    "distributed_executor_backend": _PROCESS,
    "distributed_timeout_seconds": _GROUPS,
    "enable_eplb": _EXPERTS,
    "enable_lora": _WEIGHTS,
    "enable_sleep_mode": "the engine sleeps while the trainer has the GPU",
    "expert_placement_strategy": _EXPERTS,
    "hf_config_path": _WEIGHTS,
    "hf_overrides": _WEIGHTS,
    "hf_token": "nothing is downloaded, and settings are written to the run directory",
    "load_format": _WEIGHTS,
    "logits_processors": _DISTRIBUTION,
    "logprobs_mode": "log-probs are compared with the trainer's",
    "model_class_overrides": _WEIGHTS,
    "moe_backend": _EXPERTS,
    "offload_backend": _WEIGHTS,
    "prefill_context_parallel_size": _PROCESS,
    "quantization_config": _WEIGHTS,
    "runner": "it generates",
    "skip_tokenizer_init": "stop strings need the tokenizer",
    "trust_remote_code": "code of a model's directory is never run",
    "watermark_config": _DISTRIBUTION,
    "worker_cls": _PROCESS,
}
"""Options that cannot be chosen, each with the reason."""


def refuse_owned(options: Mapping[str, Any]) -> None:
    """Refuse options that are not free. Whether vLLM has an option at all is only known where vLLM
    is installed.

    Raises:
        ValueError: an option is another setting's, or must be what it is.
    """
    for name in options:
        if name in SETTINGS:
            raise ValueError(f"engine_options.{name}: set {SETTINGS[name]} instead")
        if name in FIXED:
            raise ValueError(f"engine_options.{name} cannot be chosen: {FIXED[name]}")
    kernels = options.get("kernel_config")
    if isinstance(kernels, Mapping) and "moe_backend" in kernels:
        raise ValueError(
            f"engine_options.kernel_config.moe_backend cannot be chosen: {FIXED['moe_backend']}"
        )
