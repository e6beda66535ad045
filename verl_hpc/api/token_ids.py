"""Token ids as callers have them: tensors of torch or numpy, or lists."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch

from verl_hpc.config.arguments import plain_number
from verl_hpc.config.explain import shown
from verl_hpc.errors import DataError


def rows_of(input_ids: Any, attention_mask: Any = None, pad: int | None = None) -> list[list[int]]:
    """The ids of each row that count.

    Args:
        input_ids: (B, L), or B lists of ids of any length, or one such list.
        attention_mask: (B, L), 1 where a token counts.
        pad: token that is left out at both ends where there is no mask; None leaves none out.

    Raises:
        DataError: no rows, or as many masks as there are not rows or tokens.
    """
    rows = _lists(input_ids, "input_ids")
    if not rows:
        raise DataError("input_ids has no prompts; give at least one")
    if attention_mask is None:
        return [_without_padding(row, pad) for row in rows]
    masks = _lists(attention_mask, "attention_mask")
    if len(masks) != len(rows):
        raise DataError(f"attention_mask has {len(masks)} rows, and input_ids has {len(rows)}")
    for index, (row, mask) in enumerate(zip(rows, masks, strict=True)):
        if len(mask) != len(row):
            raise DataError(f"prompt {index} has {len(row)} tokens, and its mask {len(mask)}")
        for counts in mask:
            if counts not in (0, 1):  # a mask that is added to scores has 0 where a token counts
                raise DataError(f"prompt {index}: its mask has {shown(counts)}; expected 1 or 0")
    pairs = zip(rows, masks, strict=True)
    return [[t for t, counts in zip(row, mask, strict=True) if counts] for row, mask in pairs]


def all_count(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """A mask of rows that are not padded."""
    return [[1] * len(row) for row in rows]


def _lists(rows: Any, name: str) -> list[list[int]]:
    if _is_tensor(rows):
        if rows.ndim not in (1, 2):
            raise DataError(f"{name} has the shape {tuple(rows.shape)}; expected (prompts, tokens)")
        rows = rows[None] if rows.ndim == 1 else rows
        return [row.tolist() for row in rows]
    if not isinstance(rows, Sequence):
        raise DataError(
            f"{name} is {type(rows).__name__}; expected a tensor (prompts, tokens), lists of "
            "token ids, or texts"
        )
    if len(rows) and isinstance(rows[0], Integral):
        rows = [rows]
    return [_list(row, name) for row in rows]


def _list(row: Any, name: str) -> list[int]:
    if _is_tensor(row) and row.ndim == 1:
        return row.tolist()  # type: ignore[no-any-return]
    if isinstance(row, str) or not isinstance(row, Sequence):
        if name == "input_ids":
            raise DataError(f"a prompt is {type(row).__name__}; expected token ids, or texts alone")
        raise DataError(f"a row of {name} is {type(row).__name__}; expected whole numbers, 1 or 0")
    return [plain_number(token) for token in row]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def _without_padding(row: list[int], pad: int | None) -> list[int]:
    start, stop = 0, len(row)
    while start < stop and row[start] == pad:
        start += 1
    while stop > start and row[stop - 1] == pad:
        stop -= 1
    return row[start:stop]
