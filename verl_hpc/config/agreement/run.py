"""All checks between the sections of a run."""

from __future__ import annotations

from verl_hpc.config.agreement import refuse
from verl_hpc.config.agreement.roles import check_fsdp_roles, check_lora, check_roles
from verl_hpc.config.agreement.rollout import (
    check_batch_invariant,
    check_evaluation,
    check_generates_nothing,
    check_program,
    check_quantised,
    check_refill,
    check_reward_processes,
    check_rollout_log_probs,
    check_router_replay,
    check_spare_prompts,
    check_structured,
)
from verl_hpc.config.agreement.tasks import check_guards, check_mix
from verl_hpc.config.algorithm import AlgorithmConfig, ForwardKl, ProcessRewardConfig, unmet_need
from verl_hpc.config.model import CriticConfig
from verl_hpc.config.reward import RewardConfig
from verl_hpc.config.role import ACTOR, CRITIC, REWARD, TEACHER
from verl_hpc.config.roles import generates, role_settings, roles_of_recipe
from verl_hpc.config.sections import OF_ANSWERS, READ_BY_RECIPE, RunSections
from verl_hpc.section import is_own


def check_agreement(config: RunSections) -> None:
    """Raises: ValueError: a setting asks for what another one, or the recipe, does not give."""
    check_guards(config)
    check_roles(config)
    check_lora(config)
    check_fsdp_roles(config)
    if config.rollout.engine == "none":
        check_generates_nothing(config)
    check_evaluation(config)
    if config.runtime.reward_processes:
        check_reward_processes(config)
    if not config.tasks:
        _check_step(config)
    else:
        _check_rollout(config)
    for name, task in check_mix(config).items():
        try:
            _check_step(task, evaluates=False)
        except ValueError as error:
            raise ValueError(f"tasks.{name}: {error}".replace("data.train", "train")) from None


def _check_step(config: RunSections, evaluates: bool = True) -> None:
    """Check a run without tasks, or one of a run's tasks, which evaluates nothing.

    Raises:
        ValueError: a setting asks for what a step of this recipe does not give.
    """
    if config.recipe == "distillation":
        _check_distillation(config)
    if config.has_advantages:
        _check_advantage(config)
    if config.compares_answers:
        _check_answers(config, evaluates)
    if not config.has_own_recipe:
        _check_algorithm_is_read(config)
        _check_critic_is_there(config)
    _check_rollout(config)
    check_rollout_log_probs(config)
    if config.rollout.structured is not None:
        check_structured(config)
    if config.rollout.batch_invariant:
        check_batch_invariant(config)
    if config.rollout.program is not None:
        check_program(config)
    if config.rollout.is_quantised:
        check_quantised(config)
    if config.replays_experts:
        check_router_replay(config)
    if config.batch.spare_prompts:
        check_spare_prompts(config)
    if config.batch.refill_rounds:
        check_refill(config)
    _check_scores(config)
    _check_mini_batches(config)


def _check_rollout(config: RunSections) -> None:
    """Raises: ValueError: responses to train on would be greedy, or a section other than algorithm
    has a setting that the recipe does not read."""
    if config.samples_to_train and config.rollout.temperature == 0.0:
        raise ValueError("rollout.temperature = 0 samples no exploration; choose above 0")
    recipe, trains, several = config.recipe, config.samples_to_train, bool(config.tasks)
    silent = "trains on no responses"
    follows = several or recipe == "distillation" or config.has_own_recipe
    for setting, is_read, does in (
        ("distillation", follows, "follows no teacher"),
        ("reward.smoothing", several or recipe == "rl", "does not use it"),
        ("rollout.staleness", trains, silent),
        ("rollout.balance", trains, f"{silent}, and those of an evaluation are dealt as fixed"),
        ("rollout.structured", several or generates(config), "generates nothing here"),
        ("rollout.environment", generates(config), "generates nothing here"),
        ("rollout.program", generates(config), "generates nothing here"),
    ):
        above, _, name = setting.rpartition(".")
        section = getattr(config, above) if above else config
        value = getattr(section, name)
        if not is_read and value != type(section).model_fields[name].default:
            words = f"{setting} = {value}" if isinstance(value, str | int) else setting
            raise ValueError(f"{words} with recipe: {recipe}, which {does}; leave it out")


def _check_advantage(config: RunSections) -> None:
    """Raises: ValueError: the advantage lacks an input that it reads, or a setting changes or
    replaces the score whose components it reads."""
    advantage, overlong = config.algorithm.advantage, config.algorithm.overlong
    if advantage.compares and config.rollout.num_samples < 2:
        raise ValueError(
            f"rollout.num_samples = {config.rollout.num_samples}: algorithm.advantage.name = "
            f"{advantage.name} compares the responses to one prompt, so it needs at least 2"
        )
    if "components" in advantage.needs:
        refuse(
            {
                "algorithm.kl.placement = reward": config.algorithm.kl.placement == "reward",
                "algorithm.overlong.buffer": overlong is not None and overlong.buffer > 0,
                "reward.smoothing": config.reward.smoothing is not None,
                "roles.reward": REWARD in config.roles,
            },
            f" with algorithm.advantage.name = {advantage.name}, which reads the numbers that the "
            "reward function returns, and not what this makes of the score; leave one of the two "
            "out",
        )


def _check_scores(config: RunSections) -> None:
    """Raises: ValueError: scores of a step would all be penalised, or left out."""
    overlong, longest = config.algorithm.overlong, config.rollout.max_response_tokens
    if overlong is not None and overlong.buffer > longest:
        raise ValueError(
            f"algorithm.overlong.buffer = {overlong.buffer} is more than "
            f"rollout.max_response_tokens = {longest}, so that the shortest response would be "
            "penalised; lower it, or raise rollout.max_response_tokens"
        )
    if config.algorithm.drop_equal_groups and config.rollout.num_samples < 2:
        raise ValueError(
            "algorithm.drop_equal_groups with rollout.num_samples = 1: a single response has the "
            "same score as itself, and nothing would be trained on; sample at least 2"
        )


def _check_mini_batches(config: RunSections) -> None:
    samples = config.batch.size * (config.rollout.num_samples if config.samples_to_train else 1)
    if samples % config.batch.mini_batches:
        raise ValueError(
            f"batch.mini_batches = {config.batch.mini_batches} does not divide the "
            f"{samples} sequences of a step"
        )
    if config.recipe == "kto" and samples < 2 * config.batch.mini_batches:
        raise ValueError(
            f"batch.size = {samples} with batch.mini_batches = {config.batch.mini_batches}: "
            "recipe kto pairs the prompts of an optimizer step with each other's answers, so "
            "each needs at least 2"
        )
    batch = config.batch
    if batch.shuffle_mini_batches == "groups" and batch.size % batch.mini_batches:
        raise ValueError(
            f"batch.mini_batches = {batch.mini_batches} does not divide the {batch.size} "
            "groups of a step (batch.size), and batch.shuffle_mini_batches = groups parts "
            "none; choose a divisor, or shuffle_mini_batches: samples"
        )


def _check_critic_is_there(config: RunSections) -> None:
    if CRITIC in roles_of_recipe(config):
        return
    todo = "leave it out"
    if config.recipe == "rl" and is_own(config.algorithm.advantage.name):
        todo = "give `roles: {critic: {}}`, or leave it out"
    elif config.recipe == "rl":
        todo = "choose algorithm.advantage.name: gae, or leave it out"
    for name in CriticConfig.model_fields:
        value = getattr(config.critic, name)
        if value != getattr(CriticConfig(), name):
            raise ValueError(f"critic.{name} = {value}: nothing here trains a critic; {todo}")


def _check_answers(config: RunSections, evaluates: bool) -> None:
    pairs = "pairs of answers; give files with columns prompt, chosen and rejected"
    labels = "answers with labels; give files with columns prompt, answer and label"
    unread = RewardConfig()
    if is_own(config.algorithm.preference.name):  # imported within reward.import_timeout_s
        unread = RewardConfig(import_timeout_s=config.reward.import_timeout_s)
    if config.reward != unread:
        raise ValueError(
            f"section reward has no effect with recipe: {config.recipe}, which compares answers "
            "and scores none; leave it out"
        )
    for name, source in config.sources.items():
        trains = name.startswith("data.train")
        if source.kind == "reasoning_gym" and (trains or evaluates):
            needed = labels if config.recipe == "kto" and trains else pairs
            raise ValueError(f"{name}.kind = {source.kind}: recipe {config.recipe} needs {needed}")


def _check_algorithm_is_read(config: RunSections) -> None:
    """Raises: ValueError: a setting of algorithm was changed that the recipe does not read."""
    advantage = config.algorithm.advantage
    has_prm = "process_rewards" in advantage.needs or is_own(advantage.name)
    if not has_prm and config.algorithm.prm != ProcessRewardConfig():
        raise ValueError(
            f"algorithm.prm has no effect with algorithm.advantage.name = {advantage.name}, "
            "which needs no process rewards; leave it out"
        )
    default, own = AlgorithmConfig(), READ_BY_RECIPE.get(config.recipe)
    for name in AlgorithmConfig.model_fields:
        reads = name not in OF_ANSWERS if own is None else name in own
        if not reads and getattr(config.algorithm, name) != getattr(default, name):
            other = f"; it reads algorithm.{' and '.join(own)}" if own else ""
            raise ValueError(
                f"algorithm.{name} has no effect with recipe: {config.recipe}{other}; leave it out"
            )


def _check_distillation(config: RunSections) -> None:
    """Raises: ValueError: no teacher to follow, or settings without effect."""
    if TEACHER not in config.roles:
        raise ValueError(
            "roles.teacher is not given, and recipe: distillation follows it; give `roles: "
            "{teacher: {path: ...}}`, a model with the same tokenizer"
        )
    path, own = (role_settings(config)[name].model.path for name in (TEACHER, ACTOR))
    if path == own:
        raise ValueError(
            f"roles.teacher.path = {path}: this is what the actor starts from, which would learn "
            "nothing; give the model to follow"
        )
    placement = config.algorithm.kl.placement
    if placement != "none":
        raise ValueError(
            f"algorithm.kl.placement = {placement}: the teacher is the reference that recipe: "
            "distillation follows; choose none"
        )
    if not config.distillation.task_reward_weight:
        _check_no_task_reward(config)
    elif problem := unmet_need(config.algorithm.advantage):
        raise ValueError(problem)


def _check_no_task_reward(config: RunSections) -> None:
    """Raises: ValueError: a setting of scores or advantages, and nothing is scored."""
    algorithm, default, objective = config.algorithm, AlgorithmConfig(), config.distillation
    if algorithm.overlong is not None and algorithm.overlong.buffer:
        raise ValueError(
            f"algorithm.overlong.buffer = {algorithm.overlong.buffer}: is a penalty on the score, "
            "and nothing is scored with distillation.task_reward_weight = 0; leave it out, or "
            "give the reward a weight"
        )
    names = ["advantage", "drop_equal_groups"]
    if isinstance(objective, ForwardKl):
        names += ["loss", "old_log_probs", "correction"]  # of a loss on advantages
    refuse(
        {f"algorithm.{n}": getattr(algorithm, n) != getattr(default, n) for n in names},
        f": has no effect with distillation.name = {objective.name} and "
        "distillation.task_reward_weight = 0; leave it out, or give the reward a weight",
    )
