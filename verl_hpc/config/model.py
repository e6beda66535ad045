"""The model, how it is cut, and how it is optimised."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, model_validator

from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.section import (
    NonNegative,
    NonNegativeFinite,
    PathText,
    Positive,
    PositiveFinite,
    PositiveRate,
    ProperFraction,
    Rate,
    Section,
    chosen_by,
)


class Fp8Config(Section):
    """Transformer Engine FP8 training. Needs a GPU with FP8 and Transformer Engine."""

    recipe: Literal["delayed", "tensorwise", "blockwise", "mxfp8"] = "blockwise"
    """How scales are chosen; mxfp8 needs Blackwell, blockwise and the others Hopper or newer."""
    format: Literal["e4m3", "hybrid"] = "e4m3"
    """e4m3 throughout, or e4m3 forward and e5m2 for gradients."""


class RouterConfig(Section):
    """How the routers of a mixture of experts are kept even: losses, summed over its layers and
    added to the loss of every role that trains, and changes of their bias. None depends on the
    layout."""

    seq_aux_loss: NonNegativeFinite = 0.0
    """Coefficient of the loss that evens out the experts of every sequence (DeepSeek-V3, arXiv
    2412.19437); 1e-4 to 1e-2 are usual."""
    z_loss: NonNegativeFinite = 0.0
    """Coefficient of the mean square of the logarithm of summed exponentials, which keeps logits of
    routers small (ST-MoE, arXiv 2202.08906); 1e-3 is usual."""
    bias_update_rate: NonNegativeFinite = 0.0
    """Change of the bias by which a router chooses experts, after every update: up for those with
    fewer tokens than the mean, down for those with more (DeepSeek-V3); 1e-3 is usual. Only models
    that have such a bias."""

    @model_validator(mode="after")
    def _has_effect(self) -> RouterConfig:
        if not (self.seq_aux_loss or self.z_loss or self.bias_update_rate):
            raise ValueError("give seq_aux_loss, z_loss or bias_update_rate, or leave router out")
        return self


class ModelConfig(Section):
    """Weights to start from, and the precision they train in."""

    path: PathText
    """Hugging Face model directory, a step directory of an earlier run's checkpoints, or a name on
    a hub: ORG/NAME[@REVISION], or modelscope:ORG/NAME, which `python -m verl_hpc fetch` has brought
    into the cache."""
    tokenizer: PathText | None = None
    """Directory of the tokenizer, or a name on a hub; the model's own if not given."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Element type of parameters and activations; master weights are float32."""
    fp8: Fp8Config | None = None
    router: RouterConfig | None = None
    vision_tower: Literal["trained", "frozen"] = "trained"
    """Whether what reads images, in front of the decoder, is trained; frozen, it has no state of an
    optimizer."""


_NOT_RECOMPUTED = {
    "layernorm": "Transformer Engine fuses a dense layer's norms into its matrix products, and "
    "Megatron-core needs Transformer Engine for it",
    "mla_up_proj": "multi-latent attention is recomputed with recompute: full alone",
    "moe": "experts are recomputed with recompute: full alone",
    "moe_act": "experts are recomputed with recompute: full alone",
    "shared_experts": "experts are recomputed with recompute: full alone",
}
"""Megatron-core's other modules, and why recomputing each would change nothing or fail."""


def _recomputable(name: object) -> object:
    if isinstance(name, str) and name in _NOT_RECOMPUTED:
        raise ValueError(f"{name} cannot be recomputed: {_NOT_RECOMPUTED[name]}")
    return name


RecomputeModule = Annotated[Literal["core_attn", "mlp"], BeforeValidator(_recomputable)]


OTHER_ENGINES = {
    "deepspeed": "it brings a launcher, an optimizer and checkpoints of its own, and its ZeRO-3 is "
    "the sharding of fsdp; choose fsdp",
    "fsdp2": "choose fsdp, which is FSDP2 (fully_shard)",
}
"""Engines that do not exist by these names, and what to choose instead."""


OR_MEGATRON = (
    "or choose engine: megatron, which trains families with a layer table (docs/models.md)"
)
"""Advice where fully_shard lacks a setting; a configuration does not say which family it trains."""


def _engine(name: object) -> object:
    if isinstance(name, str) and name in OTHER_ENGINES:
        raise ValueError(OTHER_ENGINES[name])
    return name


Engine = Annotated[Literal["megatron", "fsdp"], BeforeValidator(_engine)]


OF_MEGATRON = (
    "tensor_parallel",
    "pipeline_parallel",
    "virtual_pipeline",
    "context_parallel",
    "expert_parallel",
    "expert_tensor_parallel",
    "sequence_parallel",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "offload_activations",
)
"""Settings of `parallel` that fully_shard does not honour."""


class ParallelConfig(Section):
    """How a model is trained on its ranks. Data parallelism takes the ranks that are left."""

    engine: Engine = "megatron"
    """megatron cuts a model in all the ways below. fsdp trains transformers' own models, with
    every parameter's rows divided over all ranks (docs/fsdp.md)."""
    fsdp: Annotated[FsdpConfig | None, chosen_by("engine")] = None
    """With engine: fsdp; null takes its defaults."""
    tensor_parallel: Positive = 1
    """Ranks that share every layer, each with a part of its heads and matrices (arXiv
    1909.08053)."""
    pipeline_parallel: Positive = 1
    """Stages that the layers are divided into, in order; micro-batches pass through them one after
    the other (1F1B, arXiv 2104.04473)."""
    virtual_pipeline: Positive = 1
    """Chunks of layers per pipeline stage (interleaved 1F1B); needs pipeline_parallel > 1."""
    context_parallel: Positive = 1
    """Ranks that share every sequence, each with two of 2 x context_parallel equal pieces, one from
    the front and one from the back (arXiv 2310.01889, 2407.21783): for sequences whose activations
    do not fit."""
    expert_parallel: Positive = 1
    """Ranks that the experts of a layer are divided over, each with whole ones; tokens travel to
    them and back (arXiv 2006.16668). They are ranks that are tensor or data parallel elsewhere."""
    expert_tensor_parallel: Positive = 1
    """Ranks that share an expert, each with a part of its matrices."""
    data_parallel: Positive | None = None
    """Only checked: the number of replicas with sequences of their own the ranks must give."""
    sequence_parallel: bool = False
    """Shard norms and dropout over the sequence inside a tensor-parallel group."""
    recompute: Literal["none", "full", "selective"] = "none"
    """Activations to recompute in the backward pass: none, of whole layers, or of some modules."""
    recompute_method: Literal["uniform", "block"] | None = None
    """With recompute: full. uniform (null) recomputes all layers and keeps the input of every
    recompute_num_layers-th; block recomputes the first recompute_num_layers of each stage."""
    recompute_num_layers: Positive | None = None
    """With recompute: full; 1 if null. uniform: a divisor of every stage's number of layers."""
    recompute_modules: list[RecomputeModule] | None = None
    """With recompute: selective; [mlp] if null. core_attn frees memory only without Transformer
    Engine: its fused attention keeps no scores."""
    offload_activations: bool = False
    """With recompute: full on GPUs: inputs of layers wait for the backward pass in host memory."""

    @model_validator(mode="after")
    def _consistent(self) -> ParallelConfig:
        _check_fsdp(self)
        if self.virtual_pipeline > 1 and self.pipeline_parallel == 1:
            raise ValueError("virtual_pipeline > 1 needs pipeline_parallel > 1")
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ValueError("sequence_parallel needs tensor_parallel > 1")
        if self.recompute != "full":
            for name in ("recompute_method", "recompute_num_layers"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} needs recompute: full")
            if self.offload_activations:
                raise ValueError(
                    "offload_activations needs recompute: full, which leaves little to move"
                )
        if self.recompute != "selective" and self.recompute_modules is not None:
            raise ValueError("recompute_modules needs recompute: selective")
        if self.recompute_modules == []:
            raise ValueError("recompute_modules is empty; choose recompute: none")
        return self


class OptimizerConfig(Section):
    """Adam with decoupled weight decay, sharded over data-parallel ranks."""

    lr: PositiveRate = 1e-6
    """Largest learning rate: after the warm-up, and before the schedule lowers it."""
    min_lr: Annotated[Rate, chosen_by("schedule")] = 0.0
    """Learning rate at the end of the schedule."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls between warmup_steps and decay_steps: not at all, or from lr to
    min_lr in a straight line or along half a cosine."""
    warmup_steps: NonNegative = 0
    """Optimizer steps over which lr rises from 0."""
    decay_steps: Annotated[Positive | None, chosen_by("schedule")] = None
    """Optimizer steps until min_lr, those of the warm-up counted. null takes all optimizer steps of
    the run, so that a run that is resumed with more steps falls more slowly from then on."""
    beta1: ProperFraction = 0.9
    """Decay of Adam's running mean of gradients per update (arXiv 1412.6980)."""
    beta2: ProperFraction = 0.95
    """Decay of Adam's running mean of squared gradients per update."""
    epsilon: PositiveRate = 1e-8
    """Term that Adam adds to its denominator, the root of the mean of squared gradients."""
    weight_decay: Rate = 0.0
    """Share of a weight that an update takes off, times the learning rate (AdamW, arXiv
    1711.05101). Biases and the weights of norms do not decay."""
    moments: Literal["float32", "bfloat16"] = "float32"
    """Element type in which Adam's two means are kept between updates. bfloat16 takes 8 bytes a
    weight of the optimizer's state in place of 12, and updates compute in float32 all the same; it
    needs Transformer Engine and engine: megatron."""
    clip_grad: NonNegativeFinite = 1.0
    """Largest global gradient norm; 0 does not clip."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """Effect of an infinite or NaN loss or gradient: end the run, or skip the update. Ten skipped
    updates in a row end the run in any case."""

    @model_validator(mode="after")
    def _decays(self) -> OptimizerConfig:
        decay_steps = None if self.schedule == "constant" else self.decay_steps
        if decay_steps is not None and decay_steps <= self.warmup_steps:
            raise ValueError(
                f"decay_steps = {decay_steps} is not above warmup_steps = {self.warmup_steps}, "
                f"after which schedule: {self.schedule} begins; raise it, or leave it out"
            )
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr = {self.min_lr} is above lr = {self.lr}")
        return self


class OffloadConfig(Section):
    """State that leaves the device while the rollout engine uses it, and comes back afterwards."""

    parameters: bool = False
    """Keep the weights in host memory meanwhile."""
    gradients: bool = False
    """Free the memory of gradients meanwhile; nothing is copied, since they come back as zeros."""
    optimizer: bool = False
    """Keep Adam's moments and the float32 master weights in host memory meanwhile."""


class CriticConfig(Section):
    """How the value model of PPO is trained; roles.critic says what it is."""

    warmup_steps: NonNegative = 0
    """Steps that train the critic alone before the actor's first update."""
    value_clip: PositiveFinite | None = 0.5
    """Largest change of a value in one update (PPO's value clip); null does not clip."""


def _check_fsdp(parallel: ParallelConfig) -> None:
    """Raises: ValueError: a setting belongs to the other engine."""
    if parallel.engine != "fsdp":
        if parallel.fsdp is not None:
            raise ValueError(
                f"fsdp is given with engine = {parallel.engine}, which does not read it; choose "
                "engine: fsdp, or leave it out"
            )
        return
    for name in OF_MEGATRON:
        value = getattr(parallel, name)
        if value != type(parallel).model_fields[name].default:
            raise ValueError(
                f"{name} = {value} with engine = fsdp, which divides parameters over all ranks "
                f"and computes each sequence on one; leave it out, {OR_MEGATRON}"
            )
    if parallel.recompute == "selective":
        raise ValueError(
            "recompute = selective with engine = fsdp, whose layers are recomputed as wholes; "
            f"choose recompute: full, {OR_MEGATRON}"
        )
