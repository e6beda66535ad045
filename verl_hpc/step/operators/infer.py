"""Forward passes over a batch: log-probs, values of tokens, scores of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from verl_hpc.config.run import RunConfig
from verl_hpc.engines.protocol import OutputOptions, TokenOutputs
from verl_hpc.step.batch import (
    ENTROPY,
    EXPERTS,
    IMAGES,
    OLD_LOG_PROBS,
    REF_LOG_PROBS,
    ROLLOUT_LOG_PROBS,
    SUM_P_SQUARED,
    TOKENS,
    VALUES,
    Columns,
    Samples,
    Scores,
)
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.operators.mismatch import check, compare
from verl_hpc.step.placement import Placement
from verl_hpc.step.role import Role

_SCORED: Any = np.dtype([("position", "<i4"), ("score", "<f8")])


@dataclass(frozen=True)
class OldLogProbsSettings:
    """How to obtain the log-probs in the denominator of the policy ratio."""

    config: RunConfig
    sum_p_squared: bool = False
    """Also return the sums of squared probabilities."""


def response_parts(
    samples: Samples, positions: Sequence[int], outputs: Sequence[TokenOutputs], output: str
) -> list[torch.Tensor]:
    """Return the response tokens' part of an output, (L - 1, ...) of a sample, in which element i
    belongs to token i + 1.

    Args:
        positions: positions of the samples.
        outputs: outputs of each of them.
        output: a field of `TokenOutputs`, which must be present.
    """
    parts = []
    for position, of_sample in zip(positions, outputs, strict=True):
        per_token = getattr(of_sample, output)
        assert per_token is not None, f"the engine has no {output}"
        parts.append(per_token[samples.samples[position].prompt_length - 1 :])
    return parts


def sequence_parts(
    samples: Samples, columns: Columns, of_responses: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Invert `response_parts`: pad (T, ...) to (L - 1, ...) with zeros before the response."""
    parts = []
    for position, part in zip(columns.positions, of_responses, strict=True):
        before = samples.samples[position].prompt_length - 1
        parts.append(torch.cat([part.new_zeros(before, *part.shape[1:]), part]))
    return parts


@operator("old")
def old_log_probs(
    place: Placement,
    actor: Role,
    settings: OldLogProbsSettings,
    samples: Samples,
    sequences: Columns,
) -> tuple[Columns, Metrics]:
    """Compute the log-probs in the denominator of the policy ratio, and compare the rollout
    engine's with them.

    They are the trainer's own (or, by algorithm.old_log_probs, the rollout engine's), of the whole
    distribution at the sampling temperature. Under sampling filters the rollout engine reports
    log-probs at temperature 1, which are compared with the trainer's at temperature 1. The trainer
    routes tokens to the rollout's experts if the rollout recorded them.

    Raises:
        TrainingError: on every rank, if they differ by more than
            rollout.verify.probe_tolerance on average and rollout.verify.on_mismatch is stop.
    """
    config = settings.config
    wanted = OutputOptions(
        untempered=bool(config.rollout.filters),
        sum_p_squared=settings.sum_p_squared,
        experts=sequences.values.get(EXPERTS),
        images=sequences.values.get(IMAGES),
    )
    outputs = actor.engine.infer(sequences[TOKENS], config.rollout.temperature, wanted)
    metrics = probe(place, config, samples, sequences, outputs)
    log_probs = sequences[ROLLOUT_LOG_PROBS]
    if config.algorithm.old_log_probs != "rollout":
        log_probs = response_parts(samples, sequences.positions, outputs, "log_probs")
    columns = {OLD_LOG_PROBS: log_probs}
    if config.algorithm.top_entropy < 1:
        columns[ENTROPY] = response_parts(samples, sequences.positions, outputs, "entropy")
    if settings.sum_p_squared:
        columns[SUM_P_SQUARED] = response_parts(
            samples, sequences.positions, outputs, "sum_p_squared"
        )
    return Columns(sequences.positions, columns), metrics


def probe(
    place: Placement,
    config: RunConfig,
    samples: Samples,
    sequences: Columns,
    outputs: Sequence[TokenOutputs],
) -> Metrics:
    """Compare the rollout engine's log-probs with the policy's; return the differences and the
    policy's entropy.

    Raises:
        TrainingError: see `old_log_probs`.
    """
    # Under filters tokens come from another distribution than the policy's.
    like_rollout = "untempered" if config.rollout.filters else "log_probs"
    metrics = compare(
        place,
        sequences,
        response_parts(samples, sequences.positions, outputs, like_rollout),
        response_parts(samples, sequences.positions, outputs, "entropy"),
    )
    check(place, config, metrics)
    return metrics


@operator("reference")
def ref_log_probs(
    place: Placement, reference: Role, temperature: float, samples: Samples, sequences: Columns
) -> tuple[Columns, Metrics]:
    """Compute log-probs under the reference policy."""
    return log_probs_of(reference, temperature, samples, sequences, REF_LOG_PROBS), {}


def log_probs_of(
    role: Role, temperature: float, samples: Samples, sequences: Columns, column: str
) -> Columns:
    """Compute log-probs of the response tokens under a role's policy, as a column."""
    wanted = OutputOptions(images=sequences.values.get(IMAGES))
    outputs = role.engine.infer(sequences[TOKENS], temperature, wanted)
    log_probs = response_parts(samples, sequences.positions, outputs, "log_probs")
    return Columns(sequences.positions, {column: log_probs})


@operator("values")
def values(
    place: Placement, critic: Role, samples: Samples, sequences: Columns
) -> tuple[Columns, Metrics]:
    """Compute values of the state before each response token."""
    wanted = OutputOptions(images=sequences.values.get(IMAGES))
    outputs = critic.engine.infer(sequences[TOKENS], wanted=wanted)
    rows = response_parts(samples, sequences.positions, outputs, "values")
    return Columns(sequences.positions, {VALUES: rows}), {}


@operator("scores", shared=("scores",))
def model_scores(
    place: Placement, reward: Role, samples: Samples, sequences: Columns
) -> tuple[Scores, Metrics]:
    """Score sequences with a model's score head: its output at the last token of each."""
    scores = Scores(scores_of(place, reward, sequences, len(samples)))
    return scores, scores.metrics


def _without_padding(tokens: torch.Tensor, pad_token: int | None) -> torch.Tensor:
    """Cut a sequence after the token that transformers' classifiers score: the last that is not
    pad_token, so a final end-of-sequence is skipped if it is also the pad_token."""
    if pad_token is None:
        return tokens
    kept = torch.nonzero(tokens != pad_token)
    return tokens[: int(kept[-1]) + 1] if len(kept) else tokens


def scores_of(place: Placement, role: Role, sequences: Columns, count: int) -> list[float]:
    """Return the scores of all samples by position, equal on every rank of the placement."""
    rows = [_without_padding(tokens, role.pad_token) for tokens in sequences[TOKENS]]
    wanted = OutputOptions(images=sequences.values.get(IMAGES))
    outputs: Sequence[TokenOutputs] = role.engine.infer(rows, wanted=wanted)
    mine = [float(o.scores) for o in outputs if o.scores is not None]
    rows = np.array(list(zip(sequences.positions, mine, strict=True)), _SCORED)
    gathered, _ = place.gather_of_groups(rows)
    assert len(gathered) == count
    return gathered["score"][np.argsort(gathered["position"])].tolist()
