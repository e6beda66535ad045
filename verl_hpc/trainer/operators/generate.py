"""Prompts to responses, each rollout engine its share."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Chat, encode_prompt, fit_prompt, is_chat
from verl_hpc.environments.processes import Environments
from verl_hpc.errors import TrainingError
from verl_hpc.rollout.protocol import NOT_FINITE, Response, Sampling, never
from verl_hpc.runtime.stop import StepDropped
from verl_hpc.trainer.answers import Answer
from verl_hpc.trainer.batch import (
    MASK,
    ROLLOUT_LOG_PROBS,
    TOKENS,
    VERSIONS,
    Columns,
    Sample,
    Samples,
    StepRows,
)
from verl_hpc.trainer.conversation import Asked, Conversations
from verl_hpc.trainer.failures import some_reasons
from verl_hpc.trainer.kept import KeptResponses, step_key
from verl_hpc.trainer.operators.assign import share
from verl_hpc.trainer.operators.score import ScoreSettings, is_mine
from verl_hpc.trainer.placement import Placement
from verl_hpc.trainer.problems import StepProblems
from verl_hpc.trainer.prompt_queue import Supply
from verl_hpc.trainer.recipe import Metrics, operator
from verl_hpc.trainer.role import Rollout, Tagged
from verl_hpc.trainer.sample_rows import sample_rows, samples_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_logger = logging.getLogger(__name__)

TURNS_MEAN, TURNS_MAX = "rollout/turns/mean", "rollout/turns/max"
STEPS_FAILED = "rollout/environment/num_failed"


@dataclass(frozen=True)
class GenerateSettings:
    """What is answered, and how."""

    problems: StepProblems
    tokenizer: PreTrainedTokenizerBase
    chat: Chat
    """data.chat."""
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
    scoring: ScoreSettings | None = None
    """Of those who score here, in processes of their own: responses are scored as they end."""

    def greedily(self, problems: StepProblems, purpose: str) -> GenerateSettings:
        """One greedy answer to each of other problems, to its end."""
        return self.answering(problems, purpose, Sampling.greedy(self.limits), 1)

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
            tagged=False,
            repeatable=True,
            steals=False,
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
class _Asked:
    """A response that this rank's engine is to give."""

    step: int
    slot: int
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
        return self.step, self.slot


@operator("responses", "sequences", shared=("responses",))
def generate(
    place: Placement, rollout: Rollout, settings: GenerateSettings, rows: StepRows
) -> tuple[tuple[Samples, Columns], Metrics]:
    """Answer every prompt `num_samples` times.

    Slot s answers prompt s // num_samples; engines take contiguous shares of the slots, so that
    the samples of a prompt mostly share an engine's prefix cache; or they take prompts from a queue
    (`settings.steals`). A prompt that is too long is dropped, cut or an error, by
    rollout.overlong_prompt. Responses to prompts of upcoming steps are
    begun beside those of this one, and stay in flight when these are finished; they continue in the
    next call, under the weights that the engine has then.

    Returns:
        All samples with the engines that have them, and this engine's tokens, mask and log-probs.

    Raises:
        DataError: on every rank, if one met a malformed or overlong row.
        TrainingError: on every rank, if the model of one gives logits that are not finite.
        StepDropped: on every rank, if it is interruptible and one was asked to leave at once.
    """
    asked = place.together(lambda: _asked(place, settings, rows))
    supply = _supply(place, rollout, settings, rows, asked) if settings.steals else None
    key = step_key(settings.key, rows.step, rows.rows)
    known = dict(rollout.in_flight) if settings.tagged else _kept(settings, key, asked)
    missing = [a for a in asked if a.key not in known or not known[a.key].is_finished]
    begin = _scoring(place, settings, rows.step, missing)
    found, failures = place.together(
        lambda: _responses(rollout, settings, rows.step, missing, known, begin, supply)
    )
    known |= {a.key: response for a, response in zip(missing, found, strict=True) if response}
    if settings.kept is not None:
        finished = {slot: tagged.response for (_, slot), tagged in known.items()}
        settings.kept.remember(key, finished)
    if settings.tagged:
        rollout.in_flight = {key: known[key] for key in known if key[0] > rows.step}
    current = [a for a in asked if a.step == rows.step]
    if supply is not None:
        current = [a for a in current if a.group in supply.taken]
    complete = [a for a in current if a.key in known and known[a.key].is_finished]
    mine = [_sample(a, known[a.key].response) for a in complete]
    ended_early = supply is not None and not supply.is_empty
    samples = _agree(place, mine, ended_early or len(complete) < len(current))
    if supply is not None and rollout.queue is not None:
        rollout.queue.learn(rows, samples)
    by_slot = {a.slot: (a.prompt, known[a.key]) for a in complete}
    columns = _columns(place, settings, samples, by_slot)
    metrics = _lag(place, rows.step, columns) if settings.tagged else {}
    if settings.environments is not None:
        metrics |= _of_turns(place, columns, failures)
    return (samples, columns), metrics


def _asked(place: Placement, settings: GenerateSettings, rows: StepRows) -> list[_Asked]:
    """What this rank's engine is to answer, those of this step first; without what is dropped."""
    found = []
    for part in (rows, *(rows.upcoming if settings.tagged else ())):
        num_slots = len(part.rows) * settings.num_samples
        slots = share(num_slots, place.index, len(place.groups))
        if settings.steals:
            slots = range(num_slots)
        groups = {slot: slot // settings.num_samples for slot in slots}
        prompts = _encode(settings, part, set(groups.values()))
        found += [
            _Asked(part.step, slot, group, part.rows[group], *prompts[group])
            for slot, group in groups.items()
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
        ids = encode_prompt(problem, settings.tokenizer, settings.chat)
        fitted = fit_prompt(ids, limit, policy, problem.where)
        if fitted is not None:
            found[group] = problem, fitted
    return found


def _kept(
    settings: GenerateSettings, key: str, asked: Sequence[_Asked]
) -> dict[tuple[int, int], Tagged]:
    """What an interrupted step had finished."""
    if settings.kept is None:
        return {}
    by_slot = settings.kept.take(key, [a.slot for a in asked])
    return {a.key: Tagged(by_slot[a.slot], ()) for a in asked if a.slot in by_slot}


def _responses(
    rollout: Rollout,
    settings: GenerateSettings,
    step: int,
    asked: Sequence[_Asked],
    known: Mapping[tuple[int, int], Tagged],
    on_finished: Callable[[int, Response], None] | None,
    supply: Supply | None,
) -> tuple[list[Tagged | None], Sequence[str]]:
    """What this rank's engine answers, None for what it could not finish, and does not keep; and
    why steps of environments failed."""
    begun = [known.get(a.key) for a in asked]
    options: dict[str, Any] = {}
    if settings.tagged:
        needed = {index for index, a in enumerate(asked) if a.step == step}
        options = {
            "prefixes": [None if b is None or not b.response.tokens else b.response for b in begun],
            "keep_unfinished": True,
            "until": needed.issubset,
        }
    lengths = [len(b.response.tokens) if b is not None else 0 for b in begun]
    with _conversations(rollout, settings, asked) as turns:
        responses = rollout.here.generate(
            [a.prompt for a in asked],
            settings.sampling,
            [_seed(settings, a, length) for a, length in zip(asked, lengths, strict=True)],
            rollout.preempted if settings.interruptible else never,
            turns=turns,
            on_finished=on_finished,
            more=_in_slots(supply, asked) if supply is not None else None,
            **options,
        )
    failures, cut = (turns.failures, turns.cut) if turns is not None else ((), ())
    # Sums, in which anything that is not finite stays: there are as many log-probs as tokens.
    if not all(math.isfinite(sum(r.log_probs)) for r in responses if r is not None):
        raise TrainingError(NOT_FINITE)
    for i in cut:
        response = responses[i]
        assert response is not None, "a conversation that was cut has ended"
        responses[i] = replace(response, finish_reason="length")
    tagged = [
        None if r is None else _tagged(r, b, rollout.version)
        for r, b in zip(responses, begun, strict=True)
    ]
    return tagged, failures


def _supply(
    place: Placement,
    rollout: Rollout,
    settings: GenerateSettings,
    rows: StepRows,
    asked: Sequence[_Asked],
) -> Supply:
    """What this rank's engine takes from the queue, all samples of a prompt together: they share
    its prefix cache."""
    assert rollout.queue is not None
    at_a_time = place.control.merge(rollout.here.at_a_time, min)
    prompts = {a.group: a.prompt for a in asked}
    num_prompts = math.ceil(at_a_time / settings.num_samples)
    return rollout.queue.deal(place, prompts, rows, num_prompts)


def _in_slots(supply: Supply, asked: Sequence[_Asked]) -> Callable[[], list[int]]:
    """`Supply.more` by the places in `asked` of what answers these groups."""
    places: dict[int, list[int]] = {}
    for i, a in enumerate(asked):
        places.setdefault(a.group, []).append(i)
    return lambda: [i for group in supply.more() for i in places[group]]


def _scoring(
    place: Placement, settings: GenerateSettings, step: int, asked: Sequence[_Asked]
) -> Callable[[int, Response], None] | None:
    """What has a response scored that ends; None where all are, when all have ended. Those of
    several turns are whole when all have."""
    scoring = settings.scoring
    if scoring is None or scoring.ahead is None or settings.environments is not None:
        return None
    scoring.ahead.forget_before(step)

    def begin(index: int, response: Response) -> None:
        a = asked[index]
        if is_mine(place, a.slot):
            truncated = response.finish_reason == "length"
            answer = Answer(a.problem, response.tokens, response.sampled, truncated)
            scoring.begin(answer, a.step)

    return begin


def _conversations(
    rollout: Rollout, settings: GenerateSettings, asked: Sequence[_Asked]
) -> AbstractContextManager[Conversations | None]:
    """What happens between turns of this engine's responses, if there are several."""
    environment = settings.limits.environment
    if settings.environments is None or environment is None:
        return nullcontext()
    return closing(
        Conversations(
            environment,
            settings.environments,
            [Asked(a.problem, is_chat(a.problem, settings.chat)) for a in asked],
            settings.tokenizer,
            lambda index, length: _seed(settings, asked[index], length),
            settings.sampling.max_tokens,
            rollout.replica_control,
        )
    )


def _seed(settings: GenerateSettings, asked: _Asked, length: int) -> int:
    """Of a response that begins, or continues behind so many tokens: with other random numbers."""
    purpose = f"{settings.purpose}+{length}" if length else settings.purpose
    if settings.repeatable:
        return seed_of(settings.seed, purpose, asked.row, asked.slot % settings.num_samples)
    return seed_of(settings.seed, purpose, asked.step, asked.slot)


def _tagged(response: Response, begun: Tagged | None, version: int) -> Tagged:
    before = begun.versions if begun is not None else ()
    return Tagged(response, before + (version,) * (len(response.tokens) - len(before)))


def _sample(asked: _Asked, response: Response) -> Sample:
    length, cut = len(response.tokens), response.finish_reason == "length"
    return Sample(asked.slot, asked.group, len(asked.prompt), length, cut)


def _agree(place: Placement, mine: Sequence[Sample], unfinished: bool) -> Samples:
    """All engines' samples with their owners, the same on every rank.

    Raises:
        StepDropped: on every rank, if the engine of one has not finished all of its responses.
    """
    if place.control.any(unfinished):
        raise StepDropped
    rows, owners = place.gather_of_groups(sample_rows(mine))
    order = np.argsort(rows["index"])
    return Samples(tuple(samples_of(rows[order])), {place.name: owners[order].tolist()})


def _columns(
    place: Placement,
    settings: GenerateSettings,
    samples: Samples,
    by_slot: Mapping[int, tuple[Sequence[int], Tagged]],
) -> Columns:
    """Tokens, mask and log-probs of this engine's samples."""
    positions = samples.owned_by(place.name, place.index)
    found = [by_slot[samples.samples[i].index] for i in positions]
    device = place.device

    def column(values: Iterable[Sequence[Any]], dtype: torch.dtype) -> list[torch.Tensor]:
        return [torch.tensor(row, dtype=dtype, device=device) for row in values]

    responses = [tagged.response for _, tagged in found]
    columns = {
        TOKENS: column(
            ((*prompt, *tagged.response.tokens) for prompt, tagged in found), torch.int64
        ),
        MASK: column((r.sampled for r in responses), torch.uint8),
        ROLLOUT_LOG_PROBS: column((r.log_probs for r in responses), torch.float32),
    }
    if settings.tagged:
        columns[VERSIONS] = column((tagged.versions for _, tagged in found), torch.int32)
    return Columns(positions, columns)


def _of_turns(place: Placement, columns: Columns, failures: Sequence[str]) -> dict[str, float]:
    """Turns of the model in a response, and steps of environments that failed."""
    counts = [_num_turns(mask) for mask in columns[MASK]]
    mine = (counts, len(failures), some_reasons(failures))
    gathered = place.allgather(mine if place.leads_group else ([], 0, []))
    turns = [count for counts, _, _ in gathered for count in counts]
    num_failed = sum(failed for _, failed, _ in gathered)
    if num_failed and place.leads:
        _logger.warning(
            "%s conversations ended because a step of their environment failed: %s",
            num_failed,
            "; ".join(some_reasons(r for _, _, part in gathered for r in part)),
        )
    return {
        TURNS_MEAN: sum(turns) / max(len(turns), 1),
        TURNS_MAX: float(max(turns, default=0)),
        STEPS_FAILED: float(num_failed),
    }


def _num_turns(mask: torch.Tensor) -> int:
    """Runs of ones: (T,)."""
    before = torch.cat([mask.new_zeros(1), mask[:-1]])
    return int(((mask == 1) & (before == 0)).sum())


def _lag(place: Placement, step: int, columns: Columns) -> dict[str, float]:
    """How many steps the weights of the tokens are behind those that train on them."""
    lags = [step - 1 - row for row in columns[VERSIONS]]
    sums = (sum(int(row.sum()) for row in lags), sum(len(row) for row in lags))
    largest = max([int(row.max()) for row in lags if len(row)], default=0)
    gathered = place.allgather((*sums, largest) if place.leads_group else (0, 0, 0))
    total, count, most = (
        sum(g[0] for g in gathered), sum(g[1] for g in gathered), max(g[2] for g in gathered)
    )  # fmt: skip
    return {"rollout/lag/mean": total / max(count, 1), "rollout/lag/max": float(most)}
