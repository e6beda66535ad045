"""Checks of quantised rollouts and of router replay."""

from __future__ import annotations

from verl_hpc.config.distillation import ForwardKl
from verl_hpc.config.sections import RunSections

_REPLAY_SETS = "router replay sets it: on on GPUs, off on CPU ranks"
_NOT_WITH_REPLAY = {
    "enable_prefix_caching": _REPLAY_SETS,
    "kv_transfer_config": "what another engine computed was routed there",
    "speculative_config": "its drafts are of other layers",
}
"""Options of vLLM that router replay excludes, each with the reason."""


def check_quantised(config: RunSections) -> None:
    """Raises: ValueError: a quantised rollout whose log-probs nothing corrects."""
    algorithm, rollout = config.algorithm, config.rollout
    by_teacher = config.recipe == "distillation" and isinstance(config.distillation, ForwardKl)
    alone = by_teacher and config.distillation.task_reward_weight == 0
    corrects = algorithm.correction is not None or rollout.verify.on_mismatch == "correct"
    if not config.samples_to_train or config.has_own_recipe or alone:
        return
    if corrects or algorithm.old_log_probs == "rollout":
        return
    name = "quantization" if rollout.quantization is not None else "kv_cache_dtype"
    raise ValueError(
        f"rollout.{name} = fp8 without algorithm.correction: tokens come from a coarser policy "
        "than the one that is trained, and nothing makes up for it; give algorithm.correction: {}, "
        "which is truncated importance sampling, or algorithm.old_log_probs: rollout"
    )


def check_router_replay(config: RunSections) -> None:
    """Raises: ValueError: the rollout has no experts to replay."""
    setting, rollout = "algorithm.router_replay = rollout", config.rollout
    if not config.samples_to_train:
        raise ValueError(
            f"{setting} with recipe: {config.recipe}, which trains on no responses; leave it out"
        )
    if rollout.engine != "vllm":
        raise ValueError(
            f"{setting} with rollout.engine = {rollout.engine}, which does not tell where it "
            "routes tokens; choose vllm"
        )
    if rollout.pipeline_parallel > 1:
        raise ValueError(
            f"{setting} with rollout.pipeline_parallel = {rollout.pipeline_parallel}: vLLM gives "
            "the experts of engines with all layers on each rank; choose 1, and a larger "
            "rollout.tensor_parallel"
        )
    if rollout.on_interrupt == "keep":
        raise ValueError(
            f"{setting} with rollout.on_interrupt = keep: responses are kept without their "
            "experts; choose drop"
        )
    for name, reason in _NOT_WITH_REPLAY.items():
        if name in rollout.engine_options:
            raise ValueError(
                f"rollout.engine_options.{name} with {setting}: {reason}; leave it out"
            )
