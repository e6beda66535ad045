"""Dealing a step out: slots to rollout engines, samples to optimizer steps and training ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from verl_hpc.errors import DataError, agreed
from verl_hpc.planner.balance import attention_cost, balance
from verl_hpc.trainer.batch import Sample, Samples
from verl_hpc.trainer.workers import TRAIN, Workers


def share(count: int, index: int, num_shares: int) -> range:
    """The `index`-th of `num_shares` contiguous, nearly equal parts of range(count)."""
    return range(count * index // num_shares, count * (index + 1) // num_shares)


def deal(
    workers: Workers,
    step: int,
    samples: Sequence[Sample],
    owners: Mapping[str, Sequence[int]] | None = None,
    data_set: str = "data.train",
) -> Samples:
    """A step's samples in mini-batches, each of equal work for all data-parallel replicas.

    Which samples an optimizer step sees does not depend on the layout; who computes them does.

    Args:
        step: for the error.
        samples: all of them, the same on every rank.
        owners: under other placements than training.
        data_set: for the error, too.

    Raises:
        DataError: on every rank, if there are no samples.
    """
    config = workers.config
    if not samples:
        raise agreed(
            DataError(
                f"step {step}: every prompt of {data_set} was dropped for being longer than "
                f"rollout.max_prompt_tokens = {config.rollout.max_prompt_tokens}; raise it, or set "
                "rollout.overlong_prompt to truncate_left"
            )
        )
    count = config.batch.mini_batches
    mini_batches = [share(len(samples), i, count) for i in range(count)]
    replicas = [0] * len(samples)
    for batch in mini_batches:
        costs = [attention_cost(samples[i].length, workers.arch.hidden_size) for i in batch]
        for replica, members in enumerate(balance(costs, workers.layouts.train.dp)):
            for member in members:
                replicas[batch[member]] = replica
    return Samples(tuple(samples), {**(owners or {}), TRAIN: replicas}, mini_batches)
