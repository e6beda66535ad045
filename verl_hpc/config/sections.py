"""The sections of a run's configuration, and what follows from them without its roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field

from verl_hpc.algorithms import advantages
from verl_hpc.algorithms.advantage import Advantage
from verl_hpc.algorithms.choices import members
from verl_hpc.config.algorithm import AlgorithmConfig, BatchConfig, DistillationConfig, ReverseKl
from verl_hpc.config.data import DataConfig, SourceConfig, single_sources
from verl_hpc.config.evaluation import ONLY_SET, EvaluationConfig, EvaluationSetConfig
from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.model import (
    CriticConfig,
    ModelConfig,
    OffloadConfig,
    OptimizerConfig,
    ParallelConfig,
)
from verl_hpc.config.output import CheckpointConfig, RuntimeConfig
from verl_hpc.config.reward import RewardConfig
from verl_hpc.config.role import REWARD, Ranks, RoleConfig, RoleName
from verl_hpc.config.rollout import RolloutConfig, StructuredConfig
from verl_hpc.config.tasks import GuardConfig, MixConfig, TaskConfig, TaskName
from verl_hpc.config.trackers import MetricsConfig
from verl_hpc.section import PathText, Positive, Section, Seed, is_own

RECIPES = ("sft", "rl", "reward_model", "dpo", "kto", "distillation")
PREFERENCES = ("dpo", "kto")
OF_ANSWERS = ("preference", "kto")
READ_BY_RECIPE: Mapping[str, Sequence[str]] = {
    "sft": ("aggregation", "loss_scale"),
    "reward_model": (),
    "dpo": ("preference",),
    "kto": ("kto",),
}
"""Settings of algorithm that a recipe reads; one that is not listed reads all but `OF_ANSWERS`."""

_ESTIMATORS = {"ppo": "gae"} | {name: name for name in members(advantages, Advantage)}
"""Estimators by the names under which they are often called recipes."""


def _recipe(name: str) -> str:
    if name in _ESTIMATORS:
        raise ValueError(
            f"names an estimator; choose recipe: rl, and algorithm.advantage.name: "
            f"{_ESTIMATORS[name]}"
        )
    if name not in RECIPES and not is_own(name):
        raise ValueError(
            f"must be one of {', '.join(RECIPES)}, or path/file.py:name of a recipe of your own"
        )
    return name


class RunSections(Section):
    """All settings of a run. `RunConfig` adds its roles, and checks that its sections agree."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
    """Names the run directory: letters, digits, '.', '_' and '-'."""
    recipe: Annotated[PathText, AfterValidator(_recipe)]
    """What a step does: sft imitates answers, rl samples responses and learns from their scores as
    `algorithm` says, reward_model learns which of two answers is better (arXiv 2203.02155),
    dpo makes better answers likelier than worse ones (arXiv 2305.18290), kto good answers likelier
    and bad ones less so (arXiv 2402.01306), distillation samples responses and follows a teacher on
    them (arXiv 2306.13649); path/file.py:name is a recipe of your own."""
    steps: Positive | None = None
    """Batches to train on; this or `epochs` is given."""
    epochs: Positive | None = None
    """Times to go through the training data, instead of `steps`. The number of steps follows when
    the data have been read: epochs x rows / (batch.size + batch.spare_prompts), rounded up, of the
    rows that data.overlap: drop leaves; the last step is filled with rows of one more epoch."""
    seed: Seed = 0
    """Seed of the order of the rows, of sampled responses and of all other random numbers.
    Generated tasks have their own seed."""
    directory: PathText = "runs"
    """The run directory is directory/name."""
    model: ModelConfig
    parallel: ParallelConfig = ParallelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    offload: OffloadConfig = OffloadConfig()
    lora: LoraConfig | None = None
    """Train adapters of all trained roles, and leave the models' own weights as they are."""
    roles: dict[RoleName, RoleConfig] = {}
    """Models of the run by their role: actor, critic, reference, reward, teacher, or those of a
    recipe of your own. What one leaves out is taken from model, parallel, optimizer, offload and
    lora (docs/placements.md)."""
    placement: dict[RoleName, Ranks] = {}
    """Ranks by label, such as {train: 0-5, rollout: 6-7}: one rank (3), neighbours (0-3), nodes
    (nodes 0-1), a share of all (1/2; shares follow each other) or all. A role runs on the label of
    its name, or on train; generation on rollout, or where the actor is; the reward function on
    reward, or where responses are generated. Without labels every rank does everything."""
    critic: CriticConfig = CriticConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    distillation: DistillationConfig = ReverseKl()
    """Objective of recipe: distillation, which follows the role teacher (docs/recipes.md)."""
    batch: BatchConfig = BatchConfig()
    data: DataConfig
    reward: RewardConfig = RewardConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    metrics: MetricsConfig = MetricsConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    tasks: dict[TaskName, TaskConfig] = {}
    """Several tasks by name that train the actor in turn (docs/tasks.md); recipe and data.train are
    then those of the first task unless given."""
    mix: MixConfig = MixConfig()
    guards: dict[TaskName, GuardConfig] = {}
    """Watched metrics by a name of yours: what happens where one falls (docs/tasks.md)."""

    @property
    def run_directory(self) -> Path:
        return Path(self.directory) / self.name

    @property
    def by_task(self) -> dict[str, Self]:
        """The run as each of its tasks trains, without evaluation; empty without tasks."""
        return {name: self._of_task(task) for name, task in self.tasks.items()}

    def _of_task(self, task: TaskConfig) -> Self:
        recipe = task.recipe or self.recipe
        samples = recipe not in ("sft", *PREFERENCES)
        algorithm = task.algorithm or _as_read(self.algorithm, recipe)
        advantage, roles = algorithm.advantage, self.roles
        if task.reward is not None:
            roles = {name: role for name, role in roles.items() if name != REWARD}
        has_values = "values" in advantage.needs or is_own(advantage.name)
        reads_critic = recipe not in RECIPES or (recipe == "rl" and has_values)
        batch = {"size": task.batch_size or self.batch.size}
        if recipe != "rl":
            batch["refill_rounds"] = 0
        sampling = {n: getattr(task, n) for n in _SAMPLING if getattr(task, n) is not None}
        if not samples:
            sampling |= {n: RolloutConfig.model_fields[n].default for n in _OF_RESPONSES}
        changes = {
            "tasks": {},
            "mix": MixConfig(),
            "guards": {},
            "recipe": recipe,
            "roles": roles,
            "algorithm": algorithm,
            "reward": task.reward or self._reward_as_read(recipe, samples, algorithm),
            "critic": self.critic if reads_critic else CriticConfig(),
            "distillation": self.distillation if recipe == "distillation" else ReverseKl(),
            "rollout": self.rollout.model_copy(update=sampling),
            "batch": self.batch.model_copy(update=batch),
            "data": self.data.model_copy(update={"train": task.train or self.data.train}),
            "evaluation": self.evaluation.model_copy(update={"every": 0, "at_start": False}),
        }
        return self.model_copy(update=changes)

    def _reward_as_read(
        self, recipe: str, samples: bool, algorithm: AlgorithmConfig
    ) -> RewardConfig:
        if not samples and is_own(algorithm.preference.name):
            return RewardConfig(import_timeout_s=self.reward.import_timeout_s)
        if not samples:
            return RewardConfig()
        smoothing = self.reward.smoothing if recipe == "rl" else None
        return self.reward.model_copy(update={"smoothing": smoothing})

    @property
    def has_own_recipe(self) -> bool:
        """Whether the recipe is a file of the user's."""
        return self.recipe not in RECIPES

    def num_steps(self, num_rows: int) -> int:
        """Batches to train on.

        Args:
            num_rows: rows of training data that are left.
        """
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return -(-self.epochs * num_rows // self.batch.asked)

    @property
    def method(self) -> str:
        """The recipe, with its algorithms if it has some, for people to read."""
        if self.tasks:
            return "; ".join(f"{name}: {task.method}" for name, task in self.by_task.items())
        if self.recipe == "distillation":
            return f"distillation ({self.distillation.name})"
        if self.recipe == "dpo":
            return f"dpo ({self.algorithm.preference.name})"
        if self.recipe != "rl":
            return self.recipe
        return f"rl ({self.algorithm.advantage.name}, {self.algorithm.loss.name})"

    @property
    def evaluation_sets(self) -> dict[str, EvaluationSetConfig]:
        """Sets that the run evaluates on, by name and in order; data.evaluation becomes one set
        with greedy answers."""
        if self.data.evaluation is None:
            return self.evaluation.sets
        only = EvaluationSetConfig(
            source=self.data.evaluation, max_prompts=self.evaluation.max_prompts
        )
        return {ONLY_SET: only}

    @property
    def sources(self) -> dict[str, SourceConfig]:
        """Every data set that the run reads, by its setting."""
        sources = single_sources(self.data.train, "data.train")
        if self.data.evaluation is not None:
            sources["data.evaluation"] = self.data.evaluation
        sets, tasks = self.evaluation.sets.items(), self.tasks.items()
        for name, task in tasks:
            if task.train is not None:
                sources |= single_sources(task.train, f"tasks.{name}.train")
        return sources | {f"evaluation.sets.{name}.source": chosen.source for name, chosen in sets}

    @property
    def rewards(self) -> dict[str, RewardConfig]:
        """Every reward of the run, by its setting."""
        sets = self.evaluation.sets.items()
        own = {f"evaluation.sets.{n}.reward": s.reward for n, s in sets if s.reward is not None}
        tasks = self.tasks.items()
        own |= {f"tasks.{n}.reward": t.reward for n, t in tasks if t.reward is not None}
        return {"reward": self.reward, **own}

    @property
    def algorithms(self) -> dict[str, AlgorithmConfig]:
        """Every section of algorithms in the run, by its setting."""
        tasks = self.tasks.items()
        own = {f"tasks.{n}.algorithm": t.algorithm for n, t in tasks if t.algorithm is not None}
        return {"algorithm": self.algorithm, **own}

    @property
    def reward_calls(self) -> dict[str, RewardConfig]:
        """All reward functions to call, by the setting that names each."""
        rewards = self.rewards.items()
        return {name: call for n, reward in rewards for name, call in reward.calls(n).items()}

    @property
    def response_limits(self) -> dict[str, int]:
        """Most tokens of a response, by each setting that says so."""
        limits: dict[str, int | None] = {"rollout": self.rollout.max_response_tokens}
        limits |= {f"tasks.{n}": task.max_response_tokens for n, task in self.tasks.items()}
        sets = self.evaluation.sets.items()
        limits |= {f"evaluation.sets.{n}": chosen.max_response_tokens for n, chosen in sets}
        return {f"{n}.max_response_tokens": limit for n, limit in limits.items() if limit}

    @property
    def longest_response(self) -> int:
        """Most tokens of a response, to train on or in an evaluation."""
        return max(self.response_limits.values())

    @property
    def constraints(self) -> dict[str, StructuredConfig]:
        """Constraints on responses of the run and of its tasks, by setting."""
        own = {f"tasks.{name}.structured": task.structured for name, task in self.tasks.items()}
        given = {"rollout.structured": self.rollout.structured} | own
        return {setting: chosen for setting, chosen in given.items() if chosen is not None}

    @property
    def rollout_dtype(self) -> str:
        """Element type in which the rollout's weights travel, or those that rollout.quantization
        leaves as they are."""
        if self.rollout.quantization is not None:
            return self.rollout.dtype or "bfloat16"
        return self.rollout.dtype or self.model.dtype

    @property
    def samples_to_train(self) -> bool:
        """Whether the recipe samples the responses that it trains on."""
        if self.tasks:
            return any(task.samples_to_train for task in self.by_task.values())
        return self.recipe not in ("sft", "reward_model", *PREFERENCES)

    @property
    def replays_experts(self) -> bool:
        """Whether the trainer uses the experts that the rollout chose."""
        if self.tasks:
            return any(task.replays_experts for task in self.by_task.values())
        return self.algorithm.router_replay == "rollout"

    @property
    def compares_answers(self) -> bool:
        """Whether the recipe is evaluated on pairs of answers."""
        return not self.tasks and self.recipe in ("reward_model", *PREFERENCES)

    @property
    def has_advantages(self) -> bool:
        """Whether scores of responses become advantages as algorithm.advantage says; not known of
        a recipe of the user's."""
        if self.tasks:
            return any(task.has_advantages for task in self.by_task.values())
        if self.recipe == "distillation":
            return self.distillation.task_reward_weight > 0
        return self.recipe == "rl"


_SAMPLING = ("num_samples", "temperature", "max_response_tokens", "structured")
"""Settings of rollout that a task may have of its own."""
_OF_RESPONSES = ("staleness", "balance", "environment", "structured")
"""Settings of rollout without effect on a task that samples no responses."""


def _as_read(algorithm: AlgorithmConfig, recipe: str) -> AlgorithmConfig:
    """Return the settings that a recipe reads, and defaults for the others."""
    names = READ_BY_RECIPE.get(recipe)
    if names is None:
        names = [name for name in AlgorithmConfig.model_fields if name not in OF_ANSWERS]
    return AlgorithmConfig().model_copy(update={n: getattr(algorithm, n) for n in names})
