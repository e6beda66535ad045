"""The responses of a step that an engine has to generate."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from verl_hpc.config.run import RunConfig
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder, fit_prompt
from verl_hpc.environments.processes import Environments
from verl_hpc.generation.score import ScoreSettings
from verl_hpc.hf.pictures import ImagePrompt, packed
from verl_hpc.rollout.protocol import Sampling
from verl_hpc.step.batch import StepRows
from verl_hpc.step.operators.assign import share
from verl_hpc.step.placement import Placement
from verl_hpc.step.problems import StepProblems

if TYPE_CHECKING:
    from verl_hpc.generation.programs import ProgramHost


@dataclass(frozen=True)
class GenerateSettings:
    """Problems to answer, and how to sample responses."""

    problems: StepProblems
    encoder: Encoder
    config: RunConfig
    sampling: Sampling
    num_samples: int
    """Responses per prompt."""
    purpose: str = "rollout"
    """Part of every response's seed."""
    trains: bool = True
    """Whether responses are trained on. If not, preemption of a rank does not end the generation,
    and a response's seed depends on its row and its number within it, instead of the step."""
    ahead: bool = False
    """Whether responses are generated while another step trains; checkpoints then hold them."""
    environments: Environments | None = None
    """Environments of rollout.environment; None for single-turn responses."""
    programs: ProgramHost | None = None
    """What runs the programs of rollout.program."""
    some_experts: bytes = b""
    """Experts of a token that the engine has not read (`Architecture.some_experts`); none records
    no experts."""
    scoring: ScoreSettings | None = None
    """Settings to score responses in separate processes as they finish; None scores after
    generation."""

    @property
    def tagged(self) -> bool:
        """Whether to record the weights' version of each token; responses may then be in flight."""
        return self.trains and self.ahead

    @property
    def steals(self) -> bool:
        """Whether engines take prompts from the rollout's queue; else each has a fixed share of the
        slots."""
        return self.trains and self.config.rollout.balance == "stealing"

    def greedily(self, problems: StepProblems, purpose: str) -> GenerateSettings:
        """Return settings for one greedy answer to each of other problems, not interruptible."""
        settings = self.answering(problems, purpose, self.sampling.greedy, 1)
        return replace(settings, ahead=self.ahead)

    def answering(
        self, problems: StepProblems, purpose: str, sampling: Sampling, num_samples: int
    ) -> GenerateSettings:
        """Return settings for answers to other problems, not interruptible, with the same seeds at
        every step."""
        return replace(
            self,
            problems=problems,
            sampling=sampling,
            num_samples=num_samples,
            purpose=purpose,
            trains=False,
            ahead=False,
            some_experts=b"",
            scoring=None,
        )


@dataclass(frozen=True)
class EvaluationSet:
    """One set of held-out problems, with how to generate and score answers to them."""

    name: str
    setting: str
    """Settings key of its problems, for errors."""
    num_prompts: int
    """Number of rows to answer, from the first."""
    generate: GenerateSettings
    score: ScoreSettings


def seed_of(run_seed: int, purpose: str, which: int, number: int) -> int:
    """Return a 62-bit seed for one response that depends only on the arguments.

    Args:
        which: number of the step, or of the row.
        number: index of the response in it.
    """
    digest = hashlib.blake2b(f"{run_seed}/{purpose}/{which}/{number}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big") >> 2


SlotKey = tuple[int, int]
"""(step, index in it) of a slot."""


@dataclass(frozen=True)
class Slot:
    """A response that this rank's engine has to generate."""

    step: int
    index: int
    """Index in its step."""
    group: int
    """Index of its prompt within the step."""
    row: int
    """Row of the data set."""
    problem: Problem
    """The row's problem."""
    prompt: Sequence[int]
    """Token ids."""
    images: ImagePrompt | None = None
    """Images of the prompt."""

    @property
    def image_bytes(self) -> bytes:
        """Its images as they travel (`hf.pictures.packed`)."""
        return b"" if self.images is None else packed(self.images)

    @property
    def key(self) -> SlotKey:
        return self.step, self.index


def slots_of(place: Placement, settings: GenerateSettings, rows: StepRows) -> list[Slot]:
    """Return this engine's slots, those of this step first, without dropped prompts.

    Raises:
        DataError: a row is malformed or overlong.
    """
    slots = []
    for part in (rows, *(rows.upcoming if settings.tagged else ())):
        num_slots = len(part.rows) * settings.num_samples
        mine = share(num_slots, place.index, len(place.groups))
        indices = range(num_slots) if settings.steals else mine
        groups = {index: index // settings.num_samples for index in indices}
        prompts = _encode(settings, part, set(groups.values()))
        slots += [
            Slot(part.step, index, group, part.rows[group], *prompts[group])
            for index, group in groups.items()
            if group in prompts
        ]
    return slots


def _encode(
    settings: GenerateSettings, rows: StepRows, groups: Collection[int]
) -> dict[int, tuple[Problem, Sequence[int], ImagePrompt | None]]:
    """Encode the prompts of `groups`, without dropped ones."""
    wanted = sorted(groups)
    problems = settings.problems.read([rows.rows[g] for g in wanted])
    limits = settings.config.rollout
    limit, policy = limits.max_prompt_tokens, limits.overlong_prompt
    encoded: dict[int, tuple[Problem, Sequence[int], ImagePrompt | None]] = {}
    for group, problem in zip(wanted, problems, strict=True):
        ids = settings.encoder.prompt(problem)
        fitted = fit_prompt(ids, limit, policy, problem.where, bool(problem.images))
        if fitted is not None:
            encoded[group] = problem, fitted, settings.encoder.image_prompt(problem, fitted)
    return encoded


def response_seed(settings: GenerateSettings, slot: Slot, length: int) -> int:
    """Return the seed of a response that starts (length 0), or continues after `length` tokens with
    other random numbers."""
    purpose = f"{settings.purpose}+{length}" if length else settings.purpose
    if settings.trains:
        return seed_of(settings.config.seed, purpose, slot.step, slot.index)
    return seed_of(settings.config.seed, purpose, slot.row, slot.index % settings.num_samples)
