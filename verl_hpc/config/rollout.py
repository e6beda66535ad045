"""How responses are generated."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from verl_hpc.config.base import Integer, Number, Positive, PositiveFinite, Section
from verl_hpc.config.vllm_options import refuse_owned


def _greedy_or_warm(temperature: float) -> float:
    if 0.0 < temperature < 0.01:
        # vLLM would sample at 0.01 without a word.
        raise ValueError("must be 0, which is greedy, or at least 0.01")
    return temperature


Temperature = Annotated[Number, Field(ge=0.0, le=100.0), AfterValidator(_greedy_or_warm)]


class VerifyConfig(Section):
    """Proof, after each resharding, that generation uses the new weights."""

    checksums: bool = True
    """Compare a checksum of every received region with the sender's."""
    probe: bool = True
    """Compare log-probs of sampled tokens with the trainer's, every step."""
    probe_tolerance: PositiveFinite | None = None
    """Largest mean |difference| of log-probs; null takes 1e-4 for float32, 0.1 for bfloat16."""


class RolloutConfig(Section):
    """The generation engine and its sampling parameters."""

    engine: Literal["vllm", "hf"] = "vllm"
    """In-process vLLM, or transformers' generate as reference and fallback."""
    tensor_parallel: Positive = 1
    grouping: Literal["zero_redundancy", "contiguous"] | None = None
    """Which ranks form an engine; null takes zero_redundancy where the sizes allow it."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """The model's training dtype if null."""
    num_samples: Annotated[Positive, Field(le=100_000)] = 1
    """Responses per prompt."""
    temperature: Temperature = 1.0
    """0 decodes greedily; from 0.01 to 100 otherwise."""
    top_p: Annotated[Number, Field(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[Integer, Field(ge=-1, le=2**31 - 1)] = -1
    """-1 keeps the whole vocabulary."""
    max_prompt_tokens: Positive = 512
    max_response_tokens: Positive = 512
    overlong_prompt: Literal["error", "drop", "truncate_left"] = "error"
    """What to do with a prompt longer than max_prompt_tokens. One that is dropped is not trained on;
    in an evaluation it counts as wrong."""
    stop: list[str] = []
    """Strings that end a response, besides the end-of-sequence token."""
    on_interrupt: Literal["drop", "keep"] = "drop"
    """What a run that must leave during a rollout does with its finished responses: generate the
    step anew, as if it had not begun, or keep them beside the checkpoint and generate the rest."""
    max_num_seqs: Positive = 256
    """Sequences that one engine decodes at a time."""
    gpu_memory_utilization: Annotated[Number, Field(gt=0.0, lt=1.0)] = 0.5
    """Share of device memory for the engine's weights and cache."""
    kv_cache_gib: Annotated[Number, Field(gt=0.0, le=1000.0)] | None = None
    """Size of the key/value cache; null lets the engine size it (on CPUs: 1 GiB)."""
    enforce_eager: bool = False
    """Never capture CUDA graphs."""
    engine_options: dict[str, Any] = {}
    """More options of vLLM, by the names of its EngineArgs; enable_prefix_caching: false is one."""
    verify: VerifyConfig = VerifyConfig()

    @model_validator(mode="after")
    def _options_are_the_engines(self) -> RolloutConfig:
        if self.engine_options and self.engine != "vllm":
            raise ValueError("engine_options needs engine: vllm")
        refuse_owned(self.engine_options)
        return self
