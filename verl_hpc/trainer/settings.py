"""Operators' settings, made from a run's configuration."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TypeVar

from pydantic import ValidationError

from verl_hpc.algorithms.advantage import Advantage
from verl_hpc.algorithms.aggregation import Mode
from verl_hpc.algorithms.loss import PolicyLoss
from verl_hpc.algorithms.preference import PreferenceLoss
from verl_hpc.config.evaluation import ONLY_SET, EvaluationSetConfig
from verl_hpc.config.explain import explain
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError
from verl_hpc.generation.choose import correction_of, leaves_out_cut
from verl_hpc.generation.refill import RefillSettings
from verl_hpc.generation.score import ScoreSettings
from verl_hpc.generation.slots import EvaluationSet, GenerateSettings
from verl_hpc.placement.layouts import ROLLOUT, SCORING
from verl_hpc.rewards.scorer import make_scorer
from verl_hpc.rewards.user_code import load_class
from verl_hpc.rollout.protocol import Sampling
from verl_hpc.section import Section, is_own
from verl_hpc.step.operators.assign import AssignSettings
from verl_hpc.step.operators.examples import ExampleSettings
from verl_hpc.step.operators.infer import OldLogProbsSettings
from verl_hpc.step.operators.kl import KlSettings
from verl_hpc.step.operators.optimise import OptimiseSettings
from verl_hpc.step.operators.pairs import PairSettings
from verl_hpc.step.operators.smooth import SmoothSettings
from verl_hpc.step.operators.update import PolicySettings
from verl_hpc.step.problems import StepProblems, setting_of
from verl_hpc.trainer.run_parts import RunParts

S = TypeVar("S", bound=Section)


class Settings:
    """Settings that recipes pass to operators, which see nothing else of the configuration."""

    def __init__(self, run: RunParts) -> None:
        self._run, self._config = run, run.config

    @cached_property
    def problems(self) -> StepProblems:
        """Problems of the training data."""
        return StepProblems(self._run.problems.train)

    @cached_property
    def evaluation_problems(self) -> StepProblems:
        """Problems of data.evaluation."""
        return StepProblems(self._run.problems.evaluation[ONLY_SET])

    @cached_property
    def evaluation_sets(self) -> list[EvaluationSet]:
        """All evaluation sets.

        Raises:
            RewardError: see `make_scorer`; a set's own reward function cannot be used.
        """
        sets = self._config.evaluation_sets.items()
        return [self._evaluation_set(name, chosen) for name, chosen in sets]

    def _evaluation_set(self, name: str, chosen: EvaluationSetConfig) -> EvaluationSet:
        source, limits = self._run.problems.evaluation[name], self._config.rollout
        problems, own = StepProblems(source), chosen.reward
        sampling = replace(
            self._sampling.greedy,
            max_tokens=chosen.max_response_tokens or limits.max_response_tokens,
            temperature=chosen.chosen_temperature,
            top_p=chosen.top_p,
        )
        purpose = f"evaluation/{name}"
        scoring = replace(self.score, problems=problems)
        if own is not None:
            setting = f"evaluation.sets.{name}.reward"
            scoring = replace(scoring, scorer=make_scorer(own, setting))
        generate = self.generate.answering(problems, purpose, sampling, chosen.num_samples)
        return EvaluationSet(
            name,
            setting_of(self._config, name),
            min(chosen.max_prompts or len(source), len(source)),
            replace(generate, scoring=scoring),
            scoring,
        )

    @property
    def temperature(self) -> float:
        """Temperature of sampling, and of log-probs."""
        return self._config.rollout.temperature

    @property
    def _sampling(self) -> Sampling:
        """Sampling of training responses.

        Raises:
            ConfigError: rollout.stop_token_ids has a token outside the vocabulary.
        """
        rollout, end = self._config.rollout, self._run.encoder.turn_end
        unknown = [t for t in rollout.stop_token_ids if t >= self._run.arch.vocab_size]
        if unknown:
            raise ConfigError(
                f"rollout.stop_token_ids: {unknown[0]} is no token of the model, whose vocab_size "
                f"is {self._run.arch.vocab_size}; leave it out"
            )
        return Sampling.from_config(rollout, () if end is None else (end,))

    @property
    def generate(self) -> GenerateSettings:
        """How to answer the prompts of a step.

        Raises:
            ConfigError: with batch.spare_prompts, prompts cannot be divided among the engines.
        """
        config = self._config
        batch, engines = config.batch, len(self._run.places["rollout"].groups)
        if batch.spare_prompts and (batch.size % engines or batch.spare_prompts % engines):
            raise ConfigError(
                f"batch.size = {batch.size} and batch.spare_prompts = {batch.spare_prompts} with "
                f"{engines} engines, each of which takes its own part of both; choose multiples"
            )
        return GenerateSettings(
            self.problems,
            self._run.encoder,
            config,
            self._sampling,
            config.rollout.num_samples,
            ahead=config.rollout.staleness > 0,
            environments=self._run.environments,
            programs=self._run.programs,
            some_experts=self._run.arch.some_experts if config.replays_experts else b"",
            scoring=self.score if self._scores_ahead else None,
        )

    @property
    def _scores_ahead(self) -> bool:
        """Whether generating ranks score in separate processes, while they generate."""
        if self._run.ahead is None or not self._config.calls_reward:
            return False
        pools = self._run.layouts.pool_of
        return pools[SCORING] == pools[ROLLOUT]

    @property
    def refill(self) -> RefillSettings | None:
        """Settings of dynamic sampling; None without batch.refill_rounds."""
        rounds = self._config.batch.refill_rounds
        if not rounds:
            return None
        return RefillSettings(self.generate, self.score, self._run.order, rounds)

    @property
    def assign(self) -> AssignSettings:
        places = self._run.places.values()
        return AssignSettings(
            self._config,
            {p.name: len(p.groups) for p in places if p.name != "rollout"},
            max(
                [role.arch.hidden_size for role in self._run.roles.values()],
                default=self._run.arch.hidden_size,
            ),
            # Transformer Engine's layers share none.
            shares_prompts=self._run.session.world.device == "cpu",
            data_set=self._run.problems.setting,
        )

    @property
    def examples(self) -> ExampleSettings:
        return ExampleSettings(self.problems, self._run.encoder, self.assign)

    @property
    def pairs(self) -> ExampleSettings:
        """Settings of pairs: the chosen and the rejected answer of each row."""
        return replace(self.examples, per_row=2)

    @property
    def evaluation_pairs(self) -> ExampleSettings:
        """Settings of pairs of the evaluation data."""
        held_out = self.evaluation_problems
        assign = replace(self.assign, data_set="data.evaluation")
        return replace(self.pairs, problems=held_out, assign=assign)

    @property
    def score(self) -> ScoreSettings:
        run, config = self._run, self._config
        assert run.reward is not None
        inputs = run.reward, run.tokenizer, self.problems, run.ahead
        return ScoreSettings(*inputs, config.rollout.stop, config.name)

    @property
    def smooth(self) -> SmoothSettings | None:
        """Smoothing with averages stored as numbers of the run; None without reward.smoothing."""
        smoothing = self._config.reward.smoothing
        if smoothing is None:
            return None
        averages = {
            name: self._run.number(f"reward.smoothing.{name}", 0.0, "actor")
            for name in ("mean", "square", "weight")
        }
        return SmoothSettings(smoothing, averages)

    @property
    def old_log_probs(self) -> OldLogProbsSettings:
        return OldLogProbsSettings(self._config, "sum_p_squared" in self.advantage.needs)

    @cached_property
    def advantage(self) -> Advantage:
        """Advantage estimator, from the package or a user's file."""
        return self._loaded("advantage", Advantage)

    @cached_property
    def loss(self) -> PolicyLoss:
        """Policy loss, from the package or a user's file."""
        return self._loaded("loss", PolicyLoss)

    @cached_property
    def preference(self) -> PreferenceLoss:
        """Loss of pairs, from the package or a user's file."""
        return self._loaded("preference", PreferenceLoss)

    def _loaded(self, name: str, base: type[S]) -> S:
        """Return the setting `name` of section algorithm, or the class that it names by
        path/file.py:Name with the section's other settings.

        Raises:
            ConfigError: the file cannot be loaded, does not have such a kind of `base`, or the
                class does not accept the settings.
        """
        chosen: S = getattr(self._config.algorithm, name)
        given, setting = chosen.model_dump(), f"algorithm.{name}.name"
        if not is_own(given["name"]):
            return chosen
        limit = self._config.reward.import_timeout_s
        own_class = load_class(given["name"], base, limit, setting, ConfigError)
        try:
            return own_class.model_validate(given)
        except ValidationError as error:
            text = explain(error, own_class)
            raise ConfigError(f"{setting} = {given['name']}:\n{text}") from None

    @property
    def pair_loss(self) -> PairSettings:
        return PairSettings(self.preference, self.steps(1.0))

    @property
    def choose(self) -> RunConfig | None:
        """Choice of tokens; None if all sampled tokens are trained on with equal weight."""
        config = self._config
        drops = config.algorithm.drop_equal_groups or leaves_out_cut(config)
        return config if drops or correction_of(config) else None

    @property
    def select(self) -> PolicySettings | None:
        """Selection of tokens by entropy or the loss; None if the loss treats all tokens
        equally."""
        selects = self._config.algorithm.top_entropy < 1 or self.loss.selects
        return self.policy if selects else None

    @property
    def shape(self) -> RunConfig | None:
        """Penalty on long responses; None without one."""
        overlong = self._config.algorithm.overlong
        return self._config if overlong is not None and overlong.buffer else None

    @property
    def kl(self) -> KlSettings:
        return KlSettings(self._config.algorithm.kl.chosen_estimator, self._run.kl)

    def steps(self, temperature: float, aggregation: Mode = "token-mean") -> OptimiseSettings:
        """Return the settings of optimizer steps; `aggregation` is the default if none is
        configured."""
        config = self._config
        chosen = config.algorithm.aggregation or aggregation
        return OptimiseSettings(config, config.batch.update_epochs, chosen, temperature)

    @property
    def policy(self) -> PolicySettings:
        steps = self.steps(self.temperature, self.loss.aggregation)
        return PolicySettings(self.loss, steps)

    @property
    def prm(self) -> OptimiseSettings:
        """Process reward model, with one pass over a batch as in verl's recipe/prime."""
        return replace(self.steps(1.0), update_epochs=1)

    @property
    def value(self) -> OptimiseSettings:
        return self.steps(1.0)
