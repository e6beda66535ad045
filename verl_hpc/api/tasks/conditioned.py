"""Reward-conditioned learning: ask for the best, and learn what each reward looks like.

A step asks for the highest reward in the prompt, scores the responses, and learns their likelihood
given the reward that each one got, as Quark does (arXiv 2205.13636, equation 2) and the decision
transformer (arXiv 2106.01345) with returns as numbers:

    loss = mean over tokens of  -log p(token | reward it got, prompt)  +  beta KL

KL is the house's estimate on the sampled tokens of that from the reference, which reads the prompt
without a reward. Quark computes it over the whole vocabulary and the other way round, and learns
from a pool of all responses so far; here a step learns from its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from verl_hpc.algorithms.kl import kl_penalty
from verl_hpc.api.prompts import PromptText
from verl_hpc.api.tasks.settings import ConditionConfig
from verl_hpc.config.algorithm import KlConfig
from verl_hpc.data.problem import Problem, Source
from verl_hpc.data.prompts import Encoder
from verl_hpc.engines.protocol import Sums
from verl_hpc.generation.score import score
from verl_hpc.step.batch import REF_LOG_PROBS, TOKENS, Columns, Samples, Scores, StepRows
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.operators.infer import ref_log_probs
from verl_hpc.step.operators.optimise import MiniBatch, OptimiseSettings, optimise
from verl_hpc.step.placement import Placement
from verl_hpc.step.problems import StepProblems
from verl_hpc.step.role import Role
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.recipes.rl import add_responses


class Condition:
    """Writes rewards into prompts.

    With levels, a reward's is its place among the newest rewards: those are sorted into as many
    parts of equal size (Quark's quantiles, arXiv 2205.13636, section 2.1). Equal rewards have the
    same level, that of their middle place; the best one's is always the highest.

    Args:
        config: settings of the task.
        tokenizer: tokenizer of the actor.
    """

    def __init__(self, config: ConditionConfig, tokenizer: Any) -> None:
        self._config, self._tokenizer = config, tokenizer
        self._window: deque[float] = deque(maxlen=config.window)

    @property
    def asked(self) -> str:
        """The text that a rollout's prompts begin with."""
        if self._config.levels is not None:
            return self._text(str(self._config.levels))
        assert self._config.target is not None
        return self._text(self._number(self._config.target))

    def earned(self, rewards: Sequence[float]) -> list[str]:
        """Return the texts that the prompts of responses with these rewards begin with. The
        rewards join the window first."""
        if self._config.levels is None:
            return [self._text(self._number(reward)) for reward in rewards]
        self._window.extend(rewards)
        return [self._text(str(self._level(reward))) for reward in rewards]

    def _level(self, reward: float) -> int:
        levels, known = self._config.levels, self._window
        assert levels is not None
        if reward >= max(known):
            return levels
        below = sum(value < reward for value in known)
        equal = sum(value == reward for value in known)
        return min(int(levels * (below + equal / 2) / len(known)), levels - 1) + 1

    def _number(self, reward: float) -> str:
        return f"{reward:.{self._config.digits}f}"

    def _text(self, reward: str) -> str:
        return self._config.text.replace("{reward}", reward)

    def prompt(self, problem: Problem, text: str = "") -> PromptText:
        """Return a problem's prompt with a text before it."""
        return prompt_of(problem, self._tokenizer, text)

    def state(self) -> dict[str, float]:
        """The newest rewards, by their place."""
        return {f"{place:04d}": value for place, value in enumerate(self._window)}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Go on from what `state` gave."""
        self._window.clear()
        self._window.extend(state[name] for name in sorted(state))


def prompt_of(problem: Problem, tokenizer: Any, text: str = "") -> PromptText:
    """Return a problem's prompt in tokens, with a text before it (in a chat, before the last
    message).

    Raises:
        DataError: see `Encoder.prompt`.
    """
    prompt = problem.prompt
    if isinstance(prompt, str):
        whole: Any = text + prompt
    else:
        *others, last = prompt
        whole = [*others, {**last, "content": text + last.get("content", "")}]
    ids = Encoder(tokenizer).prompt(replace(problem, prompt=whole))
    return PromptText.of(tokenizer.decode(ids, skip_special_tokens=True), ids)


@dataclass(frozen=True)
class RelabelSettings:
    """How prompts are written for the update."""

    condition: Condition
    problems: StepProblems
    """The problems of a step as the data has them."""


@dataclass(frozen=True)
class LikelihoodSettings:
    """The loss, and the steps on it."""

    kl: KlConfig
    steps: OptimiseSettings


@operator(
    "earned_samples", "earned", "plain_samples", "plain", shared=("earned_samples", "plain_samples")
)
def relabel(
    place: Placement,  # noqa: ARG001 (every operator is given one)
    settings: RelabelSettings,
    rows: StepRows,
    samples: Samples,
    sequences: Columns,
    scores: Scores,
) -> tuple[tuple[Samples, Columns, Samples, Columns], Metrics]:
    """The responses behind prompts with the reward that each one got, and behind plain ones."""
    condition = settings.condition
    texts = condition.earned(scores.values)
    problems = settings.problems.read([rows.rows[sample.group] for sample in samples])
    earned = [
        condition.prompt(problem, text).ids for problem, text in zip(problems, texts, strict=True)
    ]
    plain = [condition.prompt(problem).ids for problem in problems]
    got_best = sum(text == condition.asked for text in texts) / len(texts)
    values = (*_behind(samples, sequences, earned), *_behind(samples, sequences, plain))
    return values, {"condition/as_asked": got_best}


def _behind(
    samples: Samples, sequences: Columns, prompts: Sequence[Sequence[int]]
) -> tuple[Samples, Columns]:
    """The responses behind other prompts."""
    responses = sequences.responses(samples)
    tokens = [
        torch.cat([torch.tensor(prompts[i], dtype=row.dtype, device=row.device), row])
        for i, row in zip(sequences.positions, responses, strict=True)
    ]
    changed = tuple(
        replace(sample, prompt_length=len(prompt))
        for sample, prompt in zip(samples, prompts, strict=True)
    )
    columns = Columns(sequences.positions, {**sequences.values, TOKENS: tokens}, sequences.widths)
    return replace(samples, samples=changed), columns


@operator(changes_state=True)
def update_conditioned(
    place: Placement,
    actor: Role,
    settings: LikelihoodSettings,
    samples: Samples,
    sequences: Columns,
    reference: Columns | None = None,
) -> tuple[tuple[()], Metrics]:
    """Steps on the likelihood of responses given their rewards, and the KL to the reference.

    Raises:
        TrainingError: a loss or gradient is not finite.
    """
    kl = settings.kl

    def loss(batch: MiniBatch) -> tuple[torch.Tensor, Sums]:
        log_probs, mask = batch.responses("log_probs")
        total = batch.aggregation(-log_probs, mask)
        metrics = {"nll": total.detach()}
        if reference is not None:
            ref = batch.column(reference, REF_LOG_PROBS)
            distance = kl_penalty(log_probs, ref, kl.chosen_estimator)
            penalty = batch.aggregation(distance, mask)
            total = total + kl.coefficient * penalty
            metrics["kl_loss"] = penalty.detach()
        return total, metrics

    metrics = optimise(place, actor, settings.steps, samples, sequences, loss)
    return (), {f"{actor.name}/{name}": value for name, value in metrics.items()}


def conditioned(run: RunContext, condition: Condition, plain: Source) -> Recipe:
    """The flow of one step.

    Args:
        run: whose data has prompts that ask for the best.
        plain: the same rows with the prompts that rewards are given for.
    """
    problems = StepProblems(plain)
    recipe, kl = Recipe("reward_conditioned", run), run.config.algorithm.kl
    add_responses(recipe, run)
    scoring = replace(run.settings.score, problems=problems)
    recipe.operator(score, settings=scoring, place="scoring", name="reward")
    relabelling = RelabelSettings(condition, problems)
    recipe.operator(relabel, settings=relabelling, place="actor")
    if kl.placement != "none":
        recipe.operator(
            ref_log_probs,
            roles=["reference"],
            settings=run.settings.temperature,
            inputs={"samples": "plain_samples", "sequences": "plain"},
        )
    recipe.operator(
        update_conditioned,
        roles=["actor"],
        settings=LikelihoodSettings(kl, run.settings.steps(run.settings.temperature)),
        inputs={"samples": "earned_samples", "sequences": "earned"},
    )
    return recipe
