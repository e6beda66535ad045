"""Forward passes over a batch: log-probs, values of tokens, scores of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from verl_hpc.engines.protocol import TokenOutputs, Wanted
from verl_hpc.step.batch import (
    ALLOWED,
    ENTROPY,
    EXPERTS,
    OLD_LOG_PROBS,
    REF_LOG_PROBS,
    ROLLOUT_LOG_PROBS,
    SUM_P_SQUARED,
    TOKENS,
    VALUES,
    Columns,
    Samples,
)
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.operators.mismatch import MismatchSettings, check, compare
from verl_hpc.step.placement import Placement
from verl_hpc.step.role import Role
from verl_hpc.step.scores import Scores

_SCORED: Any = np.dtype([("position", "<i4"), ("score", "<f8")])


@dataclass(frozen=True)
class OldLogProbsSettings:
    """Which log-probs the policy ratio starts from."""

    temperature: float
    """That responses are sampled at."""
    filtered: bool
    """Whether tokens are sampled from another distribution than the policy's
    (`RolloutConfig.filters`)."""
    from_rollout: bool
    """Take the rollout engine's."""
    mismatch: MismatchSettings
    keeps_entropy: bool = False
    """Give the entropy of each token, too."""
    sum_p_squared: bool = False
    """Give the sums of squared probabilities, too."""


def response_part(prompt_length: int, per_token: torch.Tensor) -> torch.Tensor:
    """Of (L - 1,) outputs, element i of token i + 1, those of the response's tokens."""
    return per_token[prompt_length - 1 :]


def response_parts(
    samples: Samples, columns: Columns, per_token: Sequence[torch.Tensor | None]
) -> list[torch.Tensor]:
    """The same for all samples of a rank, whose outputs there must be."""
    found = []
    for position, output in zip(columns.positions, per_token, strict=True):
        assert output is not None, "the engine has not this output"
        found.append(response_part(samples.samples[position].prompt_length, output))
    return found


def sequence_parts(
    samples: Samples, columns: Columns, of_responses: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The inverse of `response_parts`: (T, ...) as (L - 1, ...), zeros before the response."""
    found = []
    for position, part in zip(columns.positions, of_responses, strict=True):
        before = samples.samples[position].prompt_length - 1
        found.append(torch.cat([part.new_zeros(before, *part.shape[1:]), part]))
    return found


def allowed_tokens(samples: Samples, sequences: Columns) -> list[torch.Tensor] | None:
    """What `Wanted.allowed` is where a constraint has restricted the rollout."""
    of_responses = sequences.values.get(ALLOWED)
    return None if of_responses is None else sequence_parts(samples, sequences, of_responses)


@operator("old")
def old_log_probs(
    place: Placement,
    actor: Role,
    settings: OldLogProbsSettings,
    samples: Samples,
    sequences: Columns,
) -> tuple[Columns, Metrics]:
    """Log-probs that the policy ratio starts from, and how far the rollout engine's are from them.

    They are the trainer's own (or, by algorithm.old_log_probs, the rollout engine's), of the whole
    distribution at the sampling temperature. Under sampling filters the engine reports log-probs at
    temperature 1, and is compared with the trainer's at temperature 1. Experts that the rollout
    chose are the trainer's, too, where it gives them.

    Raises:
        TrainingError: on every rank, if they differ by more than
            rollout.verify.probe_tolerance on average and rollout.verify.on_mismatch is stop.
    """
    wanted = Wanted(
        untempered=settings.filtered,
        sum_p_squared=settings.sum_p_squared,
        experts=sequences.values.get(EXPERTS),
        allowed=allowed_tokens(samples, sequences),
    )
    outputs = actor.engine.infer(sequences[TOKENS], settings.temperature, wanted)
    metrics = probe(place, settings, samples, sequences, outputs)
    log_probs = sequences[ROLLOUT_LOG_PROBS]
    if not settings.from_rollout:
        log_probs = response_parts(samples, sequences, [o.log_probs for o in outputs])
    columns = {OLD_LOG_PROBS: log_probs}
    if settings.keeps_entropy:
        columns[ENTROPY] = response_parts(samples, sequences, [o.entropy for o in outputs])
    if settings.sum_p_squared:
        found = [o.sum_p_squared for o in outputs]
        columns[SUM_P_SQUARED] = response_parts(samples, sequences, found)
    return Columns(sequences.positions, columns), metrics


def probe(
    place: Placement,
    settings: OldLogProbsSettings,
    samples: Samples,
    sequences: Columns,
    outputs: Sequence[TokenOutputs],
) -> Metrics:
    """How far the rollout engine's log-probs are from the policy's outputs, and its entropy.

    Raises:
        TrainingError: as `old_log_probs`.
    """
    like_rollout = [o.untempered if settings.filtered else o.log_probs for o in outputs]
    mismatch = compare(
        place,
        sequences,
        response_parts(samples, sequences, like_rollout),
        response_parts(samples, sequences, [o.entropy for o in outputs]),
    )
    check(place, settings.mismatch, mismatch)
    return mismatch.metrics


@operator("reference")
def ref_log_probs(
    place: Placement, reference: Role, temperature: float, samples: Samples, sequences: Columns
) -> tuple[Columns, Metrics]:
    """Log-probs under the reference policy, restricted as the rollout was."""
    return log_probs_of(reference, temperature, samples, sequences, REF_LOG_PROBS), {}


def log_probs_of(
    role: Role, temperature: float, samples: Samples, sequences: Columns, column: str
) -> Columns:
    """Log-probs of the response tokens under a role's policy, as a column."""
    wanted = Wanted(allowed=allowed_tokens(samples, sequences))
    outputs = role.engine.infer(sequences[TOKENS], temperature, wanted)
    found = response_parts(samples, sequences, [o.log_probs for o in outputs])
    return Columns(sequences.positions, {column: found})


@operator("values")
def values(
    place: Placement, critic: Role, samples: Samples, sequences: Columns
) -> tuple[Columns, Metrics]:
    """Values of the state before each response token."""
    outputs = critic.engine.infer(sequences[TOKENS])
    found = response_parts(samples, sequences, [o.values for o in outputs])
    return Columns(sequences.positions, {VALUES: found}), {}


@operator("scores", shared=("scores",))
def model_scores(
    place: Placement, reward: Role, samples: Samples, sequences: Columns
) -> tuple[Scores, Metrics]:
    """Scores by a model with a score head: its output at the last token of each sequence."""
    scores = Scores(scores_of(place, reward, sequences, len(samples)))
    return scores, scores.metrics


def _without_padding(tokens: torch.Tensor, pad_token: int | None) -> torch.Tensor:
    """Up to the token that transformers' classifiers score, which for some is not the last: where
    an end of sequence is a pad_token, too, they pass it over."""
    if pad_token is None:
        return tokens
    kept = torch.nonzero(tokens != pad_token)
    return tokens[: int(kept[-1]) + 1] if len(kept) else tokens


def scores_of(place: Placement, role: Role, sequences: Columns, count: int) -> list[float]:
    """Scores of all samples by position, the same on every rank of the placement."""
    rows = [_without_padding(tokens, role.pad_token) for tokens in sequences[TOKENS]]
    outputs: Sequence[TokenOutputs] = role.engine.infer(rows)
    mine = [float(o.scores) for o in outputs if o.scores is not None]
    rows = np.array(list(zip(sequences.positions, mine, strict=True)), _SCORED)
    found, _ = place.gather_of_groups(rows)
    assert len(found) == count
    return found["score"][np.argsort(found["position"])].tolist()
