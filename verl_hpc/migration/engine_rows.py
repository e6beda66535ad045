"""Engines: what Megatron-core and FSDP are told beside sizes, and the replay of experts."""

from __future__ import annotations

from functools import partial

from verl_hpc.migration.engine_choice import fsdp_rows
from verl_hpc.migration.models import ACTOR, FSDP, REF
from verl_hpc.migration.row import Draft, Row, all_fixed, any_value, fixed, refused, together
from verl_hpc.migration.values import Refused, Values

_PARALLEL = "the settings of parallel"
_CHECKPOINTS = "checkpoints are HDF5 step directories, which open in any layout"


def _fixed_rows(model: str, megatron: str, fsdp: str) -> list[Row]:
    overrides = f"{megatron}.override_transformer_config"
    megatron_keys = (
        "use_distributed_optimizer dynamic_context_parallel max_seqlen_per_dp_cp_rank "
        "override_ddp_config override_mcore_model_config pad_bshd_to_minibatch_max "
        "use_megatron_fsdp forward_only"
    )
    loading = (
        "use_dist_checkpointing dist_checkpointing_path dist_checkpointing_prefix "
        "dist_ckpt_optim_fully_reshardable distrib_optim_fully_reshardable_mem_efficient"
    )
    return [
        *fsdp_rows(model),
        fixed(
            f"{fsdp}.full_determinism",
            "a step is reproducible bit for bit on CPUs, and not on GPUs (docs/gpu.md)",
            "seed",
        ),
        *all_fixed(_below(megatron, megatron_keys), "verl_hpc sets it itself", _PARALLEL),
        *all_fixed(_below(megatron, loading), _CHECKPOINTS, "model.path, checkpoint"),
        *(
            fixed(f"{megatron}.{name}", _WEIGHTS, "model.path", also=(b,))
            for name, b in (("use_mbridge", False), ("vanilla_mbridge", True))
        ),
        *_padding_rows(model, megatron, fsdp),
        *(_replay_row(section) for section in (model, megatron)),
        *(
            fixed(f"{section}.router_replay.*", "files of experts are not kept", _REPLAY)
            for section in (model, megatron)
        ),
        fixed(
            f"{overrides}.attention_backend",
            "the fastest one is taken; with parallel.engine: megatron it cannot be chosen",
            "parallel.fsdp.kernels",
            also=("auto",),
        ),
        *(
            [fixed(overrides, "the reference has the actor's", "parallel.recompute")]
            if model == REF
            else []
        ),
        *any_value(_below(overrides, _FUSIONS), "Megatron-core's own choice of kernels is kept"),
        refused(
            f"{overrides}.*",
            "settings of Megatron-core are not passed through",
            "parallel.recompute, model.fp8, model.router",
        ),
    ]


_FUSIONS = (
    "moe_permute_fusion apply_rope_fusion gradient_accumulation_fusion masked_softmax_fusion "
    "bias_activation_fusion bias_dropout_fusion"
)
_WEIGHTS = "weights are read from model.path as they are"
_REPLAY = "algorithm.router_replay"


def _replay_row(section: str) -> Row:
    key = f"{section}.router_replay.mode"
    if section != ACTOR:
        return fixed(key, "the actor's counts", f"{ACTOR}.router_replay.mode")
    return together(
        _replay,
        {key: (_REPLAY, "R3, the rollout's experts; R2, the trainer's own, is refused")},
    )[0]


def _replay(values: Values, draft: Draft) -> None:
    mode, rollout = f"{ACTOR}.router_replay.mode", "actor_rollout_ref.rollout"
    switch = f"{rollout}.enable_rollout_routing_replay"
    if values[mode] not in ("disabled", "R3"):
        raise Refused(mode, "expected disabled or R3", _REPLAY)
    if (values[mode] == "R3") != values.flag(switch):
        raise Refused(switch if switch in values else mode, "both are set, or neither", _REPLAY)
    draft.put(_REPLAY, "rollout" if values[mode] == "R3" else "none", mode, switch)


_SWITCH = together(
    _replay,
    {
        "actor_rollout_ref.rollout.enable_rollout_routing_replay": (
            _REPLAY,
            "true with router_replay.mode: R3",
        )
    },
)


def _padding_rows(model: str, megatron: str, fsdp: str) -> list[Row]:
    padding = "pad_to_length pad_to_length_bucket"
    chunks = "entropy_from_logits_with_chunking entropy_from_logits_chunk_size"
    checks = partial(all_fixed, says="batches travel unpadded", near="batch")
    logits = "log-probs and entropies are made without a copy of all logits"
    return [
        *checks(_below(megatron, padding)),
        *any_value(
            f"{megatron}.use_remove_padding {model}.use_remove_padding", "batches travel unpadded"
        ),
        *checks(_below(fsdp, padding)),
        *checks(f"{model}.pad_to_length"),
        *all_fixed(
            " ".join(_below(section, chunks) for section in (model, megatron, fsdp)),
            logits,
            "batch.max_tokens_per_micro_batch",
        ),
        *all_fixed(
            f"{model}.entropy_checkpointing {fsdp}.entropy_checkpointing",
            logits,
            "batch.max_tokens_per_micro_batch",
        ),
    ]


def _below(section: str, names: str) -> str:
    return " ".join(f"{section}.{name}" for name in names.split())


ROWS: list[Row] = [
    *(row for model in FSDP for row in _fixed_rows(model, f"{model}.megatron", FSDP[model])),
    *_SWITCH,
]
