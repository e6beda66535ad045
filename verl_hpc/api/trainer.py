"""PPO in one process, one call a step: the house's recipe on models that are handed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from verl_hpc.api.assemble import assemble
from verl_hpc.api.batch import Batch, batch_of, numbers_of, scores_of
from verl_hpc.api.checkpoints import fingerprint_of, load_step, save_step
from verl_hpc.api.data import check_provider
from verl_hpc.api.exporters import Exports, sink_of
from verl_hpc.api.modules import as_actor, as_critic, check_tokenizer
from verl_hpc.api.namespace import namespaced, temporary_directory
from verl_hpc.api.parts import StepParts
from verl_hpc.api.prompts import StepPrompts, asked, check_lengths
from verl_hpc.api.ranks import check_one_process, check_strategy
from verl_hpc.api.rewards import Reward, scorer_of
from verl_hpc.api.settings import PPOConfig, parse_ppo, run_config
from verl_hpc.api.switches import check_code, debug_and_profile, refused
from verl_hpc.config.arguments import checked
from verl_hpc.data.order import Position
from verl_hpc.data.problem import Problem
from verl_hpc.errors import ConfigError
from verl_hpc.metrics.sinks import Sink, Sinks
from verl_hpc.metrics.timers import Timers
from verl_hpc.section import NonNegative
from verl_hpc.step.scores import Scores
from verl_hpc.trainer.state import Progress

_STEPS_OF = 8
"""Prompts that `train` takes for a step, if nobody says."""


class PPOTrainer:
    """Rollout, reward and update of one process.

    A step is the recipe `rl` of `python -m verl_hpc train`, with its operators, advantages and
    losses; the actor's own module generates, and torch's AdamW trains it.

    Args:
        actor_model: an `ActorModel`, or an AutoModelForCausalLM.
        critic_model: a `CriticModel`, or an AutoModelForCausalLM, of whose decoder a copy is taken:
            advantages are GAE's; None trains without.
        tokenizer: of both.
        config: `verl_hpc.api.settings.PPOConfig` as a mapping; a name it lacks is an error.
        reward_fn: scores responses: a function as docs/rewards.md has them, such as
            f(response, reference), or its name; None leaves the KL penalty as the only reward.
        data_provider: what `train` takes prompts from, such as a `DataProvider`.
        namespace: prefix of the names of metrics, and of the directories of checkpoints and
            temporary files.
        strategy: is refused, with what serves instead: a process has a device for each role.

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
        data_provider: Any = None,
        namespace: str | None = None,
        strategy: Any = None,
    ) -> None:
        check_one_process("PPOTrainer")
        check_strategy(strategy, "PPOTrainer")
        check_tokenizer(tokenizer, "PPOTrainer")
        check_provider(data_provider)
        self.config, self.namespace = parse_ppo(config), namespaced(namespace)
        self.actor_model, self.critic_model = as_actor(actor_model), as_critic(critic_model)
        check_code(self.config, actor_model=self.actor_model, critic_model=self.critic_model)
        self.tokenizer, self.data_provider = tokenizer, data_provider
        self._prompts, self._sinks, self._timers = StepPrompts(), Sinks([]), Timers()
        self._progress = Progress(0, Position())
        config_of = partial(
            run_config,
            self.config,
            name=self.namespace or "python",
            dtype=str(next(self.actor_model.parameters()).dtype).removeprefix("torch."),
            has_critic=critic_model is not None,
        )
        self._run = assemble(
            config_of(num_prompts=1),
            self.actor_model,
            self.critic_model,
            tokenizer,
            self._prompts,
            scorer_of(reward_fn),
        )
        self._run.fingerprint = fingerprint_of(self._run)
        self._parts = StepParts(self._run, config_of)
        self._values: dict[str, Any] = {}

    @property
    def global_step(self) -> int:
        """Steps done."""
        return self._progress.step

    def step(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        references: Sequence[Any] | None = None,
    ) -> dict[str, float]:
        """Answer prompts, score the responses, and learn from them.

        Args:
            input_ids: prompts, (B, L), B lists of ids, B texts, or a batch of a `DataProvider`.
            attention_mask: (B, L), 1 where a token counts; None leaves the tokenizer's padding out.
            references: what is right, for the reward function.

        Returns:
            `loss`, the policy's, and the metrics that a run writes (docs/watching.md).

        Raises:
            DataError, RewardError, TrainingError: as the operators.
        """
        return self._step(asked(input_ids, self.tokenizer, attention_mask, references))

    def _step(self, problems: Sequence[Problem]) -> dict[str, float]:
        with self._debug_and_profile():
            batch = self._rollout(problems)
            with self._timers("reward"):
                scores = self._scores(batch)
            return self._update(batch, scores)

    def rollout(
        self, input_ids: Any, attention_mask: Any = None, references: Sequence[Any] | None = None
    ) -> Batch:
        """The first part of a step: `num_samples` responses to each prompt."""
        return self._rollout(asked(input_ids, self.tokenizer, attention_mask, references))

    @checked
    def rewards(self, batch: Batch) -> list[float]:
        """The second part: what reward_fn says of each response; of a list the sum."""
        return list(self._scores(batch).values)

    @checked
    def update(self, batch: Batch, rewards: Any) -> dict[str, float]:
        """The third part: learn from responses that have a reward each; metrics as of `step`."""
        scores = Scores(numbers_of(batch, rewards))
        with self._debug_and_profile():
            return self._update(batch, scores)

    @checked
    def train(self, num_steps: NonNegative) -> list[dict[str, float]]:
        """Steps on prompts of the data provider, rollout_batch_size (8) each.

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
        rows = self._prompts.add(problems)
        with self._timers("rollout"):
            values = self._parts.rollout(self.global_step + 1, rows)
        return batch_of(values["responses"], values["sequences"], problems, self.tokenizer)

    def _scores(self, batch: Batch) -> Scores:
        scorer = self._run.reward
        assert scorer is not None
        return scores_of(scorer(batch.requests))

    def _update(self, batch: Batch, scores: Scores) -> dict[str, float]:
        with self._timers("update"):
            values, metrics = self._parts.update(self.global_step + 1, batch, scores)
        position = getattr(self.data_provider, "position", None)
        if not isinstance(position, Position):
            position = Position(0, self._prompts.count)
        self._progress = Progress(self.global_step + 1, position)
        self._values = values if self.config.enable_debug_mode else {}
        self._sinks.rewards(scores.values)
        self._sinks.write(self.global_step, metrics | self._timers.drain())
        return metrics

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
            save_training_state: with what `load_checkpoint` goes on from: step, position in the
                data, random numbers; needs the optimizer's.

        Returns:
            The step's directory; `step_N` beside it leads there, too.

        Raises:
            ConfigError: the state without the optimizer.
            CheckpointError: it could not be written.
            ModelError: a parameter has no dimensions.
        """
        with temporary_directory(self.namespace) as scratch:
            return save_step(
                self._run,
                self._progress,
                Path(path) / (self.namespace or ""),
                Path(scratch),
                self.actor_model,
                self.tokenizer,
                save_optimizer,
                save_training_state,
            )

    @checked
    def load_checkpoint(self, path: str | Path) -> int:
        """Go on from a step that was saved with its optimizer and training state, or from the
        newest one below `path` (and the namespace); the number of steps done.

        Raises:
            CheckpointError, ConfigError: there is none, it lacks these, or is of another model.
        """
        seek = getattr(self.data_provider, "seek", None)
        if self.data_provider is not None and not callable(seek):
            raise ConfigError(
                f"data_provider: {type(self.data_provider).__name__} has no seek(position), so "
                "that it would begin anew; give it one, or subclass PromptSource, which has"
            )
        self._progress = load_step(self._run, Path(path), self.namespace)
        self._prompts.count = self._progress.position.offset
        if callable(seek):
            seek(self._progress.position)
        return self.global_step
