"""tasks.yaml: the tasks of a `Trainer`, each of one type, and what they share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from verl_hpc.api.settings import PolicySettings, PPOConfig, StepSettings
from verl_hpc.config.explain import explain, near_or_all, shown
from verl_hpc.config.reward import RewardConfig
from verl_hpc.config.tree import read_tree
from verl_hpc.errors import ConfigError
from verl_hpc.section import (
    Finite,
    NonNegative,
    PathText,
    Positive,
    PositiveFinite,
    ProperFraction,
    Section,
    Seed,
)

Text = Annotated[str, Field(min_length=1, max_length=1000)]


class TaskConfig(StepSettings):
    """What every task has."""

    type: str
    weight: PositiveFinite | None = None
    """Share of the prompts, relative to those of the other tasks, in place of the data loader's; 1
    if only others have one. A scheduler's take the place of these."""
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
    """Of the task's reward model or constraint model, such as cuda:1; null takes the actor's."""

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
        """The same as what `PPOTrainer` is given."""
        names = PPOConfig.model_fields.keys() & type(self).model_fields.keys()
        return PPOConfig(seed=seed, **{name: getattr(self, name) for name in names})


REWARDS = ("reward_function", "reward", "reward_model")


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
    """Newest rewards that levels are made of."""

    @model_validator(mode="after")
    def _fits(self) -> ConditionConfig:
        if self.text.count("{reward}") != 1 or re.search(
            r"[{}]", self.text.replace("{reward}", "")
        ):
            raise ValueError("text: write {reward} in it once, and no other braces")
        if (self.levels is None) == (self.target is None):
            raise ValueError("give levels, or levels: null and a target; the highest level is one")
        return self


class ConditionedTask(TaskConfig):
    """Ask for the best reward, and learn the likelihood of the responses given what they got."""

    type: Literal["reward_conditioned"]
    condition: ConditionConfig = ConditionConfig()


class ConstraintConfig(Section):
    """Which tokens may come next; one of these."""

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
    """Under `model`; the likeliest token is always allowed."""

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


_TYPES: Mapping[str, type[TaskConfig]] = {
    "ppo": PPOTask,
    "reward_conditioned": ConditionedTask,
    "constrained_decoding": ConstrainedTask,
}
M = TypeVar("M", bound=BaseModel)
_NAME = re.compile(r"^[a-z][a-z0-9_]{0,39}$")


class SharedConfig(Section):
    """What is set once for all tasks."""

    steps: Positive = 100
    """That `train` takes, if it is not told."""
    seed: Seed = 0
    """Of the samples."""
    output_dir: PathText = "runs"
    """Of metrics.jsonl and checkpoints, in a directory of the trainer's name."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = "multi_task"
    checkpoint_every: NonNegative = 0
    """Steps between checkpoints; 0 saves none but those that are asked for."""
    keep: Positive | None = None
    """Newest checkpoints that stay; null keeps all."""
    evaluate_every: Positive = 5
    """Steps of which a scheduler is told the means, as one evaluation."""


class TasksConfig(SharedConfig):
    """All of tasks.yaml."""

    known: ClassVar[tuple[str, ...]] = (*SharedConfig.model_fields, "tasks")
    tasks: dict[str, TaskConfig]

    def tree(self) -> dict[str, Any]:
        """Plain values of which `parse_tasks` makes the same."""
        shared = {name: getattr(self, name) for name in SharedConfig.model_fields}
        tasks = {n: {"type": t.type} | t.model_dump(mode="json") for n, t in self.tasks.items()}
        return {**shared, "tasks": tasks}


class _Variants(SharedConfig):
    """Settings of which a file may choose another variant than one that it includes."""

    tasks: dict[Annotated[str, Field(pattern=_NAME.pattern)], PolicyTask]


def load_tasks(path: str | Path) -> TasksConfig:
    """Read tasks.yaml.

    Raises:
        ConfigError: a file that cannot be read, a name that does not exist (the nearest ones are
            given), or a value that is not allowed.
    """
    return parse_tasks(read_tree(Path(path), _Variants), str(path))


def parse_tasks(tree: Mapping[str, Any], origin: str = "tasks") -> TasksConfig:
    """Check a tree of plain values.

    Raises:
        ConfigError: as `load_tasks`.
    """
    if "namespace" in tree:
        raise ConfigError(
            f"{origin}:\n  namespace: is no setting of tasks, but of the trainer; give it there, "
            f"Trainer(..., namespace={shown(tree['namespace'])})"
        )
    for name in tree:
        if name not in TasksConfig.known:
            near = near_or_all(str(name), TasksConfig.known)
            raise ConfigError(f"{origin}:\n  {name}: no such setting; {near}")
    rest = {name: value for name, value in tree.items() if name != "tasks"}
    shared = _checked(SharedConfig, rest, origin, "")
    named = _by_name(tree.get("tasks"), origin)
    tasks = {name: _task(name, values, origin) for name, values in named.items()}
    return TasksConfig.model_construct(**shared.__dict__, tasks=tasks)


def _by_name(tasks: Any, origin: str) -> dict[str, dict[str, Any]]:
    """From a mapping, or from a list whose entries have names."""
    if isinstance(tasks, list):
        if not all(isinstance(task, dict) and isinstance(task.get("name"), str) for task in tasks):
            raise ConfigError(f"{origin}:\n  tasks: every entry of the list needs a name")
        pairs = [(t["name"], {k: v for k, v in t.items() if k != "name"}) for t in tasks]
        if len(dict(pairs)) < len(pairs):
            raise ConfigError(f"{origin}:\n  tasks: two of them have the same name")
        tasks = dict(pairs)
    if not isinstance(tasks, dict) or not tasks:
        raise ConfigError(
            f"{origin}:\n  tasks = {shown(tasks)}: expected tasks by name, `math: {{type: ppo}}`"
        )
    return tasks


def _task(name: Any, values: Any, origin: str) -> TaskConfig:
    where = f"tasks.{name}"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{origin}:\n  tasks: {shown(name)} is no name; small letters, digits and _, at most "
            "40, a letter first"
        )
    if not isinstance(values, dict):
        raise ConfigError(f"{origin}:\n  {where} = {shown(values)}: expected settings of a task")
    kind = values.get("type")
    if kind is None:
        raise ConfigError(
            f"{origin}:\n  {where}.type: is needed and not given; one of {', '.join(_TYPES)}"
        )
    if kind not in _TYPES:
        near = near_or_all(str(kind), _TYPES, "types")
        raise ConfigError(f"{origin}:\n  {where}.type = {shown(kind)}: no such type; {near}")
    return _checked(_TYPES[kind], values, origin, f"{where}.")


def _checked(model: type[M], values: Mapping[str, Any], origin: str, where: str) -> M:
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        lines = explain(error, model).splitlines()
        text = "\n".join(f"  {where}{line.strip()}" for line in lines)
        raise ConfigError(f"{origin}:\n{text}") from None
