"""Which of a step's tokens are trained on, and with which weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from verl_hpc.algorithms.correction import CorrectionConfig, correct
from verl_hpc.algorithms.loss import PolicyLoss, StepTokens
from verl_hpc.algorithms.overlong import OverlongConfig, overlong_penalties
from verl_hpc.algorithms.selection import at_least_kth_largest
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
    StepRows,
    cut_rows,
    padded,
)
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.placement import Placement
from verl_hpc.step.scores import Scores


@dataclass(frozen=True)
class ChooseSettings:
    """What is left out."""

    correction: CorrectionConfig | None
    drops_cut: bool
    """Responses that were cut at their longest."""
    drops_equal_groups: bool
    """Prompts whose responses all have one score."""


@operator("trained")
def choose_tokens(
    place: Placement,
    settings: ChooseSettings,
    samples: Samples,
    sequences: Columns,
    old: Columns | None = None,
    scores: Scores | None = None,
) -> tuple[Columns, Metrics]:
    """The mask of tokens that are trained on, for all losses and advantages, and the weights of
    algorithm.correction."""
    left_out, metrics = _left_out(settings, samples, scores)
    masks = [
        torch.zeros_like(mask) if position in left_out else mask
        for position, mask in zip(sequences.positions, sequences[MASK], strict=True)
    ]
    found = {MASK: masks}
    if settings.correction is not None:
        assert old is not None
        corrected = correct(
            settings.correction,
            padded(sequences[ROLLOUT_LOG_PROBS], place.device),
            padded(old[OLD_LOG_PROBS], place.device),
            padded(masks, place.device),
            place.reduce,
        )
        lengths = [len(mask) for mask in masks]
        kept = cut_rows(corrected.mask, lengths)
        found[MASK] = [row.to(torch.uint8) for row in kept]
        found[WEIGHTS] = cut_rows(corrected.weights, lengths)
        metrics |= {f"actor/{name}": value for name, value in corrected.metrics.items()}
    return Columns(sequences.positions, found), metrics


def _left_out(
    settings: ChooseSettings, samples: Samples, scores: Scores | None
) -> tuple[set[int], dict[str, float]]:
    """Positions of samples that are not trained on, and how many of which kind there are."""
    found: set[int] = set()
    metrics = {}
    if settings.drops_equal_groups:
        assert scores is not None
        differ = tells_apart(samples, scores)
        found |= {i for i, sample in enumerate(samples) if not differ[sample.group]}
        metrics["batch/equal_groups"] = sum(not d for d in differ.values()) / len(differ)
    if settings.drops_cut:
        found |= {i for i, sample in enumerate(samples) if sample.truncated}
    metrics["batch/samples_left_out"] = len(found) / len(samples)
    return found, metrics


@dataclass(frozen=True)
class SelectSettings:
    """What the policy's loss is of."""

    loss: PolicyLoss
    top_entropy: float
    """Share of tokens, those of the highest entropy."""
    seed: int
    """Of the run."""


@operator("selected")
def select_tokens(
    place: Placement,
    settings: SelectSettings,
    rows: StepRows,
    samples: Samples,
    sequences: Columns,
    old: Columns,
    advantages: Columns,
    trained: Columns | None = None,
) -> tuple[Columns, Metrics]:
    """The mask of the policy's loss, and the tokens that it treats otherwise."""
    masks = (trained or sequences)[MASK]
    mask = padded(masks, place.device)
    metrics = {}
    if settings.top_entropy < 1:
        num_tokens = float(place.reduce(mask.double().sum()))
        count = max(int(settings.top_entropy * num_tokens), 1)
        entropy = padded(old[ENTROPY], place.device).double()
        mask = at_least_kth_largest(entropy, mask.bool(), count, place.reduce).to(mask)
        metrics["actor/top_entropy_tokens"] = float(place.reduce(mask.double().sum()))
    lengths = [len(row) for row in masks]
    found = {MASK: [row.to(torch.uint8) for row in cut_rows(mask, lengths)]}
    if settings.loss.selects:
        step = StepTokens(
            padded(old[OLD_LOG_PROBS], place.device),
            padded(advantages[ADVANTAGES], place.device),
            mask,
            padded(_random(settings.seed, rows.step, samples, sequences), place.device).double(),
            place.reduce,
        )
        chosen = settings.loss.select(step)
        found[SELECTED] = [row.to(torch.uint8) for row in cut_rows(chosen, lengths)]
    return Columns(sequences.positions, found), metrics


def _random(seed: int, step: int, samples: Samples, sequences: Columns) -> list[torch.Tensor]:
    """Numbers that depend on the sample and the token alone."""
    found = []
    for position, mask in zip(sequences.positions, sequences[MASK], strict=True):
        generator = torch.Generator()
        generator.manual_seed(seed_of(seed, "tokens", step, samples.samples[position].index))
        found.append(torch.rand(len(mask), generator=generator, dtype=torch.float64))
    return found


@dataclass(frozen=True)
class ShapeSettings:
    """A penalty on long responses."""

    overlong: OverlongConfig
    longest: int
    """rollout.max_response_tokens."""


@operator("shaped", shared=("shaped",))
def shape_scores(
    place: Placement, settings: ShapeSettings, samples: Samples, scores: Scores
) -> tuple[Scores, Metrics]:
    """Scores with the penalty of algorithm.overlong."""
    lengths: Sequence[int] = [sample.response_length for sample in samples]
    overlong = settings.overlong
    penalties = overlong_penalties(lengths, settings.longest, overlong.buffer, overlong.factor)
    shaped = [score + p for score, p in zip(scores.values, penalties, strict=True)]
    return replace(scores, values=shaped), {
        "reward/overlong_penalty": sum(penalties) / len(penalties)
    }
