"""Checks of each role's model against its layout, before any rank starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from verl_hpc.config.algorithm import ForwardKl
from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.model import Engine, ParallelConfig
from verl_hpc.config.role import ACTOR
from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError, LayoutError, ModelError
from verl_hpc.layout.adapters import AdapterShape, adapter_shard_map, adapter_tensors
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.fsdp import check_fsdp_layout
from verl_hpc.layout.megatron import TrainLayout, check_megatron_layout, megatron_shard_map
from verl_hpc.layout.pipeline import layers_per_stage
from verl_hpc.layout.vllm import check_cpu_attention
from verl_hpc.layout.vocabulary import first_other_token


def parallel_setting(role: RoleSettings) -> str:
    """The section that a role's layout is from, for messages."""
    return "parallel" if role.name == ACTOR else f"roles.{role.name}.parallel"


def check_role(role: RoleSettings, arch: Architecture, layout: TrainLayout) -> None:
    """Raises: ConfigError: a layout that the role's engine cannot cut its model by."""
    where = parallel_setting(role)
    check = check_fsdp_layout if role.parallel.engine == "fsdp" else check_megatron_layout
    try:
        check(arch, layout)
    except LayoutError as error:
        raise ConfigError(f"{where}: {error}") from None
    if arch.is_moe and layout.tp > 1 and not role.parallel.sequence_parallel:
        raise ConfigError(
            f"{where}.sequence_parallel = false: a mixture of experts with tensor_parallel "
            f"{layout.tp} needs it, or Megatron-core would route every token {layout.tp} times; "
            "set it to true"
        )
    if arch.is_moe and "mlp" in _recomputed(role.parallel):
        raise ConfigError(
            f"{where}.recompute = selective: mlp would recompute nothing of a mixture of experts, "
            "which has experts in its place; choose recompute: full, or recompute_modules: "
            "[core_attn]"
        )
    _check_recompute(where, role.parallel, arch, layout)
    if role.lora is not None:
        _check_adapters(role.lora, arch, layout, role.parallel.engine)


def _check_adapters(
    lora: LoraConfig, arch: Architecture, layout: TrainLayout, engine: Engine
) -> None:
    """Check the adapters of one layer, as all layers are sharded alike; of a family without a layer
    table, as far as its files tell what is a linear layer."""
    if arch.is_mapped and arch.layer_table.is_fused:
        raise ConfigError(
            f"lora: a {arch.family}'s checkpoint has several layers in one tensor (qkv_proj, "
            "gate_up_proj), and adapters of such tensors are not mapped; train all weights"
        )
    one, share = replace(arch, num_layers=1), layout.ep * layout.etp
    try:
        if engine == "fsdp":
            adapter_tensors(one, AdapterShape.of(lora))
            return
        base = megatron_shard_map(
            one, TrainLayout(layout.tp, dp=share, ep=layout.ep, etp=layout.etp)
        )
        adapter_shard_map(one, base, AdapterShape.of(lora))
    except (LayoutError, ModelError) as error:
        raise ConfigError(str(error)) from None


def _recomputed(parallel: ParallelConfig) -> Sequence[str]:
    if parallel.recompute != "selective":
        return ()
    return parallel.recompute_modules or ("mlp",)


def check_router(config: RunConfig, archs: Iterable[Architecture]) -> None:
    router = config.model.router
    if router is None:
        return
    mixtures = [arch for arch in archs if arch.is_moe]
    if not mixtures:
        raise ConfigError("model.router: no role's model is a mixture of experts; leave it out")
    rate = router.bias_update_rate
    if rate and not all(arch.router.has_bias for arch in mixtures):
        raise ConfigError(
            f"model.router.bias_update_rate = {rate}: the routers of a {mixtures[0].family} choose "
            "experts without a bias; balance them by seq_aux_loss"
        )
    if rate and any(role.lora is not None for role in config.role_settings.values()):
        raise ConfigError(
            f"model.router.bias_update_rate = {rate} with lora, which leaves the model's own "
            "weights as they are; leave one of them out"
        )


def check_lengths(config: RunConfig, role: str, arch: Architecture) -> None:
    # Answers of an evaluation, which may be longer, are the actor's alone.
    limits = {
        setting: limit
        for setting, limit in config.response_limits.items()
        if role == ACTOR or not setting.startswith("evaluation.")
    }
    prompt, setting = config.rollout.max_prompt_tokens, max(limits, key=lambda n: limits[n])
    longest = prompt + limits[setting]
    if arch.max_positions is not None and longest > arch.max_positions:
        raise ConfigError(
            f"rollout.max_prompt_tokens {prompt} + {setting} {limits[setting]} = {longest} is "
            f"above the {arch.max_positions} positions of the {role}'s model"
        )


def check_router_replay(config: RunConfig, arch: Architecture) -> None:
    if config.replays_experts and not arch.is_moe:
        raise ConfigError(
            f"algorithm.router_replay = {config.algorithm.router_replay}: the actor's model "
            f"({arch.family}) is no mixture of experts, so that there is nothing to replay; leave "
            "it out"
        )


def check_quantization(config: RunConfig, arch: Architecture) -> None:
    if config.rollout.quantization is None:
        return
    if arch.layer_table.is_fused or arch.stacks_experts:
        raise ConfigError(
            f"rollout.quantization: a {arch.family}'s checkpoint has several layers in one tensor "
            "(qkv_proj, gate_up_proj), whose scales are not mapped; leave it out"
        )
    if arch.latent is not None:
        raise ConfigError(
            f"rollout.quantization: scales of kv_b_proj of a {arch.family}, from which vLLM "
            "derives further weights, are not mapped; leave it out"
        )
    if arch.has_other_mlps:
        raise ConfigError(
            f"rollout.quantization: a {arch.family} has shared experts, or dense layers before "
            "those with experts, whose scales are not mapped; leave it out"
        )


def check_batch_invariant(arch: Architecture, device: str) -> None:
    """Check that kernels which do not depend on the batch compute this model on these ranks.

    Raises:
        ConfigError: they do not.
    """
    problems = {
        f"on {device} ranks": device != "cpu",
        f"with a {arch.family}, which has no layer table": not arch.is_mapped,
        "with a mixture of experts": arch.is_moe,
        "with multi-latent attention": arch.latent is not None,
        "with attention in windows": bool(arch.window),
    }
    for problem, is_given in problems.items():
        if is_given:
            raise ConfigError(
                f"rollout.batch_invariant {problem}: its kernels are those of CPUs, for dense "
                "models with plain attention; leave it out"
            )


def check_heads_on_cpus(config: RunConfig, arch: Architecture) -> None:
    """Check what vLLM needs of a model where ranks have no GPU.

    Raises:
        ConfigError: as `check_cpu_attention`.
    """
    if config.generates and config.rollout.engine == "vllm" and arch.is_mapped:
        check_cpu_attention(arch)


def check_vocabulary(config: RunConfig, size: int) -> None:
    chosen = config.distillation
    if isinstance(chosen, ForwardKl) and chosen.top_k > size:
        raise ConfigError(
            f"distillation.top_k = {chosen.top_k}: the vocabulary of model.path has {size} tokens; "
            "choose at most as many"
        )


def check_tokenizers(tokenizer: Path, models: Mapping[str, Path]) -> None:
    """Check that all roles read the same token ids, which equal vocabulary sizes do not show.

    Args:
        tokenizer: directory of the run's.
        models: directories of roles that have a model of their own.

    Raises:
        ConfigError: a role reads a token id as another text than the run.
        ModelError: a tokenizer.json cannot be read.
    """
    for name, model in models.items():
        other = first_other_token(tokenizer, model)
        if other is not None:
            raise ConfigError(
                f"roles.{name}: its tokenizer has another token of id {other.id}, "
                f"{other.theirs!r}, than the run's ({other.ours!r}); all roles read the same token "
                "ids, so choose a model with the same tokenizer"
            )


def _check_recompute(
    where: str, parallel: ParallelConfig, arch: Architecture, train: TrainLayout
) -> None:
    """Check recompute_num_layers against the layers of every stage; where it does not divide them,
    Megatron-core would run off the end."""
    number, method = parallel.recompute_num_layers, parallel.recompute_method
    if number is None:
        return
    stages = {
        layers for row in layers_per_stage(arch.num_layers, train.pp, train.vpp) for layers in row
    }
    if method == "block" and number > max(stages):
        raise ConfigError(
            f"{where}.recompute_num_layers = {number}: no stage has more than {max(stages)} "
            "layers; choose at most as many"
        )
    if method != "block" and any(layers % number for layers in stages):
        raise ConfigError(
            f"{where}.recompute_num_layers = {number} does not divide the layers of every stage "
            f"({', '.join(map(str, sorted(stages)))}); choose a divisor, or recompute_method: block"
        )


def check_fp8(settings: Mapping[str, RoleSettings], train: Mapping[str, TrainLayout]) -> None:
    """Refuse delayed scaling for roles that share some of their ranks: Transformer Engine reduces
    over all engines of a process at once, so that they would wait for each other."""
    delayed = [
        name
        for name, role in settings.items()
        if role.model.fp8 is not None and role.model.fp8.recipe == "delayed"
    ]
    for one, other in combinations(delayed, 2):
        ours, theirs = (set(train[name].grid.ranks()) for name in (one, other))
        if ours & theirs and ours != theirs:
            raise ConfigError(
                f"model.fp8.recipe = delayed: {one} and {other} share some of their ranks, not "
                "all; choose another recipe, or ranks that are the same or different"
            )
