"""PPO in one process, one call a step: the recipe `rl` on models that are handed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch

from verl_hpc.api.assemble import assemble
from verl_hpc.api.batch import Batch, batch_of, numbers_of
from verl_hpc.api.checkpoints import find_step, fingerprint_of, load_step, save_step
from verl_hpc.api.exporters import Exports, sink_of
from verl_hpc.api.modules import as_actor, as_critic, check_tokenizer
from verl_hpc.api.process import (
    Namespace,
    check_code,
    check_one_process,
    debug_and_profile,
    refused,
)
from verl_hpc.api.prompts import StepPrompts, asked, check_lengths
from verl_hpc.api.rewards import Reward, scorer_of
from verl_hpc.api.settings import PPOConfig, parse_ppo, run_config
from verl_hpc.config.arguments import checked, having
from verl_hpc.config.role import ACTOR
from verl_hpc.config.run import RunConfig
from verl_hpc.data.order import Position
from verl_hpc.data.problem import Problem
from verl_hpc.errors import ConfigError
from verl_hpc.flow import DataFlow
from verl_hpc.generation.score import gather_scores
from verl_hpc.metrics.meters import Meters
from verl_hpc.metrics.sinks import Sinks
from verl_hpc.section import NonNegative
from verl_hpc.step.batch import Scores, StepRows
from verl_hpc.tracker import Sink
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.recipes.rl import rl
from verl_hpc.trainer.state import Progress

_STEPS_OF = 8
"""Prompts that `train` takes for a step without rollout_batch_size."""
_READS = having("a DataProvider, or a PromptSource or another source with read(count)", "read")


class PPOTrainer:
    """Rollout, reward and update of one process.

    A step is the recipe `rl` of `python -m verl_hpc train`, with its operators, advantages and
    losses; the actor's own module generates, and torch's AdamW trains it.

    Args:
        actor_model: an `ActorModel`, or an AutoModelForCausalLM.
        critic_model: a `CriticModel`, or an AutoModelForCausalLM, of whose decoder a copy is taken:
            advantages are GAE's; None trains without.
        tokenizer: tokenizer of both.
        config: `verl_hpc.api.settings.PPOConfig` as a mapping; a name it lacks is an error.
        reward_fn: scores responses: a function as docs/rewards.md has them, such as
            f(response, reference), or its name; None leaves the KL penalty as the only reward.
        data_provider: what `train` takes prompts from, such as a `DataProvider`.
        namespace: prefix of the names of metrics, and of the directories of checkpoints and
            temporary files.

    Raises:
        ConfigError, ModelError, RewardError: what cannot be honoured, with what serves instead.
    """

    @checked
    def __init__(
        self,
        actor_model: Any,
        critic_model: torch.nn.Module | None = None,
        tokenizer: Any = None,
        config: Mapping[str, Any] | PPOConfig | None = None,
        *,
        reward_fn: Reward = None,
        data_provider: Annotated[Any, _READS] | None = None,
        namespace: Namespace = None,
    ) -> None:
        check_one_process("PPOTrainer")
        check_tokenizer(tokenizer, "PPOTrainer")
        self.config, self.namespace = parse_ppo(config), namespace
        self.actor_model, self.critic_model = as_actor(actor_model), as_critic(critic_model)
        check_code(self.config, actor_model=self.actor_model, critic_model=self.critic_model)
        self.tokenizer, self.data_provider = tokenizer, data_provider
        self._prompts, self._sinks, self._meters = StepPrompts(), Sinks([]), Meters()
        self._progress = Progress(0, Position())
        self._run = assemble(
            self._run_config(1),
            self.actor_model,
            self.critic_model,
            tokenizer,
            self._prompts,
            scorer_of(reward_fn),
        )
        self._run.fingerprint = fingerprint_of(self._run)
        self._recipe = cache(self._make_recipe)
        self._recipe(1)  # makes the numbers of the run that a checkpoint fills
        self._values: dict[str, Any] = {}

    def _run_config(self, num_prompts: int) -> RunConfig:
        has_critic, name = self.critic_model is not None, self.namespace or "python"
        return run_config(
            self.config, self.actor_model, has_critic, name=name, num_prompts=num_prompts
        )

    def _make_recipe(self, num_prompts: int) -> Recipe:
        """Make the recipe of steps of so many prompts, whose mini-batches depend on it."""
        return rl(replace(self._run, config=self._run_config(num_prompts)))

    @property
    def global_step(self) -> int:
        """Steps done."""
        return self._progress.step

    def step(
        self, input_ids: Any, attention_mask: Any = None, references: Sequence[Any] | None = None
    ) -> dict[str, float]:
        """Answer prompts, score the responses, and learn from them.

        Args:
            input_ids: prompts, (B, L), B lists of ids, B texts, or a batch of a `DataProvider`.
            attention_mask: (B, L), 1 where a token counts; None leaves the tokenizer's padding out.
            references: what is right, for the reward function.

        Returns:
            `loss`, the policy's, and the metrics that a run writes (docs/watching.md).

        Raises:
            DataError, RewardError, TrainingError: raised by the operators.
        """
        return self._step(asked(input_ids, self.tokenizer, attention_mask, references))

    def _step(self, problems: Sequence[Problem]) -> dict[str, float]:
        with self._debug_and_profile():
            batch = self._rollout(problems)
            with self._meters.during("reward"):
                scores = self._scores(batch)
            return self._update(batch, scores)

    def rollout(
        self, input_ids: Any, attention_mask: Any = None, references: Sequence[Any] | None = None
    ) -> Batch:
        """Take the first part of a step: `num_samples` responses to each prompt."""
        return self._rollout(asked(input_ids, self.tokenizer, attention_mask, references))

    @checked
    def rewards(self, batch: Batch) -> list[float]:
        """Take the second part: what reward_fn says of each response; of a list the sum."""
        return list(self._scores(batch).values)

    @checked
    def update(self, batch: Batch, rewards: Any) -> dict[str, float]:
        """Take the third part: learn from responses that have a reward each; metrics as of `step`.

        Raises:
            DataError: rewards are no numbers, or not as many as responses.
        """
        scores = Scores(numbers_of(batch, rewards))
        with self._debug_and_profile():
            return self._update(batch, scores)

    @checked
    def train(self, num_steps: NonNegative) -> list[dict[str, float]]:
        """Take steps on prompts of the data provider, rollout_batch_size (8) each.

        Returns:
            The metrics of every step.

        Raises:
            ConfigError: there is no data provider.
        """
        if self.data_provider is None:
            raise ConfigError("PPOTrainer.train: data_provider is needed; or call step(input_ids)")
        count = self.config.rollout_batch_size or _STEPS_OF
        read = self.data_provider.read
        return [self._step(asked(read(count), self.tokenizer)) for _ in range(num_steps)]

    def _rollout(self, problems: Sequence[Problem]) -> Batch:
        check_lengths(problems, self.config.max_prompt_length)
        rows = StepRows(self.global_step + 1, self._prompts.add(problems))
        recipe = self._recipe(len(problems))
        with self._meters.during("rollout"):
            recipe.metrics.clear()
            rest = [op.name for op in recipe.operators if op.name != "rollout"]
            values = recipe.without(*rest).compile().run(rows=rows)
        return batch_of(values["responses"], values["sequences"], problems, self.tokenizer)

    def _scores(self, batch: Batch) -> Scores:
        scorer = self._run.reward
        assert scorer is not None
        count = len(batch)
        scores = scorer(batch.requests)
        return gather_scores(self._run.roles[ACTOR].place, range(count), scores, count)

    def _update(self, batch: Batch, scores: Scores) -> dict[str, float]:
        with self._meters.during("update"):
            values, metrics = self._learn(batch, scores)
        position = getattr(self.data_provider, "position", None)
        if not isinstance(position, Position):
            position = Position(0, self._prompts.count)
        self._progress = Progress(self.global_step + 1, position)
        self._values = values if self.config.enable_debug_mode else {}
        self._sinks.rewards(scores.values)
        self._sinks.write(self.global_step, metrics | self._meters.drain())
        return metrics

    def _learn(self, batch: Batch, scores: Scores) -> tuple[dict[str, Any], dict[str, float]]:
        """Return all values of an update by name, and its metrics."""
        step, samples = self.global_step + 1, batch.samples
        num_prompts = len({sample.group for sample in samples})
        recipe = self._recipe(max(num_prompts, len(batch) // self.config.num_samples))
        flow = recipe.of_step(step).without("rollout", "reward")
        flow.inputs = (*flow.inputs, "responses", "sequences", "scores")
        # Not a recipe's own: nothing generates here, and models have the device.
        pipeline = DataFlow.compile(flow)
        recipe.metrics.clear()
        values = pipeline.run(
            rows=StepRows(step, list(range(num_prompts))),
            responses=samples,
            sequences=batch.columns(self._run.session.device),
            scores=scores,
        )
        metrics = {**recipe.metrics, **scores.metrics}
        return values, {"loss": metrics["actor/loss"], **metrics}

    def _debug_and_profile(self) -> AbstractContextManager[None]:
        directory = Path(self.config.output_dir) / (self.namespace or "python") / "profiles"
        return debug_and_profile(self.config, self.global_step + 1, directory)

    @property
    def debug_values(self) -> Mapping[str, Any]:
        """All values of the newest step's update by name: samples, old, reference, advantages, ...

        Raises:
            ConfigError: enable_debug_mode is off.
        """
        if not self.config.enable_debug_mode:
            raise refused("enable_debug_mode", "PPOTrainer.debug_values")
        return self._values

    def add_metrics_exporter(self, exporter: Sink | Exports) -> None:
        """Hand it every step's metrics, and seconds as `timing_s/rollout`, `timing_s/reward` and
        `timing_s/update`: to its `write(step, metrics)`, or by calling it so.

        Names begin with the namespace; a `MetricsExporter` without a `run_name` has it as its label
        `run`. One that fails is reported once and dropped; it does not end training.

        Raises:
            ConfigError: it is neither, or belongs to a trainer of another namespace.
        """
        self._sinks.add(sink_of(exporter, self.namespace))

    @checked
    def save_checkpoint(
        self, path: str | Path, save_optimizer: bool = False, save_training_state: bool = False
    ) -> Path:
        """Write a step directory below `path` (and the namespace): HDF5, checksummed, readable by
        `python -m verl_hpc export` and by runs as model.path.

        Args:
            path: directory of checkpoints.
            save_optimizer: with Adam's state.
            save_training_state: with what `load_checkpoint` resumes from: step, position in the
                data, random numbers; needs the optimizer's.

        Returns:
            The step's directory; `step_N` beside it leads there, too.

        Raises:
            ConfigError: the state without the optimizer.
            CheckpointError: it could not be written.
            ModelError: a parameter has no dimensions.
        """
        return save_step(
            self._run,
            self._progress,
            Path(path) / (self.namespace or ""),
            self.actor_model,
            self.tokenizer,
            self.namespace,
            save_optimizer,
            save_training_state,
        )

    @checked
    def load_checkpoint(self, path: str | Path) -> int:
        """Go on from a step that was saved with its optimizer and training state, or from the
        newest one below `path` (and the namespace); return the number of steps done.

        Raises:
            CheckpointError, ConfigError: there is no step, it lacks these, or is of another model.
        """
        seek = getattr(self.data_provider, "seek", None)
        if self.data_provider is not None and not callable(seek):
            raise ConfigError(
                f"data_provider: {type(self.data_provider).__name__} has no seek(position), so "
                "that it would begin anew; give it one, or subclass PromptSource, which has"
            )
        self._progress = load_step(self._run, find_step(Path(path), self.namespace))
        self._prompts.count = self._progress.position.offset
        if callable(seek):
            seek(self._progress.position)
        return self.global_step
