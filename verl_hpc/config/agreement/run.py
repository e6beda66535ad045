"""All checks between the sections of a run."""

from __future__ import annotations

from verl_hpc.config.agreement.distillation import check_distillation
from verl_hpc.config.agreement.evaluation import check_evaluation
from verl_hpc.config.agreement.fsdp import check_fsdp_roles
from verl_hpc.config.agreement.lora import check_lora
from verl_hpc.config.agreement.roles import check_roles
from verl_hpc.config.agreement.rollout import check_quantised, check_router_replay
from verl_hpc.config.agreement.tasks import check_guards, check_mix
from verl_hpc.config.algorithm import AlgorithmConfig, ProcessRewardConfig
from verl_hpc.config.model import CriticConfig
from verl_hpc.config.reward import CALLED_BY_THE_RANK, RewardConfig
from verl_hpc.config.role import CRITIC, REWARD
from verl_hpc.config.roles import calls_reward, generates, roles_of_recipe
from verl_hpc.config.sections import OF_ANSWERS, READ_BY_RECIPE, RunSections
from verl_hpc.section import is_own


def check_agreement(config: RunSections) -> None:
    """Raises: ValueError: a setting asks for what another one, or the recipe, does not give."""
    check_guards(config)
    check_roles(config)
    check_lora(config)
    check_fsdp_roles(config)
    if config.rollout.engine == "none":
        _check_generates_nothing(config)
    check_evaluation(config)
    if config.runtime.reward_processes:
        _check_reward_processes(config, config.runtime.reward_processes)
    if not config.tasks:
        _check_step(config)
    else:
        _check_rollout(config)
    for name, task in check_mix(config).items():
        try:
            _check_step(task)
        except ValueError as error:
            raise ValueError(f"tasks.{name}: {error}".replace("data.train", "train")) from None


def _check_step(config: RunSections) -> None:
    """Raises: ValueError: a setting asks for what a step of this recipe does not give."""
    check_distillation(config)
    if config.has_advantages:
        _check_advantage(config)
    if config.reward.smoothing is not None and config.recipe != "rl":
        raise ValueError(
            f"reward.smoothing with recipe: {config.recipe}, which does not use it; leave it out"
        )
    if config.compares_answers:
        _check_answers(config)
    if not config.has_own_recipe:
        _check_algorithm_is_read(config)
        _check_critic_is_there(config)
    _check_rollout(config)
    _check_rollout_log_probs(config)
    if config.rollout.is_quantised:
        check_quantised(config)
    if config.replays_experts:
        check_router_replay(config)
    if config.batch.refill_rounds:
        _check_refill(config)
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
    _check_mini_batches(config)


def _check_advantage(config: RunSections) -> None:
    """Raises: ValueError: the advantage lacks an input that it reads."""
    advantage = config.algorithm.advantage
    if advantage.compares and config.rollout.num_samples < 2:
        raise ValueError(
            f"rollout.num_samples = {config.rollout.num_samples}: algorithm.advantage.name = "
            f"{advantage.name} compares the responses to one prompt, so it needs at least 2"
        )
    if "components" in advantage.needs:
        _check_components(config)


def _check_components(config: RunSections) -> None:
    """Raises: ValueError: a setting changes or replaces the score, whose components the advantage
    reads."""
    name, overlong = config.algorithm.advantage.name, config.algorithm.overlong
    changes = {
        "algorithm.kl.placement = reward": config.algorithm.kl.placement == "reward",
        "algorithm.overlong.buffer": overlong is not None and overlong.buffer > 0,
        "reward.smoothing": config.reward.smoothing is not None,
        "roles.reward": REWARD in config.roles,
    }
    for setting in (setting for setting, is_there in changes.items() if is_there):
        raise ValueError(
            f"{setting} with algorithm.advantage.name = {name}, which reads the numbers that the "
            "reward function returns, and not what this makes of the score; leave one of the two "
            "out"
        )


def _check_rollout(config: RunSections) -> None:
    """Raises: ValueError: how responses are generated does not suit what they are for."""
    if config.samples_to_train and config.rollout.temperature == 0.0:
        raise ValueError("rollout.temperature = 0 samples no exploration; choose above 0")
    staleness = config.rollout.staleness
    if staleness and not config.samples_to_train:
        raise ValueError(
            f"rollout.staleness = {staleness} with recipe: {config.recipe}, which trains on no "
            "responses; leave it out"
        )
    balance = config.rollout.balance
    if balance != "fixed" and not config.samples_to_train:
        raise ValueError(
            f"rollout.balance = {balance} with recipe: {config.recipe}, which trains on no "
            "responses, and those of an evaluation are dealt as fixed; leave it out"
        )
    if config.rollout.environment is not None and not generates(config):
        raise ValueError(
            f"rollout.environment with recipe: {config.recipe}, which generates nothing here; "
            "leave it out"
        )


def _check_reward_processes(config: RunSections, number: int) -> None:
    """Raises: ValueError: there is no function that they could call."""
    setting = f"runtime.reward_processes = {number}"
    to_train = calls_reward(config) or config.has_own_recipe
    if not generates(config) or not (to_train or config.evaluation.wanted):
        model = config.has_advantages and REWARD in config.roles
        what = "roles.reward, a model" if model else f"recipe: {config.recipe}"
        raise ValueError(f"{setting}: no reward function is called with {what}; leave it out")
    calls = config.reward_calls
    if all(call.function in CALLED_BY_THE_RANK for call in calls.values()):
        name, call = next(iter(calls.items()))
        raise ValueError(
            f"{setting}: {name}.function = {call.function} is called by the rank, since it has "
            "many responses under way by itself; leave one of the two out"
        )


def _check_generates_nothing(config: RunSections) -> None:
    """Raises: ValueError: a built-in recipe or an evaluation generates without an engine."""
    answers = (config.recipe == "sft" or bool(config.tasks)) and config.evaluation.wanted
    if answers or (config.samples_to_train and not config.has_own_recipe):
        what = "an evaluation" if answers else f"recipe: {config.recipe}"
        raise ValueError(f"rollout.engine = none, and {what} generates; choose vllm or hf")


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
    _check_whole_groups(config)


def _check_whole_groups(config: RunSections) -> None:
    batch = config.batch
    if batch.shuffle_mini_batches == "groups" and batch.size % batch.mini_batches:
        raise ValueError(
            f"batch.mini_batches = {batch.mini_batches} does not divide the {batch.size} "
            "groups of a step (batch.size), and batch.shuffle_mini_batches = groups parts "
            "none; choose a divisor, or shuffle_mini_batches: samples"
        )


def _check_rollout_log_probs(config: RunSections) -> None:
    algorithm, correction = config.algorithm, "algorithm.correction"
    corrects = algorithm.correction is not None
    if config.rollout.verify.on_mismatch == "correct":
        corrects, correction = True, "rollout.verify.on_mismatch = correct"
    if corrects and algorithm.old_log_probs == "rollout":
        raise ValueError(
            f"{correction} with algorithm.old_log_probs = rollout: every weight is 1 where the "
            "ratio starts from the rollout's log-probs; choose auto, or do not correct"
        )
    if not config.rollout.filters:
        return
    filters = ", ".join(f"rollout.{n} = {v:g}" for n, v in config.rollout.filters.items())
    why = "the rollout engine then has no log-probs of the policy that is trained"
    if algorithm.old_log_probs == "rollout":
        raise ValueError(f"algorithm.old_log_probs = rollout with {filters}: {why}; choose auto")
    if corrects:
        raise ValueError(
            f"{correction} with {filters}: {why}; do not correct, or leave the filters out"
        )


def _check_refill(config: RunSections) -> None:
    """Raises: ValueError: batch.refill_rounds with a setting that excludes it."""
    against = {
        "algorithm.drop_equal_groups = false": not config.algorithm.drop_equal_groups,
        f"recipe: {config.recipe}": config.recipe != "rl",
        f"rollout.staleness = {config.rollout.staleness}": config.rollout.staleness > 0,
        f"rollout.on_interrupt = {config.rollout.on_interrupt}": config.rollout.on_interrupt
        == "keep",
        "roles.reward, a model": REWARD in config.roles,
        "placement.reward": REWARD in config.placement,
        f"algorithm.advantage.name = {config.algorithm.advantage.name}": "greedy"
        in config.algorithm.advantage.needs,
        f"rollout.num_samples = {config.rollout.num_samples}": config.rollout.num_samples < 2,
    }
    excluding = [name for name, is_given in against.items() if is_given]
    if excluding:
        raise ValueError(
            f"batch.refill_rounds = {config.batch.refill_rounds} with {excluding[0]}: prompts are "
            "asked, and scored by the reward function, where responses are generated, and "
            "groups of equal scores are left out; leave one of the two out"
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


def _check_answers(config: RunSections) -> None:
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
        is_read = name == "data.train" or config.evaluation.wanted
        if source.kind != "files" and is_read:
            needed = labels if (config.recipe, name) == ("kto", "data.train") else pairs
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
