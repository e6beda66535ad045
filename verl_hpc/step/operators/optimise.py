"""The optimizer steps of a batch, one per mini-batch and epoch, for any loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from verl_hpc.algorithms.aggregation import Aggregation, Mode
from verl_hpc.config.run import RunConfig
from verl_hpc.engines.protocol import NOTHING_MORE, OnOutputs, OutputOptions, Sums, TokenOutputs
from verl_hpc.step.batch import IMAGES, MASK, TOKENS, Columns, Samples, pad_rows
from verl_hpc.step.operators.infer import response_parts
from verl_hpc.step.placement import Placement
from verl_hpc.step.role import Role


@dataclass(frozen=True)
class OptimiseSettings:
    """Passes over a batch, and the aggregation of token losses."""

    config: RunConfig
    update_epochs: int
    aggregation: Mode
    temperature: float = 1.0
    """Divides the logits of a language model."""

    @property
    def scale(self) -> float:
        """Divisor of seq-mean-token-sum-norm."""
        return self.config.algorithm.loss_scale or self.config.rollout.max_response_tokens


@dataclass(frozen=True)
class MiniBatch:
    """This rank's part of one optimizer step, or of a micro-batch of it."""

    samples: Samples
    sequences: Columns
    masks: Columns
    """MASK column of the tokens that are trained on."""
    rows: Sequence[int]
    """Indices of its samples in this rank's columns."""
    aggregation: Aggregation
    """Aggregation of token losses, with the normalisers of the whole mini-batch."""
    members: Sequence[int]
    """Positions of all samples of the mini-batch, over all ranks."""
    outputs: Sequence[TokenOutputs] = ()
    """The engine's outputs for each of `rows`, of a micro-batch."""

    @property
    def num_tokens(self) -> int:
        """Unmasked tokens of the whole mini-batch; at least 1."""
        return max(self.aggregation.num_tokens, 1)

    def responses(self, output: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return an output of the response tokens, (B, T, ...) float32, and their mask, (B, T).

        Args:
            output: a field of `TokenOutputs`.
        """
        positions = [self.sequences.positions[row] for row in self.rows]
        parts = response_parts(self.samples, positions, self.outputs, output)
        padded = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
        return padded, self.column(self.masks, MASK).to(padded)

    def column(self, columns: Columns, name: str) -> torch.Tensor:
        """Return a column of these samples, padded to (B, T, ...)."""
        return pad_rows([columns[name][row] for row in self.rows])

    def loss_of(
        self, loss: TokenLoss, indices: Sequence[int], outputs: Sequence[TokenOutputs]
    ) -> tuple[torch.Tensor, Sums]:
        """Compute the loss of a micro-batch, given by indices in `rows`, from its outputs."""
        return loss(replace(self, rows=[self.rows[i] for i in indices], outputs=outputs))


TokenLoss = Callable[[MiniBatch], tuple[torch.Tensor, Sums]]
"""Function of a micro-batch to (scalar, sums of metrics)."""


def optimise(
    place: Placement,
    role: Role,
    settings: OptimiseSettings,
    samples: Samples,
    sequences: Columns,
    loss: TokenLoss,
    together: int = 1,
    masks: Columns | None = None,
    wanted: OutputOptions = NOTHING_MORE,
    prepare: Callable[[MiniBatch], None] | None = None,
    seen: OnOutputs | None = None,
    loss_name: str | None = None,
) -> dict[str, float]:
    """Take one optimizer step per mini-batch and epoch; skip mini-batches without an unmasked
    token.

    Args:
        together: see `TrainingEngine.update`.
        masks: has the MASK to use instead of that of `sequences`.
        wanted: further outputs for the loss; candidates and experts have an entry for each of this
            rank's sequences.
        prepare: called before each step, on all ranks.
        seen: called in each step, before the weights change, with the outputs of its sequences.
        loss_name: name of the loss among the metrics; ROLE/loss if None.

    Returns:
        Means of the metrics over the steps, the sum of num_skipped, and num_empty, the number of
        mini-batches without a step, if there are any: ROLE/NAME, or the name itself if it has a /.

    Raises:
        TrainingError: a loss or gradient is not finite.
    """
    wanted = replace(wanted, images=sequences.values.get(IMAGES))
    batches = _mini_batches(place, settings, samples, sequences, masks or sequences)
    sums: dict[str, float] = {}
    num_steps = 0
    for batch in batches:
        # Without an unmasked token on any rank there is no loss to normalise.
        if not batch.aggregation.num_sequences:
            continue
        if prepare is not None:
            prepare(batch)
        tokens = [sequences[TOKENS][row] for row in batch.rows]
        of_step = role.trained.update(
            tokens,
            partial(batch.loss_of, loss),
            settings.temperature,
            together,
            wanted.of(batch.rows),
            seen,
        )
        num_steps += 1
        for name, value in of_step.items():
            sums[name] = sums.get(name, 0.0) + value
    metrics, names = {}, {} if loss_name is None else {"loss": loss_name}
    for name, total in sums.items():
        value = total if name == "num_skipped" else total / num_steps
        metrics[names.get(name, name if "/" in name else f"{role.name}/{name}")] = value
    if num_steps < len(batches):
        metrics[f"{role.name}/num_empty"] = float(len(batches) - num_steps)
    return metrics


def _mini_batches(
    place: Placement,
    settings: OptimiseSettings,
    samples: Samples,
    sequences: Columns,
    masks: Columns,
) -> list[MiniBatch]:
    """Return this rank's part of the mini-batches of all update epochs, in order."""
    parts, counts = [], []
    for members in samples.all_epochs(settings.update_epochs):
        chosen = set(members)
        rows = [row for row, position in enumerate(sequences.positions) if position in chosen]
        parts.append((members, rows))
        # Unmasked tokens, and sequences with one: summed over ranks they normalise.
        counted = torch.zeros(2, dtype=torch.float64, device=place.device)
        for row in rows:
            tokens = masks[MASK][row].sum()
            counted += torch.stack([tokens, tokens > 0])
        counts.append(counted)
    totals = place.reduce(torch.stack(counts)).tolist()
    mode, scale = settings.aggregation, settings.scale
    return [
        MiniBatch(
            samples,
            sequences,
            masks,
            rows,
            Aggregation(mode, int(tokens), int(with_tokens), scale),
            members,
        )
        for (members, rows), (tokens, with_tokens) in zip(parts, totals, strict=True)
    ]
