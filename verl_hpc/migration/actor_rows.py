"""actor_rollout_ref.actor.*, .ref.* and critic.*: batches, the critic, and what is saved."""

from __future__ import annotations

from verl_hpc.config.model import CriticConfig
from verl_hpc.migration.engine_choice import compile_rows
from verl_hpc.migration.models import ACTOR, CRITIC, REF, has_critic
from verl_hpc.migration.optimizer_rows import optimizer_steps
from verl_hpc.migration.row import NONE, Draft, Row, any_value, fixed, same, to, together
from verl_hpc.migration.values import Refused, Values

_ROLLOUT = "actor_rollout_ref.rollout"
_WARMUP = "trainer.critic_warmup"
_TOKENS = "batch.max_tokens_per_micro_batch"


def _batch(values: Values, draft: Draft) -> None:
    steps, epochs = optimizer_steps(values), values.whole(f"{ACTOR}.ppo_epochs")
    draft.put("batch.mini_batches", steps // epochs, f"{ACTOR}.ppo_mini_batch_size")
    draft.put("batch.update_epochs", epochs, f"{ACTOR}.ppo_epochs")
    key = f"{ACTOR}.shuffle"
    mode = "samples" if values.flag(key) else "none"
    draft.put("batch.shuffle_mini_batches", mode, key)
    if not has_critic(values):
        return
    for name in _TWINS:
        if not same(values[f"{CRITIC}.{name}"], values[f"{ACTOR}.{name}"]):
            why = f"actor and critic share it, and {ACTOR}.{name} is {values[f'{ACTOR}.{name}']}"
            raise Refused(f"{CRITIC}.{name}", why, _TWINS[name])


_TWINS = {
    "ppo_mini_batch_size": "batch.mini_batches",
    "ppo_epochs": "batch.update_epochs",
    "shuffle": "batch.shuffle_mini_batches",
}
_DYNAMIC = (
    (ACTOR, "use_dynamic_bsz", "ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu"),
    (CRITIC, "use_dynamic_bsz", "ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu"),
    (
        CRITIC,
        "use_dynamic_bsz",
        "forward_max_token_len_per_gpu",
        "forward_micro_batch_size_per_gpu",
    ),
    *(
        (
            section,
            "log_prob_use_dynamic_bsz",
            "log_prob_max_token_len_per_gpu",
            "log_prob_micro_batch_size_per_gpu",
        )
        for section in (REF, _ROLLOUT)
    ),
)


def _micro_batches(values: Values, draft: Draft) -> None:
    """One limit here: the smallest of verl's, in tokens."""
    longest = values.whole(f"{_ROLLOUT}.prompt_length") + values.whole(
        f"{_ROLLOUT}.response_length"
    )
    limits: dict[str, int] = {}
    for section, dynamic, tokens, samples in _DYNAMIC:
        if section == CRITIC and not has_critic(values):
            continue
        if values.flag(f"{section}.{dynamic}"):
            limits[f"{section}.{tokens}"] = values.whole(f"{section}.{tokens}")
        elif values[f"{section}.{samples}"] is not None:
            limits[f"{section}.{samples}"] = values.whole(f"{section}.{samples}") * longest
    if not limits:
        return
    ranks = values[f"{ACTOR}.ulysses_sequence_parallel_size"]
    if values.form == "megatron":
        ranks = values[f"{ACTOR}.megatron.context_parallel_size"]
    key = min(limits, key=limits.__getitem__)
    switches = {f"{section}.{dynamic}" for section, dynamic, _, _ in _DYNAMIC}
    draft.put(_TOKENS, limits[key] * (ranks or 1), *limits, *switches)
    for other in limits:
        if other in values:
            draft.note(other, "the smallest of all such limits counts, in tokens of a micro-batch")


def _value_clip(values: Values, draft: Draft) -> None:
    if has_critic(values):
        draft.put("critic.value_clip", values["critic.cliprange_value"], "critic.cliprange_value")
        first = values.whole(_WARMUP, least=0)
        draft.put("critic.warmup_steps", max(first - 1, 0), _WARMUP)
        if first:
            draft.note(_WARMUP, f"verl trains the actor from step {first} on")
        return
    for key in ("critic.cliprange_value", _WARMUP):
        if key in values and values[key] != values.default(key):
            near = "algorithm.adv_estimator=gae"
            raise Refused(key, "nothing here trains a critic; leave it out", near)
    ours, theirs = CriticConfig().value_clip, values.default("critic.cliprange_value")
    assert ours == theirs  # so that nothing need be said


def _critic(values: Values, draft: Draft) -> None:
    key = "critic.enable"
    if values[key] is not None and not same(values[key], has_critic(values)):
        raise Refused(
            key, "adv_estimator: gae has a critic, others have none", "algorithm.advantage"
        )
    if has_critic(values):
        path = "critic.model.path"
        if path in values and values[path] != values["actor_rollout_ref.model.path"]:
            draft.put("roles.critic.path", values.path(path), path)
        if values["critic.loss_agg_mode"] != values[f"{ACTOR}.loss_agg_mode"]:
            near = "algorithm.aggregation"
            raise Refused("critic.loss_agg_mode", "actor and critic share it", near)
        if not same(values["critic.loss_scale_factor"], values[f"{ACTOR}.loss_scale_factor"]):
            near = "algorithm.loss_scale"
            raise Refused("critic.loss_scale_factor", "actor and critic share it", near)


def _checkpoints(model: str) -> list[Row]:
    section, says = f"{model}.checkpoint", "a step has all that a run needs to go on, and no less"
    near = "checkpoint; python -m verl_hpc export"
    whole = (["model", "optimizer", "extra", "hf_model"], ["model", "optimizer"], ["model"])
    rows = [
        fixed(f"{section}.save_contents", says, near),
        fixed(f"{section}.load_contents", says, near, also=whole[1:]),
        fixed(f"{section}.strict", says, near),
        fixed(f"{section}.mbridge_config", says, near),
    ]
    if model == CRITIC:
        rows.append(fixed(f"{section}.async_save", "as the actor's", near, also=(True,)))
    return rows


_KERNELS = "the training engine chooses its kernels"
_OWN = "it always takes all samples of a prompt together"
_GLOBAL = "of all ranks together, which verl dropped"


def _limit_rows() -> dict[str, tuple[str, str]]:
    says = "sequences become tokens: times the longest prompt and response; the smallest counts"
    rows = {}
    for section, dynamic, tokens, samples in _DYNAMIC:
        for name in (dynamic, tokens, samples):
            rows[f"{section}.{name}"] = (_TOKENS, says)
    return rows


ROWS: list[Row] = [
    *together(
        _batch,
        {
            f"{ACTOR}.ppo_mini_batch_size": (
                "batch.mini_batches",
                "train_batch_size / ppo_mini_batch_size",
            ),
            f"{ACTOR}.ppo_epochs": ("batch.update_epochs", ""),
            f"{ACTOR}.shuffle": ("batch.shuffle_mini_batches", "true becomes samples"),
        },
    ),
    *together(
        _batch,
        {f"{CRITIC}.{n}": (ours, "must be the actor's") for n, ours in _TWINS.items()},
        "agrees",
    ),
    *together(_micro_batches, _limit_rows()),
    *together(
        _value_clip,
        {
            "critic.cliprange_value": ("critic.value_clip", ""),
            _WARMUP: ("critic.warmup_steps", "less one: the actor's first step"),
        },
    ),
    *together(
        _critic,
        {
            "critic.model.path": (
                "roles.critic.path",
                "the actor's if not given; a directory, or ORG/NAME on a hub",
            ),
        },
    ),
    *together(
        _critic,
        {
            "critic.enable": ("algorithm.advantage.name", "gae has a critic, others have none"),
            "critic.loss_agg_mode": ("algorithm.aggregation", "must be the actor's"),
            "critic.loss_scale_factor": ("algorithm.loss_scale", "must be the actor's"),
        },
        "agrees",
    ),
    to(
        f"{ACTOR}.checkpoint.async_save",
        "checkpoint.background",
        "only if given; from a copy in host memory",
        is_needed=False,
    ),
    *(row for model in (ACTOR, CRITIC) for row in _checkpoints(model)),
    *(fixed(f"{m}.rollout_n", _OWN, f"{_ROLLOUT}.n") for m in (ACTOR, REF, CRITIC)),
    *(
        fixed(f"{section}.{name}", _GLOBAL, f"{section}.{name}_per_gpu")
        for section, name in (
            (ACTOR, "ppo_micro_batch_size"),
            (CRITIC, "ppo_micro_batch_size"),
            (CRITIC, "forward_micro_batch_size"),
            (REF, "log_prob_micro_batch_size"),
            (_ROLLOUT, "log_prob_micro_batch_size"),
        )
    ),
    fixed(f"{ACTOR}.calculate_entropy", "the entropy is always a metric", "metrics", also=(True,)),
    fixed(
        f"{ACTOR}.calculate_sum_pi_squared",
        "computed where the estimator needs it",
        "algorithm.advantage.name: optimal_token_baseline",
        also=(True,),
    ),
    fixed(f"{ACTOR}.freeze_vision_tower", "models of images are not supported", NONE),
    fixed(
        f"{ACTOR}.use_prefix_grouper",
        "responses to one prompt always share its tokens in training",
        "rollout.num_samples",
        also=(True,),
    ),
    *compile_rows(),
    *any_value(f"{ACTOR}.use_fused_kernels", _KERNELS),
    to(
        "actor_rollout_ref.nccl_timeout",
        "runtime.collective_timeout_s",
        "only if given",
        is_needed=False,
    ),
    fixed("critic.nccl_timeout", "the actor's counts", "actor_rollout_ref.nccl_timeout"),
    fixed(
        "actor_rollout_ref.hybrid_engine",
        "the same ranks train and generate unless they are parted",
        "placement.rollout",
    ),
]
