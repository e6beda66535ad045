"""Convert rows of columns to bytes in host memory and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from verl_hpc.config.explain import near_or_all
from verl_hpc.errors import FlowError
from verl_hpc.step.batch import COLUMNS, Columns, Samples


class ColumnBytes:
    """A rank's rows of some columns, as bytes.

    A message about samples has their rows of the first column, then those of the next.

    Args:
        samples: lengths of all samples.
        columns: this rank's columns, which `check_columns` has checked.
    """

    def __init__(self, samples: Samples, columns: Columns) -> None:
        self._samples, self._widths = samples.samples, columns.widths
        self._dtypes = {name: COLUMNS[name].dtype for name in columns.values}
        self._columns = columns

    @cached_property
    def _rows(self) -> dict[str, dict[int, Any]]:
        """The bytes of each row in host memory, by column and position."""
        return {
            name: dict(zip(self._columns.positions, self._on_host(name), strict=True))
            for name in self._dtypes
        }

    def pack(self, positions: Sequence[int]) -> Any:
        """Pack samples that this rank has into a message, (n,) uint8."""
        rows = [self._rows[name][position] for name in self._dtypes for position in positions]
        return np.concatenate(rows) if rows else np.empty(0, np.uint8)

    def num_bytes(self, positions: Iterable[int]) -> int:
        """Count the bytes of a message about any samples."""
        return sum(self._bytes(name, i) for i in positions for name in self._dtypes)

    def unpack(
        self,
        positions: Sequence[int],
        parts: Iterable[tuple[Sequence[int], Any]],
        device: torch.device,
    ) -> Columns:
        """Build the columns of the samples at `positions` from messages.

        Args:
            positions: the samples, ascending.
            parts: (positions of a message's samples, message).
            device: device of the columns.
        """
        rows: dict[str, dict[int, Any]] = {name: {} for name in self._dtypes}
        for members, message in parts:
            # A message is column-major: split it into rows, then give each column its own.
            sizes = [self._bytes(name, i) for name in self._dtypes for i in members]
            ends = accumulate(sizes)
            pieces = [message[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            for number, by_position in enumerate(rows.values()):
                begin = number * len(members)
                by_position.update(zip(members, pieces[begin : begin + len(members)], strict=True))
        values = {
            name: self._column(name, [by_position[i] for i in positions], positions, device)
            for name, by_position in rows.items()
        }
        return Columns(positions, values, self._widths)

    def _column(
        self, name: str, rows: Sequence[Any], positions: Sequence[int], device: torch.device
    ) -> list[torch.Tensor]:
        if not positions:  # a split into no parts gives one
            return []
        lengths = [self._elements(name, i) for i in positions]
        values = torch.empty(sum(lengths), dtype=self._dtypes[name])
        np.concatenate(rows, out=values.view(torch.uint8).numpy())
        width = self._widths.get(name)
        parts = values.to(device).split(lengths)
        return [part if width is None else part.view(-1, width) for part in parts]

    def _on_host(self, name: str) -> list[Any]:
        """Return the bytes of each row, with one copy from the device for all."""
        rows, positions = self._columns[name], self._columns.positions
        if not rows:
            return []
        joined = torch.cat([row.flatten() for row in rows]).to(self._dtypes[name]).cpu()
        sizes = [self._bytes(name, i) for i in positions]
        return np.split(joined.view(torch.uint8).numpy(), list(accumulate(sizes))[:-1])

    def _bytes(self, name: str, position: int) -> int:
        return self._elements(name, position) * self._dtypes[name].itemsize

    def _elements(self, name: str, position: int) -> int:
        return self._samples[position].count(COLUMNS[name].per) * self._widths.get(name, 1)


def check_columns(samples: Samples, columns: Columns) -> None:
    """Raises: FlowError: a column is not in `COLUMNS`, or its shape differs from that."""
    for name, rows in columns.values.items():
        if name not in COLUMNS:
            raise FlowError(
                f"column {name!r} has no type, so ranks without samples could not take part in "
                f"moving it; make it known with verl_hpc.step.batch.add_column; "
                f"{near_or_all(name, COLUMNS)}"
            )
        width, per = columns.widths.get(name), COLUMNS[name].per
        for position, row in zip(columns.positions, rows, strict=True):
            length = samples.samples[position].count(per)
            shape = (length,) if width is None else (length, width)
            if row.shape != shape:
                raise FlowError(
                    f"column {name!r} of sample {position} has shape {tuple(row.shape)}, "
                    f"expected {shape}; give one row a {per}, and Columns(..., "
                    f"widths={{{name!r}: N}}) where a row is N numbers"
                )


def copied(columns: Columns, device: torch.device) -> Columns:
    """Copy a rank's own columns to a device in the types of `COLUMNS`, one copy for each column."""
    values: dict[str, list[torch.Tensor]] = {}
    for name, rows in columns.values.items():
        values[name] = []
        if rows:
            joined = torch.cat(rows).to(device, COLUMNS[name].dtype)
            values[name] = list(joined.split([*map(len, rows)]))
    return Columns(columns.positions, values, columns.widths)
