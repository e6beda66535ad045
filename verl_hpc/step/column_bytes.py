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
        columns: this rank's columns.

    Raises:
        FlowError: a column is not in `COLUMNS`, or its shape differs from that.
    """

    def __init__(self, samples: Samples, columns: Columns) -> None:
        self._samples, self._widths = samples.samples, columns.widths
        self._dtypes, self._columns = _dtypes(columns), columns
        self._check(columns)

    def on(self, device: torch.device) -> Columns:
        """Copy the rank's own columns to a device, one copy for each column, and pack no bytes."""
        values = {}
        for name, dtype in self._dtypes.items():
            rows = self._columns[name]
            joined = torch.cat([row.flatten() for row in rows]) if rows else torch.empty(0)
            values[name] = self._split(name, joined.to(device, dtype), self._columns.positions)
        return Columns(self._columns.positions, values, self._widths)

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
        num_elements = sum(self._elements(name, i) for i in positions)
        values = torch.empty(num_elements, dtype=self._dtypes[name])
        if rows:
            np.concatenate(rows, out=values.view(torch.uint8).numpy())
        return self._split(name, values.to(device), positions)

    def _split(
        self, name: str, values: torch.Tensor, positions: Sequence[int]
    ) -> list[torch.Tensor]:
        """Cut a column, whose rows stand one after the other in `values`, into its rows."""
        if not positions:  # a split into no parts gives one
            return []
        rows = values.split([self._elements(name, i) for i in positions])
        width = self._widths.get(name)
        return [row if width is None else row.view(-1, width) for row in rows]

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
        return self._length(name, position) * self._widths.get(name, 1)

    def _length(self, name: str, position: int) -> int:
        sample, per = self._samples[position], COLUMNS[name].per
        if per == "sample":
            return 1
        lengths = {
            "sequence": sample.length,
            "read": sample.length - 1,
            "token": sample.response_length,
        }
        return lengths[per]

    def _check(self, columns: Columns) -> None:
        for name in self._dtypes:
            width = self._widths.get(name)
            for position, row in zip(columns.positions, columns[name], strict=True):
                length = self._length(name, position)
                shape = (length,) if width is None else (length, width)
                if row.shape != shape:
                    per = COLUMNS[name].per
                    raise FlowError(
                        f"column {name!r} of sample {position} has shape {tuple(row.shape)}, "
                        f"expected {shape}; give one row a {per}, and Columns(..., "
                        f"widths={{{name!r}: N}}) where a row is N numbers"
                    )


def _dtypes(columns: Columns) -> dict[str, torch.dtype]:
    for name in columns.values:
        if name not in COLUMNS:
            raise FlowError(
                f"column {name!r} has no type, so ranks without samples could not take part in "
                f"moving it; make it known with verl_hpc.step.batch.add_column; "
                f"{near_or_all(name, COLUMNS)}"
            )
    return {name: COLUMNS[name].dtype for name in columns.values}
