"""Prompts to responses, each rollout engine its share."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import encode_prompt, fit_prompt
from verl_hpc.data.sources import Source, read_problems
from verl_hpc.errors import DataError, TrainingError
from verl_hpc.planner.balance import attention_cost, balance
from verl_hpc.rollout.protocol import NOT_FINITE, Response, Sampling, never
from verl_hpc.runtime.stop import StepDropped
from verl_hpc.trainer.batch import ROLLOUT_LOG_PROBS, TOKENS, Columns, Sample, Samples
from verl_hpc.trainer.kept import rollout_key
from verl_hpc.trainer.workers import ROLLOUT, TRAIN, Workers


@dataclass(frozen=True)
class Prompts:
    """Which rows of the data set a step answers; the same on all ranks."""

    step: int
    rows: Sequence[int]


@dataclass(frozen=True)
class Generated:
    """What a rank's rollout engine made: its samples' problems and responses, by position."""

    samples: Samples
    problems: Mapping[int, Problem]
    prompts: Mapping[int, Sequence[int]]
    """Token ids."""
    responses: Mapping[int, Response]


def share(count: int, index: int, num_shares: int) -> range:
    """The `index`-th of `num_shares` contiguous, nearly equal parts of range(count)."""
    return range(count * index // num_shares, count * (index + 1) // num_shares)


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
        TrainingError: on a rank whose model gives logits that are not finite.
        StepDropped: on every rank, if it is interruptible and one was told to leave at once.
    """
    num_slots = len(prompts.rows) * num_samples
    slots = share(num_slots, workers.group_index(ROLLOUT), workers.layouts.num_replicas)
    encoded = workers.session.control.together(
        lambda: _encode(workers, source, prompts, [s // num_samples for s in slots])
    )
    kept = [s for s in slots if encoded[s // num_samples][1] is not None]
    assert workers.rollout is not None
    held = workers.kept if interruptible else None
    key = rollout_key(workers.config, prompts.step, prompts.rows)
    by_slot: dict[int, Response] = {} if held is None else held.take(key, kept)
    missing = [s for s in kept if s not in by_slot]
    responses = workers.rollout.generate(
        [encoded[s // num_samples][1] or [] for s in missing],
        sampling,
        [seed_of(workers.config.seed, purpose, prompts.step, s) for s in missing],
        workers.told_to_leave if interruptible else never,
    )
    # Sums, in which anything that is not finite stays: there are as many log-probs as tokens.
    if not all(math.isfinite(sum(r.log_probs)) for r in responses if r is not None):
        raise TrainingError(NOT_FINITE)
    by_slot |= {s: r for s, r in zip(missing, responses, strict=True) if r is not None}
    if held is not None:
        held.remember(key, by_slot)
    if workers.session.control.any(None in responses):
        raise StepDropped
    samples = _agree(workers, prompts, num_samples, encoded, by_slot)
    mine = samples.owned_by(ROLLOUT, workers.group_index(ROLLOUT))
    index = {i: samples.samples[i].index for i in mine}
    return Generated(
        samples,
        {i: encoded[slot // num_samples][0] for i, slot in index.items()},
        {i: encoded[slot // num_samples][1] or () for i, slot in index.items()},
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
    workers: Workers, source: Source, prompts: Prompts, groups: Sequence[int]
) -> dict[int, tuple[Problem, list[int] | None]]:
    """Problem and prompt ids (None if dropped) of each prompt in `groups`."""
    config = workers.config
    wanted = sorted(set(groups))
    problems = read_problems(source, [prompts.rows[g] for g in wanted])
    found: dict[int, tuple[Problem, list[int] | None]] = {}
    for group, problem in zip(wanted, problems, strict=True):
        ids = encode_prompt(problem, workers.tokenizer, config.data.chat)
        limit, policy = config.rollout.max_prompt_tokens, config.rollout.overlong_prompt
        found[group] = problem, fit_prompt(ids, limit, policy, problem.where)
    return found


def _agree(
    workers: Workers,
    prompts: Prompts,
    num_samples: int,
    encoded: Mapping[int, tuple[Problem, list[int] | None]],
    by_slot: Mapping[int, Response],
) -> Samples:
    """All ranks' samples with their owners, the same on every rank."""
    replica = workers.group_index(ROLLOUT)
    leads = workers.layouts.replicas[replica][0] == workers.rank
    mine = [
        (
            Sample(
                slot,
                slot // num_samples,
                len(encoded[slot // num_samples][1] or ()),
                len(response.tokens),
                response.finish_reason == "length",
            ),
            replica,
        )
        for slot, response in by_slot.items()
        if leads
    ]
    everyone = [item for part in workers.session.control.allgather(mine) for item in part]
    everyone.sort(key=lambda item: item[0].index)
    if not everyone:
        raise DataError(
            f"step {prompts.step}: every prompt was dropped for being longer than "
            f"rollout.max_prompt_tokens = {workers.config.rollout.max_prompt_tokens}"
        )
    samples = tuple(sample for sample, _ in everyone)
    batches = [
        list(share(len(samples), i, workers.config.batch.mini_batches))
        for i in range(workers.config.batch.mini_batches)
    ]
    owners = {
        ROLLOUT: [owner for _, owner in everyone],
        TRAIN: deal_to_replicas(
            [s.length for s in samples],
            batches,
            workers.layouts.train.dp,
            workers.arch.hidden_size,
        ),
    }
    return Samples(samples, owners, batches)


def deal_to_replicas(
    lengths: Sequence[int], mini_batches: Sequence[Sequence[int]], dp: int, hidden_size: int
) -> list[int]:
    """The data-parallel replica of each sample: within every mini-batch, equal work for all.

    Which samples an optimizer step sees does not depend on the layout; who computes them does.
    """
    owners = [0] * len(lengths)
    for batch in mini_batches:
        costs = [attention_cost(lengths[i], hidden_size) for i in batch]
        for replica, members in enumerate(balance(costs, dp)):
            for member in members:
                owners[batch[member]] = replica
    return owners
