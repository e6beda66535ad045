"""The optimizer steps of a batch: one a mini-batch and epoch, whatever the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from verl_hpc.algorithms.aggregation import Aggregation, Mode
from verl_hpc.engines.protocol import NOTHING_MORE, Seen, Sums, TokenOutputs, Wanted
from verl_hpc.step.batch import MASK, TOKENS, Columns, Samples, pad_rows
from verl_hpc.step.operators.infer import response_part
from verl_hpc.step.placement import Placement
from verl_hpc.step.role import Role


@dataclass(frozen=True)
class OptimiseSettings:
    """Passes over a batch, and how losses of tokens become one."""

    update_epochs: int
    aggregation: Mode
    scale: float
    """What seq-mean-token-sum-norm divides by."""
    temperature: float = 1.0
    """Divides the logits of a language model."""


@dataclass(frozen=True)
class MiniBatch:
    """This rank's part of one optimizer step."""

    samples: Samples
    sequences: Columns
    masks: Columns
    """Of what is trained on."""
    rows: Sequence[int]
    """Indices into this rank's columns."""
    aggregation: Aggregation
    """With the normalisers of the whole mini-batch."""
    members: Sequence[int]
    """Positions of all its samples, on whichever ranks."""

    @property
    def num_tokens(self) -> int:
        """That count, of the whole mini-batch; at least 1."""
        return max(self.aggregation.num_tokens, 1)

    def responses(
        self, indices: Sequence[int], per_token: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a micro-batch's response tokens: (B, T, ...) float32, and their mask, (B, T)."""
        rows = []
        for index, output in zip(indices, per_token, strict=True):
            assert output is not None, "the engine has not this output"
            sample = self.samples.samples[self.sequences.positions[self.rows[index]]]
            rows.append(response_part(sample.prompt_length, output))
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return padded, self.column(self.masks, MASK, indices).to(padded)

    def column(self, columns: Columns, name: str, indices: Sequence[int]) -> torch.Tensor:
        """A column of a micro-batch's samples as (B, T, ...)."""
        return pad_rows([columns[name][self.rows[i]] for i in indices])


TokenLoss = Callable[[MiniBatch, Sequence[int], Sequence[TokenOutputs]], tuple[torch.Tensor, Sums]]
"""(mini-batch, indices of a micro-batch in it, their outputs) to (scalar, sums of metrics)."""


def optimise(
    place: Placement,
    role: Role,
    settings: OptimiseSettings,
    samples: Samples,
    sequences: Columns,
    loss: TokenLoss,
    together: int = 1,
    masks: Columns | None = None,
    wanted: Wanted = NOTHING_MORE,
    prepare: Callable[[MiniBatch], None] | None = None,
    seen: Seen | None = None,
) -> dict[str, float]:
    """One optimizer step per mini-batch and epoch; none for a mini-batch without a token that
    counts.

    Args:
        together: as `TrainingEngine.update`.
        masks: has a MASK in place of that of the sequences.
        wanted: what else the loss gets; candidates and experts are of each of this rank's
            sequences.
        prepare: called before each step, on all ranks.
        seen: called in each step, before the weights change, with the outputs of its sequences.

    Returns:
        Means of the metrics over the steps, the number of those skipped, and num_empty, of
        mini-batches without a step, where there is one.

    Raises:
        TrainingError: a loss or gradient is not finite.
    """
    batches = _mini_batches(place, settings, samples, sequences, masks or sequences)
    found = []
    for batch in batches:
        if not batch.aggregation.num_sequences:
            continue
        if prepare is not None:
            prepare(batch)
        tokens = [sequences[TOKENS][row] for row in batch.rows]
        found.append(
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
        name: sum(f[name] for f in found) / (1 if name == "num_skipped" else len(found))
        for name in (found[0] if found else ())
    }
    num_empty = len(batches) - len(found)
    return metrics | ({"num_empty": float(num_empty)} if num_empty else {})


def _mini_batches(
    place: Placement,
    settings: OptimiseSettings,
    samples: Samples,
    sequences: Columns,
    masks: Columns,
) -> list[MiniBatch]:
    """Of all update epochs, one after the other."""
    batches = samples.all_epochs(settings.update_epochs)
    rows_of = [_rows(sequences, members) for members in batches]
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


def _rows(sequences: Columns, members: Sequence[int]) -> list[int]:
    chosen = set(members)
    return [row for row, i in enumerate(sequences.positions) if i in chosen]
