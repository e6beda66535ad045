"""tasks.yaml: the tasks of a `Trainer`, each of one type, and what they share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, SerializeAsAny, ValidationError, model_validator

from verl_hpc.api.settings import PolicySettings, PPOConfig, StepSettings
from verl_hpc.config.explain import explain, near_or_all, shown
from verl_hpc.config.reward import RewardConfig
from verl_hpc.config.tree import read_tree
from verl_hpc.errors import ConfigError
from verl_hpc.section import Finite, NonNegative, PathText, Positive, ProperFraction, Section, Seed

Text = Annotated[str, Field(min_length=1, max_length=1000)]
REWARDS = ("reward_function", "reward", "reward_model")


class TaskConfig(StepSettings):
    """Settings that every task has."""

    type: str
    reward_function: Text | None = None
    """Name of a function as reward_fn of PPOTrainer has it, or path/to/file.py:function. A task has
    one of this, reward, reward_model, and rewards of the trainer; with none the KL teaches alone.
    """
    reward: RewardConfig | None = None
    """The section reward of a run: a function with options and a time limit, or a sum of some."""
    reward_model: PathText | None = None
    """Directory or name of a sequence classifier with one label, which scores prompt and response.
    """
    device: Text | None = None
    """Device of the task's reward model or constraint model, such as cuda:1; null takes the
    actor's."""

    @model_validator(mode="after")
    def _one_reward(self) -> TaskConfig:
        given = [n for n in REWARDS if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other; leave one")
        if self.reward is not None and self.reward.smoothing is not None:
            raise ValueError(
                "reward.smoothing: rewards of several tasks are not averaged over steps; leave it "
                "out, or train the task by itself (reward_smoothing of PPOTrainer)"
            )
        return self

    def of_trainer(self, seed: int) -> PPOConfig:
        """Return these settings as `PPOTrainer` takes them."""
        names = PPOConfig.model_fields.keys() & type(self).model_fields.keys()
        return PPOConfig(seed=seed, **{name: getattr(self, name) for name in names})


class PolicyTask(TaskConfig, PolicySettings):
    """A task that learns by PPO."""

    value_head: Literal["critic", "actor", "none"] | None = None
    """What the task's own head reads: the decoder of the critic, which all tasks train, or that of
    the actor, which the values' loss leaves alone. null takes the critic if there is one, else
    none."""


class PPOTask(PolicyTask):
    """Sample, score, and take clipped steps on the advantages (arXiv 1707.06347)."""

    type: Literal["ppo"]


class ConditionConfig(Section):
    """How a prompt says which reward its answer is to get."""

    text: Text = "reward {reward}: "
    """Put before the prompt; {reward} is the level, or the reward."""
    levels: Annotated[Positive, Field(ge=2, le=100)] | None = 5
    """Rewards are sorted into so many levels of equally many responses, as Quark's quantiles; the
    highest is asked for. null writes the reward itself, as decision transformers do."""
    target: Finite | None = None
    """The reward that is asked for, without levels."""
    digits: Annotated[NonNegative, Field(le=6)] = 1
    """Decimals of a reward, without levels."""
    window: Annotated[Positive, Field(le=4096)] = 256
    """Number of the newest rewards that levels are made of."""

    @model_validator(mode="after")
    def _fits(self) -> ConditionConfig:
        if self.text.count("{") != 1 or self.text.count("}") != 1 or "{reward}" not in self.text:
            raise ValueError("text: write {reward} in it once, and no other braces")
        if (self.levels is None) == (self.target is None):
            raise ValueError("give levels, or levels: null and a target; the highest level is one")
        return self


class ConditionedTask(TaskConfig):
    """Ask for the best reward, and learn the likelihood of the responses given what they got."""

    type: Literal["reward_conditioned"]
    condition: ConditionConfig = ConditionConfig()


class ConstraintConfig(Section):
    """Limits on the tokens that may come next; one of these is given."""

    choices: Annotated[list[Text], Field(min_length=1, max_length=10_000)] | None = None
    """The response is one of these texts."""
    regex: Text | None = None
    """The response as a whole matches it."""
    function: PathText | None = None
    """path/to/file.py:function, called as transformers' prefix_allowed_tokens_fn:
    function(row, token ids of prompt and response) gives ids of the tokens that are allowed."""
    model: PathText | None = None
    """A language model with the actor's tokenizer: tokens that it finds likely enough."""
    min_probability: Annotated[ProperFraction, Field(gt=0.0)] = 0.001
    """Least probability under `model`; the likeliest token is always allowed."""

    @model_validator(mode="after")
    def _one(self) -> ConstraintConfig:
        kinds = ("choices", "regex", "function", "model")
        if sum(getattr(self, kind) is not None for kind in kinds) != 1:
            raise ValueError(f"give one of {', '.join(kinds)}")
        if self.model is None:
            self._check_unchanged(["min_probability"], "another constraint than model")
        return self


class ConstrainedTask(PolicyTask):
    """PPO of the policy that a constraint leaves, renormalised over the tokens it allows."""

    type: Literal["constrained_decoding"]
    constraint: ConstraintConfig | None = None
    """null takes that of the trainer's `constraints`."""


TYPES: Mapping[str, type[TaskConfig]] = {
    "ppo": PPOTask,
    "reward_conditioned": ConditionedTask,
    "constrained_decoding": ConstrainedTask,
}
_Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
M = TypeVar("M", bound=BaseModel)


class TasksConfig(Section):
    """All of tasks.yaml."""

    steps: Positive = 100
    """Steps that `train` takes if it is called without a number."""
    seed: Seed = 0
    """Seed of the samples."""
    output_dir: PathText = "runs"
    """Directory of metrics.jsonl and checkpoints, below which the trainer's name is one."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = "multi_task"
    checkpoint_every: NonNegative = 0
    """Steps between checkpoints; 0 saves none but those that are asked for."""
    keep: Positive | None = None
    """Newest checkpoints that stay; null keeps all."""
    evaluate_every: Positive = 5
    """Steps whose mean metrics are one evaluation of a scheduler."""
    tasks: Annotated[dict[_Name, SerializeAsAny[TaskConfig]], Field(min_length=1)]


def load_tasks(source: str | Path | Mapping[str, Any]) -> TasksConfig:
    """Read tasks.yaml, or check its settings as a mapping.

    Raises:
        ConfigError: a file that cannot be read, a name that does not exist (the nearest ones are
            given), or a value that is not allowed.
    """
    if isinstance(source, Mapping):
        tree, origin = dict(source), "tasks"
    else:
        tree, origin = read_tree(Path(source), TasksConfig), str(source)
    if isinstance(tree.get("tasks"), list):
        tree["tasks"] = _by_name(tree["tasks"], origin)
    if isinstance(tree.get("tasks"), dict):
        tree["tasks"] = {name: _task(name, t, origin) for name, t in tree["tasks"].items()}
    return _checked(TasksConfig, tree, origin)


def _by_name(tasks: list[Any], origin: str) -> dict[str, Any]:
    names = [task.get("name") if isinstance(task, dict) else None for task in tasks]
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{origin}:\n  tasks: every entry of the list needs a name")
    if len(set(names)) < len(names):
        raise ConfigError(f"{origin}:\n  tasks: two of them have the same name")
    return {task.pop("name"): task for task in map(dict, tasks)}


def _task(name: Any, values: Any, origin: str) -> TaskConfig:
    where = f"tasks.{name}."
    if not isinstance(values, dict):
        raise ConfigError(f"{origin}:\n  tasks.{name} = {shown(values)}: expected its settings")
    kind = str(values.get("type"))
    if kind not in TYPES:
        near = near_or_all(kind, TYPES, "types")
        raise ConfigError(f"{origin}:\n  {where}type = {kind}: no such type; {near}")
    return _checked(TYPES[kind], values, origin, where)


def _checked(model: type[M], values: Mapping[str, Any], origin: str, where: str = "") -> M:
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        lines = explain(error, model).splitlines()
        text = "\n".join(f"  {where}{line.strip()}" for line in lines)
        raise ConfigError(f"{origin}:\n{text}") from None
