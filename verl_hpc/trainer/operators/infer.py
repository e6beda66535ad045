"""Forward passes over a batch: log-probs of the policy and the reference, and values."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from verl_hpc.config.run import RunConfig
from verl_hpc.engines.protocol import TokenOutputs
from verl_hpc.errors import TrainingError, agreed
from verl_hpc.trainer.batch import (
    OLD_LOG_PROBS,
    REF_LOG_PROBS,
    ROLLOUT_LOG_PROBS,
    TOKENS,
    VALUES,
    Columns,
    Samples,
)
from verl_hpc.trainer.workers import Workers

_logger = logging.getLogger(__name__)

_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1, "fp8": 0.3}


@dataclass(frozen=True)
class Mismatch:
    """How far the rollout engine's log-probs are from the trainer's, over all sampled tokens."""

    mean: float
    """Mean absolute difference of probabilities' logarithms."""
    max: float
    entropy: float
    """Mean entropy of the policy, a by-product of the same pass."""


def response_part(prompt_length: int, per_token: torch.Tensor) -> torch.Tensor:
    """Of (L - 1,) outputs, element i of token i + 1, those of the response's tokens."""
    return per_token[prompt_length - 1 :]


def old_log_probs(
    workers: Workers, samples: Samples, sequences: Columns
) -> tuple[Columns, Mismatch]:
    """Log-probs that the policy ratio starts from, and how far the rollout engine's are from them.

    They are the trainer's own (or, by algorithm.old_log_probs, the rollout engine's), of the whole
    distribution at the sampling temperature. Under sampling filters the engine reports log-probs at
    temperature 1, and is compared with the trainer's at temperature 1.

    Raises:
        TrainingError: on every rank, if they differ by more than
            rollout.verify.probe_tolerance on average and rollout.verify.on_mismatch is stop.
    """
    if workers.sync is not None:
        workers.sync.to_training()
    rollout = workers.config.rollout
    untempered = bool(rollout.filters)
    outputs = workers.actor.infer(sequences[TOKENS], rollout.temperature, untempered)
    prompt_lengths = _prompt_lengths(samples, sequences)
    log_probs = [
        response_part(p, o.log_probs)
        for p, o in zip(prompt_lengths, outputs, strict=True)
        if o.log_probs is not None
    ]
    like_rollout = [
        response_part(p, o.untempered)
        for p, o in zip(prompt_lengths, outputs, strict=True)
        if o.untempered is not None
    ]
    mismatch = _compare(
        workers, samples, sequences, like_rollout if untempered else log_probs, outputs
    )
    _check(workers, mismatch)
    if workers.config.algorithm.old_log_probs == "rollout":
        log_probs = sequences[ROLLOUT_LOG_PROBS]
    return Columns(sequences.positions, {OLD_LOG_PROBS: log_probs}), mismatch


def ref_log_probs(workers: Workers, samples: Samples, sequences: Columns) -> Columns:
    """Log-probs under the weights that the run started from."""
    assert workers.reference is not None
    with workers.reference.in_place():
        outputs = workers.actor.infer(sequences[TOKENS], workers.config.rollout.temperature)
    found = [
        response_part(p, o.log_probs)
        for p, o in zip(_prompt_lengths(samples, sequences), outputs, strict=True)
        if o.log_probs is not None
    ]
    return Columns(sequences.positions, {REF_LOG_PROBS: found})


def values(workers: Workers, samples: Samples, sequences: Columns) -> Columns:
    """Values of the state before each response token."""
    assert workers.critic is not None
    outputs = workers.critic.infer(sequences[TOKENS])
    found = [
        response_part(p, o.values)
        for p, o in zip(_prompt_lengths(samples, sequences), outputs, strict=True)
        if o.values is not None
    ]
    return Columns(sequences.positions, {VALUES: found})


def _prompt_lengths(samples: Samples, columns: Columns) -> list[int]:
    return [samples.samples[i].prompt_length for i in columns.positions]


def _compare(
    workers: Workers,
    samples: Samples,
    sequences: Columns,
    log_probs: Sequence[torch.Tensor],
    outputs: Sequence[TokenOutputs],
) -> Mismatch:
    differences = [
        (ours - theirs).abs().double()
        for ours, theirs in zip(log_probs, sequences[ROLLOUT_LOG_PROBS], strict=True)
    ]
    entropies = [
        response_part(p, o.entropy).double().sum()
        for p, o in zip(_prompt_lengths(samples, sequences), outputs, strict=True)
        if o.entropy is not None
    ]
    zero = torch.zeros((), dtype=torch.float64, device=workers.session.device)
    total, entropy = workers.reduce(
        torch.stack([sum((d.sum() for d in differences), zero), sum(entropies, zero)])
    ).tolist()
    largest = max([float(d.max()) for d in differences if len(d)] + [0.0])
    largest = max(workers.session.control.allgather(largest))
    count = max(samples.num_response_tokens, 1)
    return Mismatch(total / count, largest, entropy / count)


def _check(workers: Workers, mismatch: Mismatch) -> None:
    verify = workers.config.rollout.verify
    if not verify.probe:
        return
    tolerance = verify.probe_tolerance or default_tolerance(workers.config)
    if mismatch.mean <= tolerance:  # NaN is not
        return
    text = mismatch_text(mismatch, tolerance, verify.checksums)
    if verify.on_mismatch == "stop":
        raise agreed(TrainingError(f"{text}. Nothing was trained on these responses"))
    if workers.rank == 0:
        _logger.warning("%s", text)


def default_tolerance(config: RunConfig) -> float:
    """Largest mean difference that the coarser of the two engines' number formats explains."""
    if config.model.fp8 is not None:
        return _TOLERANCE["fp8"]
    coarse = "bfloat16" in (config.model.dtype, config.rollout.dtype)
    return _TOLERANCE["bfloat16" if coarse else "float32"]


def mismatch_text(mismatch: Mismatch, tolerance: float, checksums: bool) -> str:
    """What differs, what it can mean, and what to do."""
    reason = (
        "the weights that the rollout engine received are those that were sent, by their "
        "checksums, so the two engines compute differently (number formats, kernels, a setting "
        "that only one knows). Compare model.dtype with rollout.dtype, raise the tolerance, or set "
        "rollout.verify.on_mismatch: warn"
        if checksums
        else "rollout.verify.checksums is false, so that weights which did not arrive are not "
        "ruled out; set it to true first"
    )
    return (
        f"log-probs of the sampled tokens differ by {mismatch.mean:.3g} on average (largest "
        f"{mismatch.max:.3g}) between the rollout engine and the trainer, more than "
        f"rollout.verify.probe_tolerance = {tolerance:g}: {reason}"
    )
