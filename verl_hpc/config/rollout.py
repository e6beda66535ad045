"""How responses are generated."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.config.program import ProgramConfig
from verl_hpc.config.vllm_options import refuse_owned
from verl_hpc.section import (
    Fraction,
    Integer,
    NonNegative,
    Number,
    Options,
    Positive,
    PositiveFinite,
    Section,
    chosen_by,
)


def _greedy_or_warm(temperature: float) -> float:
    if 0.0 < temperature < 0.01:
        # vLLM would silently sample at 0.01.
        raise ValueError("must be 0, which is greedy, or at least 0.01")
    return temperature


HOTTEST_VLLM = 2.0
Temperature = Annotated[Number, Field(ge=0.0, le=100.0), AfterValidator(_greedy_or_warm)]


class VerifyConfig(Section):
    """Proof, after each resharding, that generation uses the new weights."""

    checksums: bool = True
    """Compare a checksum of every received region with the sender's."""
    probe: bool = True
    """Compare log-probs of sampled tokens with the trainer's, every step: how far apart the two
    engines compute."""
    probe_tolerance: PositiveFinite | None = None
    """Largest mean |difference| of log-probs; null takes 1e-4 where both engines compute in
    float32, 0.1 where one does in bfloat16, 0.3 where one does in FP8."""
    on_mismatch: Literal["stop", "warn", "correct"] = "stop"
    """Effect of a larger difference: end the run before it trains on the responses, or warn in the
    log; correct also warns, and weighs tokens in every step by algorithm.correction, or by its
    defaults if that is null. `checksums` say whether weights are wrong; this only how far apart
    engines are."""


class StructuredConfig(Section):
    """What responses must be, by one of vLLM's structured outputs: tokens that do not fit are never
    sampled (docs/algorithms.md)."""

    regex: Annotated[str, Field(min_length=1)] | None = None
    """A regular expression that whole responses match."""
    json_schema: Options | None = None
    """A JSON schema of responses."""
    choice: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = None
    """The texts that a response may be."""
    grammar: Annotated[str, Field(min_length=1)] | None = None
    """A context-free grammar of responses, in EBNF with a rule root."""

    @property
    def for_vllm(self) -> dict[str, Any]:
        """The constraint by its name in vLLM's StructuredOutputsParams."""
        given = {name: value for name, value in self if value is not None}
        return {"json" if name == "json_schema" else name: v for name, v in given.items()}

    @model_validator(mode="after")
    def _is_one(self) -> StructuredConfig:
        if len(self.for_vllm) != 1:
            raise ValueError("give one of regex, json_schema, choice, grammar")
        return self


OTHER_ENGINES = {
    "sglang": "SGLang generates in server processes of its own, and this program has none: an "
    "engine lives in the ranks, which fill its weights in place; choose vllm, or hf"
}
"""Engines that do not exist by these names, and what to choose instead."""


def _engine(name: object) -> object:
    if isinstance(name, str) and name in OTHER_ENGINES:
        raise ValueError(OTHER_ENGINES[name])
    return name


Engine = Annotated[Literal["vllm", "hf", "none"], BeforeValidator(_engine)]


class RolloutConfig(Section):
    """The generation engine and its sampling parameters."""

    engine: Engine = "vllm"
    """In-process vLLM, or transformers' generate as reference and fallback; none is for a recipe of
    your own that generates nothing."""
    tensor_parallel: Positive = 1
    """Ranks that form one engine, each with a part of every layer. There are as many engines as
    this leaves of the ranks that generate: those of placement.rollout, or the actor's."""
    pipeline_parallel: Positive = 1
    """Parts of consecutive layers that an engine has, each on tensor_parallel ranks. They compute
    one after the other: for models that do not fit otherwise."""
    expert_parallel: bool = False
    """Divide the experts of a layer among the ranks of tensor_parallel, each with whole experts
    instead of a part of each (vLLM's enable_expert_parallel)."""
    grouping: Literal["zero_redundancy", "contiguous"] | None = None
    """How ranks are grouped into engines; null takes zero_redundancy where the sizes allow it."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """The model's training dtype if null; bfloat16 with quantization."""
    quantization: Literal["fp8"] | None = None
    """fp8 halves a bfloat16 engine's linear layers, and what travels to it: the trainer quantises
    them in blocks of 128 x 128, and vLLM multiplies them with activations that it quantises as they
    come (docs/fp8_rollout.md). Embeddings, lm_head, norms and routers stay as dtype says."""
    ignored_layers: list[Annotated[str, Field(min_length=1)]] = []
    """Linear layers that quantization leaves as they are: names of modules, or parts of names at
    dots. model.layers.0 is a whole layer, down_proj one of every layer."""
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    """Element type of keys and values: that of dtype, or float8_e4m3fn with scales of 1, half of
    bfloat16's bytes. The trainer does not quantise them, so log-probs differ."""
    num_samples: Annotated[Positive, Field(le=100_000)] = 1
    """Responses per prompt."""
    temperature: Temperature = 1.0
    """0 decodes greedily; from 0.01 to 100 otherwise, to 2 with vLLM."""
    top_p: Annotated[Number, Field(gt=0.0, le=1.0)] = 1.0
    """Sample only from the likeliest tokens with this total probability; 1 takes all. Filters
    sample from another distribution than the policy: the ratio, the KL and the probe are of the
    unfiltered distribution."""
    top_k: Annotated[Integer, Field(ge=-1, le=2**31 - 1)] = -1
    """Only so many of the likeliest tokens; -1 keeps the whole vocabulary."""
    min_p: Fraction = 0.0
    """Only tokens with at least this share of the likeliest one's probability; 0 keeps all."""
    repetition_penalty: PositiveFinite = 1.0
    """Above 1, tokens of the prompt and of the response so far become less likely."""
    max_prompt_tokens: Positive = 512
    """Longest prompt, in tokens; overlong_prompt says what becomes of a longer one."""
    max_response_tokens: Positive = 512
    """Longest response, in tokens: generation ends there, and sft cuts a longer answer."""
    overlong_prompt: Literal["error", "drop", "truncate_left"] = "error"
    """What to do with a prompt longer than max_prompt_tokens. One that is dropped is not trained
    on; in an evaluation it counts as wrong."""
    structured: Annotated[StructuredConfig | None, chosen_by("engine")] = None
    """Constraint on responses, those of evaluations too; null has none. Tokens then come from
    another distribution than the policy, as with top_p."""
    stop: list[str] = []
    """Strings that end a response, besides the end-of-sequence token. They may be, or contain,
    special tokens, such as <|im_end|>."""
    stop_token_ids: list[NonNegative] = []
    """Tokens that end a response, besides those that the model's generation_config.json, its
    tokenizer and its chat template end one with."""
    batch_invariant: bool = False
    """Compute rollout and training by kernels that give a token the same bits whatever else is in
    its batch, so that both have the same log-probs to the last bit: on CPU ranks, in float32, for
    dense models on Megatron-core with equal tensor_parallel of at most 2 (docs/algorithms.md)."""
    on_interrupt: Literal["drop", "keep"] = "drop"
    """Treatment of finished responses when a run must leave during a rollout: drop them and
    generate the whole step again, or keep them with the checkpoint and generate the rest."""
    balance: Literal["fixed", "stealing"] = "fixed"
    """fixed gives each engine the same part of a step's prompts in every run. With stealing engines
    take prompts from one queue as they have room, those whose responses were longest the last time
    first, so that they end together. Who answers then depends on speed; seeds do not, but a
    response's last bits may depend on its neighbours in a batch (docs/placements.md)."""
    staleness: Annotated[NonNegative, Field(le=64)] = 0
    """Steps that the weights of a response may be behind those that train on it. 0 generates a step
    with the weights that train on it. 1 generates the next step while one trains, on ranks of its
    own (placement.rollout). With more, responses of so many steps are in flight, and those that are
    unfinished when the weights change continue under the new ones."""
    max_num_seqs: Positive | None = None
    """Sequences that one engine decodes at a time, at most. null takes 256 with hf. With vLLM null
    takes as many as the cache holds if each has the longest prompt and half of the longest
    response, but not below 256 and not above 1024. When the cache is full, vLLM begins no more
    sequences, and drops the last ones that it began to compute them again later."""
    gpu_memory_utilization: Annotated[Number, Field(gt=0.0, lt=1.0), chosen_by("engine")] = 0.5
    """Share of device memory for the engine's weights and cache."""
    kv_cache_gib: Annotated[
        Annotated[Number, Field(gt=0.0, le=1000.0)] | None, chosen_by("engine")
    ] = None
    """Size of the key/value cache; null lets the engine size it (on CPUs: 1 GiB)."""
    enforce_eager: Annotated[bool, chosen_by("engine")] = False
    """Never capture CUDA graphs."""
    engine_options: Annotated[Options, chosen_by("engine")] = {}
    """More options of vLLM, by the names of its EngineArgs; enable_prefix_caching: false is one."""
    environment: EnvironmentConfig | None = None
    """Environment that answers the model between its turns (docs/environments.md); null has one
    turn per response."""
    program: ProgramConfig | None = None
    """Program that is started for each response and asks the model for turns (docs/agents.md)."""
    verify: VerifyConfig = VerifyConfig()

    @model_validator(mode="after")
    def _options_are_the_engines(self) -> RolloutConfig:
        if self.engine_options and self.engine != "vllm":
            raise ValueError("engine_options needs engine: vllm")
        if self.engine == "vllm" and self.temperature > HOTTEST_VLLM:
            raise ValueError(
                f"temperature = {self.temperature:g}: vLLM samples up to {HOTTEST_VLLM:g}; lower "
                "it, or choose engine: hf"
            )
        if self.structured is not None and self.engine != "vllm":
            raise ValueError("structured needs engine: vllm, which masks the tokens; choose that")
        if self.pipeline_parallel > 1 and self.engine != "vllm":
            raise ValueError("pipeline_parallel needs engine: vllm")
        if self.pipeline_parallel > 1 and self.grouping == "zero_redundancy":
            raise ValueError(
                "grouping = zero_redundancy needs pipeline_parallel = 1; choose contiguous"
            )
        if self.expert_parallel and self.engine != "vllm":
            raise ValueError("expert_parallel needs engine: vllm")
        if self.expert_parallel and self.tensor_parallel == 1:
            raise ValueError(
                "expert_parallel needs tensor_parallel > 1: its ranks divide the experts"
            )
        if self.staleness and self.on_interrupt == "keep":
            raise ValueError("on_interrupt: keep needs staleness: 0, whose weights are saved")
        self._check_balance()
        self._check_quantization()
        refuse_owned(self.engine_options)
        return self

    def _check_balance(self) -> None:
        if self.balance == "fixed":
            return
        if self.engine != "vllm":
            raise ValueError("balance: stealing needs engine: vllm")
        if self.staleness or self.on_interrupt == "keep":
            raise ValueError(
                "balance: stealing needs staleness: 0 and on_interrupt: drop, since what is begun "
                "or kept belongs to an engine"
            )

    def _check_quantization(self) -> None:
        if self.ignored_layers and self.quantization is None:
            raise ValueError("ignored_layers needs quantization: fp8; leave it out")
        if self.is_quantised and self.engine != "vllm":
            name = "quantization" if self.quantization else "kv_cache_dtype"
            raise ValueError(f"{name}: fp8 needs engine: vllm")
        if self.quantization is not None and self.dtype == "float32":
            raise ValueError(
                "quantization: fp8 with dtype: float32: vLLM computes what lies between quantised "
                "layers in bfloat16; choose that, or leave dtype out"
            )

    @property
    def is_quantised(self) -> bool:
        """Whether the engine computes with 8 bits: weights, or keys and values."""
        return self.quantization is not None or self.kv_cache_dtype == "fp8"

    @property
    def filters(self) -> dict[str, float]:
        """Settings in force that make tokens come from another distribution than the policy's."""
        neutral = {"top_p": (1.0,), "top_k": (-1, 0), "min_p": (0.0,), "repetition_penalty": (1.0,)}
        return {
            name: getattr(self, name)
            for name, values in neutral.items()
            if getattr(self, name) not in values
        }
