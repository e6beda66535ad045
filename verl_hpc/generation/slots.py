"""The responses of a step that an engine is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder, fit_prompt
from verl_hpc.environments.processes import Environments
from verl_hpc.generation.kept import KeptResponses
from verl_hpc.generation.score import ScoreSettings
from verl_hpc.rollout.protocol import Sampling
from verl_hpc.step.batch import StepRows
from verl_hpc.step.operators.assign import share
from verl_hpc.step.placement import Placement
from verl_hpc.step.problems import StepProblems


@dataclass(frozen=True)
class GenerateSettings:
    """What is answered, and how."""

    problems: StepProblems
    encoder: Encoder
    limits: RolloutConfig
    """Lengths, and what is done with prompts that are too long."""
    sampling: Sampling
    num_samples: int
    """Responses per prompt."""
    seed: int
    """Of the run."""
    purpose: str = "rollout"
    """Part of every response's seed."""
    kept: KeptResponses | None = None
    """What an interrupted step had finished; None generates all."""
    key: str = ""
    """As `kept.rollout_key`."""
    interruptible: bool = True
    """Whether a preempted rank ends it."""
    ahead: bool = False
    """Whether they are made while another step trains, and a checkpoint has them."""
    tagged: bool = False
    """Whether tokens carry the version of their weights, and responses may be in flight."""
    repeatable: bool = False
    """Whether a response's seed is of its row and its number among the row's responses, and not of
    the step."""
    environments: Environments | None = None
    """Of `limits.environment`; None is one turn a response."""
    steals: bool = False
    """Whether engines take prompts from the rollout's queue; else each has its share of the slots.
    """
    routed_bytes: int = 0
    """Of the experts of a token (`Architecture.routed_bytes`) where they are kept; 0 keeps none."""
    scoring: ScoreSettings | None = None
    """Of those who score here, in processes of their own: responses are scored as they end."""

    def greedily(self, problems: StepProblems, purpose: str) -> GenerateSettings:
        """One greedy answer to each of other problems, to its end."""
        found = self.answering(problems, purpose, self.sampling.greedy, 1)
        return replace(found, ahead=self.ahead)

    def answering(
        self, problems: StepProblems, purpose: str, sampling: Sampling, num_samples: int
    ) -> GenerateSettings:
        """Answers to other problems, to their end, from the same seeds at every step."""
        return replace(
            self,
            problems=problems,
            sampling=sampling,
            num_samples=num_samples,
            purpose=purpose,
            kept=None,
            interruptible=False,
            ahead=False,
            tagged=False,
            repeatable=True,
            steals=False,
            routed_bytes=0,
            scoring=None,
        )


def seed_of(run_seed: int, purpose: str, which: int, number: int) -> int:
    """A seed for one response that depends on nothing but these, 62 bits.

    Args:
        which: the step, or the row.
        number: of the response in it.
    """
    digest = hashlib.blake2b(f"{run_seed}/{purpose}/{which}/{number}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big") >> 2


@dataclass(frozen=True)
class Slot:
    """A response that this rank's engine is to give."""

    step: int
    index: int
    """In its step."""
    group: int
    """Which prompt of its step it answers."""
    row: int
    """Of the data set."""
    problem: Problem
    """The row."""
    prompt: Sequence[int]
    """Token ids."""

    @property
    def key(self) -> tuple[int, int]:
        return self.step, self.index


def slots_of(place: Placement, settings: GenerateSettings, rows: StepRows) -> list[Slot]:
    """What this rank's engine is to answer, those of this step first; without what is dropped.

    Raises:
        DataError: a row is malformed or overlong.
    """
    found = []
    for part in (rows, *(rows.upcoming if settings.tagged else ())):
        num_slots = len(part.rows) * settings.num_samples
        mine = share(num_slots, place.index, len(place.groups))
        indices = range(num_slots) if settings.steals else mine
        groups = {index: index // settings.num_samples for index in indices}
        prompts = _encode(settings, part, set(groups.values()))
        found += [
            Slot(part.step, index, group, part.rows[group], *prompts[group])
            for index, group in groups.items()
            if group in prompts
        ]
    return found


def _encode(
    settings: GenerateSettings, rows: StepRows, groups: Collection[int]
) -> dict[int, tuple[Problem, Sequence[int]]]:
    """The prompts of `groups` with their token ids, but for those that are dropped."""
    wanted = sorted(groups)
    problems = settings.problems.read([rows.rows[g] for g in wanted])
    limit, policy = settings.limits.max_prompt_tokens, settings.limits.overlong_prompt
    found: dict[int, tuple[Problem, Sequence[int]]] = {}
    for group, problem in zip(wanted, problems, strict=True):
        ids = settings.encoder.prompt(problem)
        fitted = fit_prompt(ids, limit, policy, problem.where)
        if fitted is not None:
            found[group] = problem, fitted
    return found


def response_seed(settings: GenerateSettings, slot: Slot, length: int) -> int:
    """Of a response that begins, or continues behind so many tokens: with other random numbers."""
    purpose = f"{settings.purpose}+{length}" if length else settings.purpose
    if settings.repeatable:
        return seed_of(settings.seed, purpose, slot.row, slot.index % settings.num_samples)
    return seed_of(settings.seed, purpose, slot.step, slot.index)
