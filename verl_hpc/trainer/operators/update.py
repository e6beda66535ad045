"""Optimizer steps of actor and critic over a batch's mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from verl_hpc.algorithms.aggregation import Aggregation
from verl_hpc.algorithms.kl import kl_penalty
from verl_hpc.algorithms.masked import masked_sum
from verl_hpc.algorithms.policy_loss import ppo_clip
from verl_hpc.algorithms.value_loss import clipped_value_loss
from verl_hpc.engines.protocol import TokenOutputs, TrainingEngine
from verl_hpc.trainer.batch import (
    ADVANTAGES,
    OLD_LOG_PROBS,
    REF_LOG_PROBS,
    RETURNS,
    TOKENS,
    VALUES,
    Columns,
    Samples,
    length_mask,
    pad_rows,
)
from verl_hpc.trainer.operators.infer import response_part
from verl_hpc.trainer.workers import Workers

Metrics = dict[str, float]


@dataclass(frozen=True)
class _MiniBatch:
    """This rank's part of one optimizer step."""

    samples: Samples
    rows: Sequence[int]
    """Indices into this rank's columns."""
    positions: Sequence[int]
    aggregation: Aggregation
    """With the normalisers of the whole mini-batch."""

    @property
    def num_tokens(self) -> int:
        return max(self.aggregation.num_tokens, 1)

    def responses(
        self, indices: Sequence[int], per_token: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of a micro-batch's response tokens as (B, T), and their mask."""
        chosen = [self.samples.samples[self.positions[i]] for i in indices]
        rows = [
            response_part(sample.prompt_length, output)
            for sample, output in zip(chosen, per_token, strict=True)
            if output is not None
        ]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = [sample.response_length for sample in chosen]
        return padded, length_mask(lengths, padded.shape[1], padded.device)

    def column(self, columns: Columns, name: str, indices: Sequence[int]) -> torch.Tensor:
        """A column of a micro-batch's samples as (B, T)."""
        return pad_rows([columns[name][self.rows[i]] for i in indices])


def update_actor(
    workers: Workers,
    samples: Samples,
    sequences: Columns,
    old: Columns,
    advantages: Columns,
    reference: Columns | None = None,
) -> Metrics:
    """PPO's clipped update; with `reference`, its KL is part of the loss.

    Raises:
        TrainingError: a loss or gradient is not finite.
    """
    algorithm = workers.config.algorithm

    def loss(
        batch: _MiniBatch, indices: Sequence[int], outputs: Sequence[TokenOutputs]
    ) -> tuple[torch.Tensor, Metrics]:
        log_probs, mask = batch.responses(indices, [o.log_probs for o in outputs])
        losses, sums = ppo_clip(
            batch.column(old, OLD_LOG_PROBS, indices),
            log_probs,
            batch.column(advantages, ADVANTAGES, indices),
            mask,
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            dual_clip=algorithm.dual_clip,
        )
        policy = batch.aggregation(losses, mask)
        metrics = {name: float(value) / batch.num_tokens for name, value in sums.items()}
        metrics["pg_loss"] = float(policy.detach())
        total = policy
        if algorithm.entropy_coefficient:
            entropy, _ = batch.responses(indices, [o.entropy for o in outputs])
            total = total - algorithm.entropy_coefficient * batch.aggregation(entropy, mask)
        if reference is not None:
            ref = batch.column(reference, REF_LOG_PROBS, indices)
            kl = batch.aggregation(kl_penalty(log_probs, ref, algorithm.kl.chosen_estimator), mask)
            total = total + algorithm.kl.coefficient * kl
            metrics["kl_loss"] = float(kl.detach())
        return total, metrics

    temperature = workers.config.rollout.temperature
    metrics = _optimise(workers, workers.actor, samples, sequences, loss, temperature)
    return {f"actor/{name}": value for name, value in metrics.items()}


def update_critic(
    workers: Workers,
    samples: Samples,
    sequences: Columns,
    values: Columns,
    advantages: Columns,
) -> Metrics:
    """Regress values on returns, clipped.

    Raises:
        TrainingError: a loss or gradient is not finite.
    """
    clip = workers.config.critic.value_clip

    def loss(
        batch: _MiniBatch, indices: Sequence[int], outputs: Sequence[TokenOutputs]
    ) -> tuple[torch.Tensor, Metrics]:
        predicted, mask = batch.responses(indices, [o.values for o in outputs])
        losses, sums = clipped_value_loss(
            predicted,
            batch.column(values, VALUES, indices),
            batch.column(advantages, RETURNS, indices),
            mask,
            clip,
        )
        value = batch.aggregation(losses, mask)
        metrics = {name: float(v) / batch.num_tokens for name, v in sums.items()}
        metrics["vf_loss"] = float(value.detach())
        metrics["vpred_mean"] = float(masked_sum(predicted.detach(), mask)) / batch.num_tokens
        return value, metrics

    assert workers.critic is not None
    metrics = _optimise(workers, workers.critic, samples, sequences, loss)
    metrics |= _explained_variance(workers, samples, values, advantages)
    return {f"critic/{name}": value for name, value in metrics.items()}


def imitate(workers: Workers, samples: Samples, sequences: Columns) -> Metrics:
    """Supervised fine-tuning: cross-entropy of the answers' tokens.

    Raises:
        TrainingError: a loss or gradient is not finite.
    """

    def loss(
        batch: _MiniBatch, indices: Sequence[int], outputs: Sequence[TokenOutputs]
    ) -> tuple[torch.Tensor, Metrics]:
        log_probs, mask = batch.responses(indices, [o.log_probs for o in outputs])
        return batch.aggregation(-log_probs, mask), {}

    if workers.sync is not None:  # an evaluation may have had the memory
        workers.sync.to_training()
    metrics = _optimise(workers, workers.actor, samples, sequences, loss)
    return {
        "sft/loss" if name == "loss" else f"actor/{name}": value for name, value in metrics.items()
    }


def _optimise(
    workers: Workers,
    engine: TrainingEngine,
    samples: Samples,
    sequences: Columns,
    loss: Callable[..., tuple[torch.Tensor, Metrics]],
    temperature: float = 1.0,
) -> Metrics:
    """One optimizer step per mini-batch and epoch; metrics are means over the steps, but for the
    number of those skipped."""
    found: list[Metrics] = []
    for _ in range(workers.config.batch.update_epochs):
        for members in samples.mini_batches:
            part = _mini_batch(workers, samples, sequences, members)
            tokens = [sequences[TOKENS][row] for row in part.rows]
            found.append(engine.update(tokens, partial(loss, part), temperature))
    return {
        name: sum(f[name] for f in found) / (1 if name == "num_skipped" else len(found))
        for name in found[0]
    }


def _mini_batch(
    workers: Workers, samples: Samples, sequences: Columns, members: Sequence[int]
) -> _MiniBatch:
    chosen = set(members)
    rows = [row for row, i in enumerate(sequences.positions) if i in chosen]
    lengths = [samples.samples[i].response_length for i in members]
    algorithm = workers.config.algorithm
    aggregation = Aggregation(
        algorithm.aggregation,
        num_tokens=sum(lengths),
        num_sequences=sum(n > 0 for n in lengths),
        scale=algorithm.loss_scale or workers.config.rollout.max_response_tokens,
    )
    positions = [sequences.positions[row] for row in rows]
    return _MiniBatch(samples, rows, positions, aggregation)


def _explained_variance(
    workers: Workers, samples: Samples, values: Columns, advantages: Columns
) -> Metrics:
    """1 - var(return - value) / var(return), over all response tokens."""
    count = max(samples.num_response_tokens, 1)
    sums = torch.zeros(4, dtype=torch.float64, device=workers.session.device)
    for value, target in zip(values[VALUES], advantages[RETURNS], strict=True):
        target, error = target.double(), (target - value).double()
        sums += torch.stack([error.sum(), (error**2).sum(), target.sum(), (target**2).sum()])
    error, error2, target, target2 = (workers.reduce(sums) / count).tolist()
    variance = target2 - target**2
    unexplained = error2 - error**2
    return {"vf_explained_var": 1 - unexplained / variance if variance > 0 else 0.0}
