"""Assign samples to groups of ranks, under every placement."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise

from verl_hpc.config.run import RunConfig
from verl_hpc.data.order import permute
from verl_hpc.errors import DataError
from verl_hpc.placement.balance import attention_cost, balance
from verl_hpc.step.batch import Sample, Samples, StepRows
from verl_hpc.step.metrics import spread
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.placement import Placement

_logger = logging.getLogger(__name__)

DROPPED = "prompt_length/num_dropped"
"""Prompts of a step that were dropped for being too long."""


@dataclass(frozen=True)
class AssignSettings:
    """How samples are assigned to groups of ranks and mini-batches."""

    config: RunConfig
    num_groups: Mapping[str, int]
    """Number of groups of ranks to assign samples to, by placement."""
    hidden_size: int
    """Hidden size of the largest model, which sets the relative cost of attention."""
    shares_prompts: bool = False
    """Whether an engine computes a common prefix of neighbours once, so that keeping samples of a
    prompt together saves work."""
    data_set: str = "data.train"
    """Name of the data set in errors."""


def share(count: int, index: int, num_shares: int) -> range:
    """Return the `index`-th of `num_shares` contiguous, nearly equal parts of range(count)."""
    return range(count * index // num_shares, count * (index + 1) // num_shares)


@operator("samples", shared=("samples",))
def assign(
    place: Placement, settings: AssignSettings, rows: StepRows, responses: Samples
) -> tuple[Samples, Metrics]:
    """Split the step's samples into mini-batches of equal work for all groups of every placement.

    The samples of an optimizer step do not depend on the layout, only the ranks that compute them
    do.

    Raises:
        DataError: on every rank, if there are no samples.
    """
    samples, longest = responses.samples, settings.config.rollout.max_prompt_tokens
    num_prompts = len(rows.rows) - settings.config.batch.spare_prompts
    dropped = count_dropped(
        place, longest, samples, num_prompts, f"step {rows.step}", settings.data_set
    )
    assigned = assign_groups(settings, samples, responses.owners, step=rows.step)
    return assigned, length_metrics(samples, longest) | {DROPPED: float(dropped)}


def assign_groups(
    settings: AssignSettings,
    samples: Sequence[Sample],
    owners: Mapping[str, Sequence[int]] | None = None,
    together: int = 1,
    step: int = 0,
) -> Samples:
    """Add the owners of all samples under the placements of `settings`, and the mini-batches of
    each update epoch.

    Groups of ranks have equal work in the mini-batches of the first epoch; in reshuffled later
    epochs it is equal on average.

    Args:
        settings: how samples are assigned.
        samples: all samples; those of a prompt are neighbours.
        owners: owners that are known already, by placement.
        together: number of neighbours that share owner and mini-batch.
        step: part of the seed of a shuffle.
    """
    batch = settings.config.batch
    # Units of samples, as positions, that stay in one mini-batch.
    units: list[Sequence[int]] = [range(i, i + together) for i in range(0, len(samples), together)]
    if batch.shuffle_mini_batches == "groups":
        by_group = groupby(range(len(samples)), key=lambda i: samples[i].group)
        units = [list(members) for _, members in by_group]
    epochs = range(batch.update_epochs if batch.shuffle_mini_batches != "none" else 1)
    mini_batches, *later = [_deal(settings.config, units, step, epoch) for epoch in epochs]
    all_owners = dict(owners or {})
    known = {1: [0] * len(samples)}
    for place, count in settings.num_groups.items():
        if count not in known:
            known[count] = _groups(settings, samples, mini_batches, count, together)
        all_owners[place] = known[count]
    return Samples(tuple(samples), all_owners, mini_batches, later)


def _deal(
    config: RunConfig, units: Sequence[Sequence[int]], step: int, epoch: int
) -> list[list[int]]:
    """Return the positions of each mini-batch's samples in an epoch, ascending."""
    order = list(range(len(units)))
    if config.batch.shuffle_mini_batches != "none":
        permute(order, f"{config.seed}/mini_batches/{step}/{epoch}")
    batches, count = [], config.batch.mini_batches
    for index in range(count):
        chosen = [units[order[i]] for i in share(len(units), index, count)]
        batches.append(sorted(chain.from_iterable(chosen)))
    return batches


def _groups(
    settings: AssignSettings,
    samples: Sequence[Sample],
    mini_batches: Sequence[Sequence[int]],
    count: int,
    together: int,
) -> list[int]:
    groups = [0] * len(samples)
    for batch in filter(None, mini_batches):
        units: list[Sequence[int]] = [range(i, i + together) for i in batch[::together]]
        # Whole prompts on one rank save shared prefixes but balance worse: take the better deal.
        deal = _balanced(settings, samples, units, count)
        if settings.shares_prompts and together == 1:
            by_prompt = groupby(batch, key=lambda i: samples[i].group)
            whole = _balanced(settings, samples, [list(of_one) for _, of_one in by_prompt], count)
            deal = min(deal, whole, key=lambda d: max(_work(settings, samples, part) for part in d))
        for group, members in enumerate(deal):
            for member in members:
                groups[member] = group
    return groups


def _balanced(
    settings: AssignSettings, samples: Sequence[Sample], units: Sequence[Sequence[int]], count: int
) -> list[list[int]]:
    """Split units into parts of nearly equal work; return each part's positions, ascending."""
    parts = balance([_work(settings, samples, unit) for unit in units], count)
    return [[i for unit in part for i in units[unit]] for part in parts]


def _work(settings: AssignSettings, samples: Sequence[Sample], positions: Sequence[int]) -> float:
    """Return an engine's work for these samples, in tokens of its linear layers."""
    work = sum(attention_cost(samples[i].length, settings.hidden_size) for i in positions)
    if settings.shares_prompts:
        for before, i in pairwise(positions):
            if samples[before].group == samples[i].group:
                work -= samples[i].prompt_length
    return work


def count_dropped(
    place: Placement,
    max_prompt_tokens: int,
    samples: Sequence[Sample],
    num_prompts: int,
    when: str,
    data_set: str,
) -> int:
    """Count the prompts without a sample, which were dropped for being too long, and log them.

    Args:
        place: placement of the ranks that call it.
        max_prompt_tokens: the limit.
        samples: samples of the other prompts.
        num_prompts: number of all prompts.
        when: step or evaluation, for messages.
        data_set: key of the data, for messages.

    Raises:
        DataError: on every rank, if there are no samples.
    """
    if not samples:
        raise place.alike(
            DataError(
                f"{when}: every prompt of {data_set} was dropped for being longer than "
                f"rollout.max_prompt_tokens = {max_prompt_tokens}; raise it, or set "
                "rollout.overlong_prompt to truncate_left"
            )
        )
    dropped = num_prompts - len({sample.group for sample in samples})
    if dropped and place.leads:
        text = "%s: %s of %s prompts dropped, longer than rollout.max_prompt_tokens = %s"
        _logger.warning(text, when, dropped, num_prompts, max_prompt_tokens)
    return dropped


def length_metrics(samples: Sequence[Sample], max_prompt_tokens: int) -> dict[str, float]:
    """Return metrics of prompt and response lengths, and the step's tokens. As in verl, the
    clip_ratio of prompts is the share of prompts at the length limit."""
    metrics = spread("response_length", [s.response_length for s in samples])
    metrics |= spread("prompt_length", [s.prompt_length for s in samples])
    metrics["response_length/clip_ratio"] = sum(s.truncated for s in samples) / len(samples)
    full = sum(s.prompt_length >= max_prompt_tokens for s in samples)
    metrics["prompt_length/clip_ratio"] = full / len(samples)
    metrics["perf/total_num_tokens"] = float(sum(s.length for s in samples))
    return metrics
