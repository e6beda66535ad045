"""The operators of a step, as `trainer.recipes` declares them, with what each of them computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from verl_hpc.algorithms.advantage import Advantage
from verl_hpc.algorithms.loss import PolicyLoss
from verl_hpc.config.role import ACTOR, CRITIC, PRM, PRM_REFERENCE, REFERENCE, REWARD, TEACHER
from verl_hpc.config.run import RunConfig
from verl_hpc.placement.layouts import ROLLOUT, SCORING

Kind = Literal["generate", "infer", "update", "score", "host"]


@dataclass(frozen=True)
class Work:
    """An operator, and what it does with which role."""

    name: str
    kind: Kind
    role: str
    """A role, ROLLOUT or SCORING; for host work, the role on whose ranks it runs."""
    needs: Sequence[str]
    gives: Sequence[str] = ()
    changes_state: bool = False
    optional: Sequence[str] = ()
    greedy: bool = False
    """One answer to each prompt instead of all samples."""


_BATCH = ("samples", "sequences")


def operators_of(config: RunConfig) -> list[Work]:
    """List the operators of a step of the run's recipe, in the order in which they run.

    Of a recipe of the user's nothing is known but its roles: each gives its forward pass, and those
    with an optimizer are trained.
    """
    if config.has_own_recipe:
        return list(_own(config))
    if config.recipe in ("rl", "distillation"):
        return list(_rl(config))
    return list(_examples(config))


def _infer(name: str, role: str, gives: str, needs: Sequence[str] = _BATCH) -> Work:
    return Work(name, "infer", role, needs, (gives,))


def _update(name: str, role: str, *needs: str, optional: Sequence[str] = ()) -> Work:
    return Work(name, "update", role, (*_BATCH, *needs), changes_state=True, optional=optional)


def _responses(prefix: str = "") -> Iterator[Work]:
    gives, samples = (f"{prefix}responses", f"{prefix}sequences"), [f"{prefix}samples"]
    greedy = bool(prefix)
    yield Work(f"{prefix}rollout", "generate", ROLLOUT, ["rows"], gives, greedy=greedy)
    yield Work(f"{prefix}assign", "host", ROLLOUT, ["rows", gives[0]], samples, greedy=greedy)


def _scores(config: RunConfig, prefix: str = "") -> Work:
    names, gives = [f"{prefix}samples", f"{prefix}sequences"], [f"{prefix}scores"]
    greedy = bool(prefix)
    if REWARD in config.role_settings:
        return Work(f"{prefix}reward", "infer", REWARD, names, gives, greedy=greedy)
    return Work(f"{prefix}reward", "score", SCORING, ["rows", *names], gives, greedy=greedy)


def log_probs_before(config: RunConfig, loss: PolicyLoss, advantage: Advantage) -> bool:
    """Whether the policy's log-probs are needed before its update, by another operator or by
    optimizer steps after the first; otherwise the update's own forward pass gives them.

    Args:
        config: of a run of recipe rl.
        loss: of the policy.
        advantage: its estimator.
    """
    algorithm, batch = config.algorithm, config.batch
    return (
        algorithm.old_log_probs == "recompute"
        or batch.mini_batches * batch.update_epochs > 1
        or algorithm.kl.placement == "reward"
        or algorithm.correction is not None
        or config.rollout.verify.on_mismatch == "correct"
        or algorithm.top_entropy < 1
        or loss.selects
        or "sum_p_squared" in advantage.needs
        # Steps that leave the policy alone prove its weights arrived all the same.
        or ("values" in advantage.needs and config.critic.warmup_steps > 0)
    )


def _rl(config: RunConfig) -> Iterator[Work]:
    roles, needs = config.role_settings, config.algorithm.advantage.needs
    greedy = config.has_advantages and "greedy" in needs
    if greedy:
        yield from _responses("greedy_")
    yield from _responses()
    if config.has_advantages:
        yield _scores(config)
    yield from _log_probs(config)
    if greedy:
        yield _scores(config, "greedy_")
    if CRITIC in roles:
        yield _infer("values", CRITIC, "values")
    if PRM in roles:
        yield _infer("prm_ref_log_probs", PRM_REFERENCE, "prm_reference")
        yield _update("update_prm", PRM, "scores", "prm_reference")
        yield _infer("process_rewards", PRM, "process_rewards", (*_BATCH, "prm_reference"))
    if TEACHER in roles:
        yield _infer("grade", TEACHER, "grades")
    names = ("scores", "values", "penalty", "old", "process_rewards", "greedy_scores", "grades")
    yield Work("advantages", "host", ACTOR, _BATCH, ("advantages",), optional=names)
    yield _update("update_actor", ACTOR, "advantages", optional=("old", "reference"))
    if CRITIC in roles:
        yield _update("update_critic", CRITIC, "values", "advantages")


def _log_probs(config: RunConfig) -> Iterator[Work]:
    algorithm = config.algorithm
    before = config.recipe == "distillation"
    if before or log_probs_before(config, algorithm.loss, algorithm.advantage):
        yield _infer("old_log_probs", ACTOR, "old")
    if REFERENCE not in config.role_settings:
        return
    yield _infer("ref_log_probs", REFERENCE, "reference")
    if algorithm.kl.placement == "reward":
        needs = (*_BATCH, "old", "reference")
        yield Work("kl_penalty", "host", ACTOR, needs, ("penalty",), changes_state=True)


def _examples(config: RunConfig) -> Iterator[Work]:
    """Operators of the recipes that train on given answers."""
    role = REWARD if config.recipe == "reward_model" else ACTOR
    name = {"sft": "examples", "kto": "examples"}.get(config.recipe, "pairs")
    yield Work(name, "host", role, ["rows"], _BATCH)
    if REFERENCE in config.role_settings:
        yield _infer("ref_log_probs", REFERENCE, "reference")
    update = "update_reward" if role == REWARD else "update_actor"
    yield _update(update, role, optional=("reference",))


def _own(config: RunConfig) -> Iterator[Work]:
    roles = config.role_settings
    if config.generates:
        yield from _responses()
    else:
        yield Work("examples", "host", next(iter(roles)), ["rows"], _BATCH)
    outputs = []
    for name in roles:
        outputs.append(f"{name}_outputs")
        yield _infer(f"{name}_forward", name, outputs[-1])
    yield Work("advantages", "host", next(iter(roles)), (*_BATCH, *outputs), ("advantages",))
    for name, role in roles.items():
        if role.trainable:
            yield _update(f"update_{name}", name, "advantages")
