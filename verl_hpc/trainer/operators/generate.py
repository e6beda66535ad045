"""Prompts to responses, each rollout engine its share."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import encode_prompt, fit_prompt
from verl_hpc.data.sources import Source, read_problems
from verl_hpc.errors import TrainingError
from verl_hpc.rollout.protocol import NOT_FINITE, Response, Sampling, never
from verl_hpc.runtime.stop import StepDropped
from verl_hpc.trainer.batch import ROLLOUT_LOG_PROBS, TOKENS, Columns, Prompts, Sample, Samples
from verl_hpc.trainer.deal import deal, share
from verl_hpc.trainer.kept import rollout_key
from verl_hpc.trainer.workers import ROLLOUT, Workers


@dataclass(frozen=True)
class _Encoded:
    """A prompt that is not dropped."""

    problem: Problem
    ids: Sequence[int]
    """Token ids."""


@dataclass(frozen=True)
class Generated:
    """What a rank's rollout engine made: its samples' problems and responses, by position."""

    samples: Samples
    problems: Mapping[int, Problem]
    prompts: Mapping[int, Sequence[int]]
    """Token ids."""
    responses: Mapping[int, Response]


def seed_of(run_seed: int, purpose: str, step: int, slot: int) -> int:
    """A seed for one response that depends on nothing but these, 62 bits."""
    digest = hashlib.blake2b(f"{run_seed}/{purpose}/{step}/{slot}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big") >> 2


def respond(
    workers: Workers,
    source: Source,
    prompts: Prompts,
    num_samples: int,
    sampling: Sampling,
    purpose: str,
    *,
    interruptible: bool = False,
) -> Generated:
    """Answer every prompt `num_samples` times; every rank calls it.

    Slot s answers prompt s // num_samples; engines take contiguous shares of the slots, so that
    the samples of a prompt mostly share an engine's prefix cache. A prompt that is too long is
    dropped, cut or an error, by rollout.overlong_prompt.

    Raises:
        DataError: on every rank, if one met a malformed or overlong row, or if no prompt is left.
        TrainingError: on every rank, if the model of one gives logits that are not finite.
        StepDropped: on every rank, if it is interruptible and one was told to leave at once.
    """
    num_slots = len(prompts.rows) * num_samples
    slots = share(num_slots, workers.group_index(ROLLOUT), workers.layouts.num_replicas)
    groups = {slot: slot // num_samples for slot in slots}
    control = workers.session.control
    found = control.together(lambda: _encode(workers, source, prompts, set(groups.values())))
    encoded = {slot: found[group] for slot, group in groups.items() if group in found}
    held = workers.kept if interruptible else None
    key = rollout_key(workers.config, prompts.step, prompts.rows)
    by_slot: dict[int, Response] = {} if held is None else held.take(key, encoded)
    missing = [s for s in encoded if s not in by_slot]
    responses = control.together(
        lambda: _responses(
            workers,
            [encoded[s].ids for s in missing],
            sampling,
            [seed_of(workers.config.seed, purpose, prompts.step, s) for s in missing],
            interruptible,
        )
    )
    by_slot |= {s: r for s, r in zip(missing, responses, strict=True) if r is not None}
    if held is not None:
        held.remember(key, by_slot)
    mine = [
        Sample(s, groups[s], len(encoded[s].ids), len(r.tokens), r.finish_reason == "length")
        for s, r in by_slot.items()
    ]
    data_set = "data.train" if source is workers.train_source else "data.evaluation"
    samples = _agree(workers, prompts.step, mine, None in responses, data_set)
    positions = samples.owned_by(ROLLOUT, workers.group_index(ROLLOUT))
    index = {i: samples.samples[i].index for i in positions}
    return Generated(
        samples,
        {i: encoded[slot].problem for i, slot in index.items()},
        {i: encoded[slot].ids for i, slot in index.items()},
        {i: by_slot[slot] for i, slot in index.items()},
    )


def generate(workers: Workers, prompts: Prompts) -> tuple[Samples, Generated, Columns]:
    """The rollout operator: samples (facts, shared), what was generated, and token columns."""
    config = workers.config.rollout
    generated = respond(
        workers,
        workers.train_source,
        prompts,
        config.num_samples,
        Sampling.from_config(config),
        "rollout",
        interruptible=True,
    )
    device = workers.session.device
    positions = sorted(generated.responses)
    tokens = [
        torch.tensor([*generated.prompts[i], *generated.responses[i].tokens], device=device)
        for i in positions
    ]
    log_probs = [torch.tensor(generated.responses[i].log_probs, device=device) for i in positions]
    columns = Columns(positions, {TOKENS: tokens, ROLLOUT_LOG_PROBS: log_probs})
    return generated.samples, generated, columns


def _encode(
    workers: Workers, source: Source, prompts: Prompts, groups: Collection[int]
) -> dict[int, _Encoded]:
    """The prompts of `groups`, but for those that are dropped."""
    config = workers.config
    wanted = sorted(groups)
    problems = read_problems(source, [prompts.rows[g] for g in wanted])
    found: dict[int, _Encoded] = {}
    for group, problem in zip(wanted, problems, strict=True):
        ids = encode_prompt(problem, workers.tokenizer, config.data.chat)
        limit, policy = config.rollout.max_prompt_tokens, config.rollout.overlong_prompt
        fitted = fit_prompt(ids, limit, policy, problem.where)
        if fitted is not None:
            found[group] = _Encoded(problem, fitted)
    return found


def _responses(
    workers: Workers,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    seeds: Sequence[int],
    interruptible: bool,
) -> list[Response | None]:
    """What this rank's engine answers; None for what it could not finish."""
    assert workers.rollout is not None
    interrupted = workers.told_to_leave if interruptible else never
    responses = workers.rollout.generate(prompts, sampling, seeds, interrupted)
    # Sums, in which anything that is not finite stays: there are as many log-probs as tokens.
    if not all(math.isfinite(sum(r.log_probs)) for r in responses if r is not None):
        raise TrainingError(NOT_FINITE)
    return responses


def _agree(
    workers: Workers, step: int, mine: Sequence[Sample], unfinished: bool, data_set: str
) -> Samples:
    """All engines' samples with their owners, the same on every rank.

    Raises:
        StepDropped: on every rank, if the engine of one has not finished all of its responses.
        DataError: on every rank, if there are none.
    """
    replica = workers.group_index(ROLLOUT)
    leads = workers.layouts.replicas[replica][0] == workers.rank
    owned = [(sample, replica) for sample in mine if leads]
    gathered = workers.session.control.allgather((unfinished, owned))
    if any(is_unfinished for is_unfinished, _ in gathered):
        raise StepDropped
    everyone = [item for _, part in gathered for item in part]
    everyone.sort(key=lambda item: item[0].index)
    owners = {ROLLOUT: [owner for _, owner in everyone]}
    return deal(workers, step, [sample for sample, _ in everyone], owners, data_set)
