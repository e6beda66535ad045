"""Select the tokens of a step to train on, and their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from verl_hpc.algorithms.correction import CorrectionConfig, correct
from verl_hpc.algorithms.loss import StepTokens
from verl_hpc.algorithms.overlong import overlong_penalties
from verl_hpc.algorithms.selection import at_least_kth_largest
from verl_hpc.config.run import RunConfig
from verl_hpc.generation.score import tells_apart
from verl_hpc.generation.slots import seed_of
from verl_hpc.step.batch import (
    ADVANTAGES,
    ENTROPY,
    MASK,
    OLD_LOG_PROBS,
    ROLLOUT_LOG_PROBS,
    SELECTED,
    WEIGHTS,
    Columns,
    Samples,
    Scores,
    StepRows,
    cut_rows,
    padded,
)
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.operators.update import PolicySettings
from verl_hpc.step.placement import Placement


def correction_of(config: RunConfig) -> CorrectionConfig | None:
    """Return algorithm.correction, or its defaults if rollout.verify.on_mismatch needs one."""
    corrects = config.rollout.verify.on_mismatch == "correct"
    return config.algorithm.correction or (CorrectionConfig() if corrects else None)


def leaves_out_cut(config: RunConfig) -> bool:
    """Whether responses cut at the length limit are left out."""
    overlong = config.algorithm.overlong
    return overlong is not None and overlong.leave_out


@operator("trained")
def choose_tokens(
    place: Placement,
    config: RunConfig,
    samples: Samples,
    sequences: Columns,
    old: Columns | None = None,
    scores: Scores | None = None,
) -> tuple[Columns, Metrics]:
    """Compute the mask of tokens to train on, for all losses and advantages, and the weights of
    algorithm.correction."""
    left_out, metrics = _left_out(config, samples, scores)
    correction = correction_of(config)
    masks = [
        torch.zeros_like(mask) if position in left_out else mask
        for position, mask in zip(sequences.positions, sequences[MASK], strict=True)
    ]
    columns = {MASK: masks}
    if correction is not None:
        assert old is not None
        corrected = correct(
            correction,
            padded(sequences[ROLLOUT_LOG_PROBS], place.device),
            padded(old[OLD_LOG_PROBS], place.device),
            padded(masks, place.device),
            place.reduce,
        )
        lengths = [len(mask) for mask in masks]
        kept = cut_rows(corrected.mask, lengths)
        columns[MASK] = [row.to(torch.uint8) for row in kept]
        columns[WEIGHTS] = cut_rows(corrected.weights, lengths)
        metrics |= {f"actor/{name}": value for name, value in corrected.metrics.items()}
    return Columns(sequences.positions, columns), metrics


def _left_out(
    config: RunConfig, samples: Samples, scores: Scores | None
) -> tuple[set[int], dict[str, float]]:
    """Return the positions of excluded samples, and metrics of how many are excluded."""
    excluded: set[int] = set()
    metrics = {}
    if config.algorithm.drop_equal_groups:
        assert scores is not None
        differ = tells_apart(samples, scores)
        excluded |= {i for i, sample in enumerate(samples) if not differ[sample.group]}
        metrics["batch/equal_groups"] = sum(not d for d in differ.values()) / len(differ)
    if leaves_out_cut(config):
        excluded |= {i for i, sample in enumerate(samples) if sample.truncated}
    metrics["batch/samples_left_out"] = len(excluded) / len(samples)
    return excluded, metrics


@operator("selected")
def select_tokens(
    place: Placement,
    settings: PolicySettings,
    rows: StepRows,
    samples: Samples,
    sequences: Columns,
    old: Columns,
    advantages: Columns,
    trained: Columns | None = None,
) -> tuple[Columns, Metrics]:
    """Compute the mask of the policy's loss, and the tokens that the loss itself selects."""
    masks = (trained or sequences)[MASK]
    mask = padded(masks, place.device)
    metrics, top = {}, settings.steps.config.algorithm.top_entropy
    if top < 1:
        num_tokens = float(place.reduce(mask.double().sum()))
        count = max(int(top * num_tokens), 1)
        entropy = padded(old[ENTROPY], place.device).double()
        mask = at_least_kth_largest(entropy, mask.bool(), count, place.reduce).to(mask)
        metrics["actor/top_entropy_tokens"] = float(place.reduce(mask.double().sum()))
    lengths = [len(row) for row in masks]
    columns = {MASK: [row.to(torch.uint8) for row in cut_rows(mask, lengths)]}
    if settings.loss.selects:
        drawn = _random(settings.steps.config.seed, rows.step, samples, sequences)
        step = StepTokens(
            padded(old[OLD_LOG_PROBS], place.device),
            padded(advantages[ADVANTAGES], place.device),
            mask,
            padded(drawn, place.device).double(),
            place.reduce,
        )
        chosen = settings.loss.select(step)
        columns[SELECTED] = [row.to(torch.uint8) for row in cut_rows(chosen, lengths)]
    return Columns(sequences.positions, columns), metrics


def _random(seed: int, step: int, samples: Samples, sequences: Columns) -> list[torch.Tensor]:
    """Return uniform random numbers that depend only on sample and token."""
    numbers = []
    for position, mask in zip(sequences.positions, sequences[MASK], strict=True):
        generator = torch.Generator()
        generator.manual_seed(seed_of(seed, "tokens", step, samples.samples[position].index))
        numbers.append(torch.rand(len(mask), generator=generator, dtype=torch.float64))
    return numbers


@operator("shaped", shared=("shaped",))
def shape_scores(
    place: Placement, config: RunConfig, samples: Samples, scores: Scores
) -> tuple[Scores, Metrics]:
    """Add the penalty of algorithm.overlong to the scores."""
    lengths: Sequence[int] = [sample.response_length for sample in samples]
    overlong, longest = config.algorithm.overlong, config.rollout.max_response_tokens
    assert overlong is not None
    penalties = overlong_penalties(lengths, longest, overlong.buffer, overlong.factor)
    shaped = [score + p for score, p in zip(scores.values, penalties, strict=True)]
    return replace(scores, values=shaped), {
        "reward/overlong_penalty": sum(penalties) / len(penalties)
    }
