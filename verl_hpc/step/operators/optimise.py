"""The optimizer steps of a batch, one per mini-batch and epoch, for any loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from verl_hpc.algorithms.aggregation import Aggregation, Mode
from verl_hpc.engines.protocol import NOTHING_MORE, OnOutputs, OutputOptions, Sums, TokenOutputs
from verl_hpc.step.batch import MASK, TOKENS, Columns, Samples, pad_rows
from verl_hpc.step.operators.infer import response_part
from verl_hpc.step.placement import Placement
from verl_hpc.step.role import Role


@dataclass(frozen=True)
class OptimiseSettings:
    """Passes over a batch, and the aggregation of token losses."""

    update_epochs: int
    aggregation: Mode
    scale: float
    """Divisor of seq-mean-token-sum-norm."""
    temperature: float = 1.0
    """Divides the logits of a language model."""


@dataclass(frozen=True)
class MiniBatch:
    """This rank's part of one optimizer step."""

    samples: Samples
    sequences: Columns
    masks: Columns
    """MASK column of the tokens that are trained on."""
    rows: Sequence[int]
    """Indices of its samples in this rank's columns."""
    aggregation: Aggregation
    """Aggregation of token losses, with the normalisers of the whole mini-batch."""
    members: Sequence[int]
    """Positions of all its samples, over all ranks."""

    @property
    def num_tokens(self) -> int:
        """Unmasked tokens of the whole mini-batch; at least 1."""
        return max(self.aggregation.num_tokens, 1)

    def responses(
        self, indices: Sequence[int], per_token: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs of a micro-batch's response tokens, (B, T, ...) float32, and their mask,
        (B, T)."""
        rows = []
        for index, output in zip(indices, per_token, strict=True):
            assert output is not None, "the engine has not this output"
            sample = self.samples.samples[self.sequences.positions[self.rows[index]]]
            rows.append(response_part(sample.prompt_length, output))
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return padded, self.column(self.masks, MASK, indices).to(padded)

    def column(self, columns: Columns, name: str, indices: Sequence[int]) -> torch.Tensor:
        """Return a column of a micro-batch's samples, padded to (B, T, ...)."""
        return pad_rows([columns[name][self.rows[i]] for i in indices])


TokenLoss = Callable[[MiniBatch, Sequence[int], Sequence[TokenOutputs]], tuple[torch.Tensor, Sums]]
"""Function of (mini-batch, indices of a micro-batch in it, their outputs) to (scalar, sums of
metrics)."""


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

    Returns:
        Means of the metrics over the steps, the sum of num_skipped, and num_empty, the number of
        mini-batches without a step, if there are any.

    Raises:
        TrainingError: a loss or gradient is not finite.
    """
    batches = _mini_batches(place, settings, samples, sequences, masks or sequences)
    by_step = []
    for batch in batches:
        # Without an unmasked token on any rank there is no loss to normalise.
        if not batch.aggregation.num_sequences:
            continue
        if prepare is not None:
            prepare(batch)
        tokens = [sequences[TOKENS][row] for row in batch.rows]
        by_step.append(
            role.trained.update(
                tokens,
                partial(loss, batch),
                settings.temperature,
                together,
                wanted.of(batch.rows),
                seen,
            )
        )
    metrics = {
        name: sum(f[name] for f in by_step) / (1 if name == "num_skipped" else len(by_step))
        for name in (by_step[0] if by_step else ())
    }
    num_empty = len(batches) - len(by_step)
    return metrics | ({"num_empty": float(num_empty)} if num_empty else {})


def _mini_batches(
    place: Placement,
    settings: OptimiseSettings,
    samples: Samples,
    sequences: Columns,
    masks: Columns,
) -> list[MiniBatch]:
    """Return this rank's part of the mini-batches of all update epochs, in order."""
    batches = samples.all_epochs(settings.update_epochs)
    row_of = {position: row for row, position in enumerate(sequences.positions)}
    rows_of = [[row_of[i] for i in sorted(members) if i in row_of] for members in batches]
    # Unmasked tokens, and sequences with one, of each mini-batch: summed over ranks they normalise.
    counts = torch.zeros(len(rows_of), 2, dtype=torch.float64, device=place.device)
    for number, rows in enumerate(rows_of):
        for row in rows:
            tokens = masks[MASK][row].sum()
            counts[number] += torch.stack([tokens, tokens > 0])
    return [
        MiniBatch(
            samples,
            sequences,
            masks,
            rows,
            Aggregation(settings.aggregation, int(tokens), int(with_tokens), settings.scale),
            members,
        )
        for members, rows, (tokens, with_tokens) in zip(
            batches, rows_of, place.reduce(counts).tolist(), strict=True
        )
    ]
