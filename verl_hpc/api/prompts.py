"""Prompts that are token ids already, as the operators of a step read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from verl_hpc.config.arguments import plain_number
from verl_hpc.config.explain import shown
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder
from verl_hpc.errors import DataError


class PromptText(str):
    """The text of a prompt, and the tokens that the model is to read, which need not be those that
    the tokenizer makes of it."""

    __slots__ = ("ids",)
    ids: tuple[int, ...]

    @classmethod
    def of(cls, text: str, ids: Sequence[int]) -> PromptText:
        prompt = cls(text)
        prompt.ids = tuple(ids)
        return prompt

    def __deepcopy__(self, memo: dict[int, Any]) -> PromptText:
        return self


class IdEncoder(Encoder):
    """Encodes prompts that `asked` has made, whose tokens are known."""

    def prompt(self, problem: Problem) -> list[int]:
        return ids_of(problem)


class StepPrompts:
    """The data set of a trainer that is handed its prompts: a source of which rows are added step
    by step, and forgotten behind it."""

    def __init__(self) -> None:
        self._problems: dict[int, Problem] = {}
        self.count = 0
        """Rows that there have been."""

    def add(self, problems: Sequence[Problem]) -> list[int]:
        """Put new rows in place of those of before, and return their numbers."""
        rows = list(range(self.count, self.count + len(problems)))
        self._problems = dict(zip(rows, problems, strict=True))
        self.count += len(rows)
        return rows

    def __len__(self) -> int:
        return max(self.count, 1)

    def __getitem__(self, index: int) -> Problem:
        return self._problems[index]

    def scan(self) -> Iterator[Problem | DataError]:
        """Give the rows of the newest step."""
        yield from self._problems.values()


def asked(
    prompts: Any, tokenizer: Any, attention_mask: Any = None, references: Any = None
) -> list[Problem]:
    """Return prompts as problems whose prompts are token ids.

    Args:
        prompts: (B, L) whole numbers, of torch or numpy too, or B lists of ids of any length; or B
            texts; or rows of a provider; a mapping with input_ids and attention_mask, as
            tokenizers give.
        attention_mask: (B, L), 1 where a token counts; None leaves out the tokenizer's padding at
            both ends of token ids, while texts have none.
        references: what is right, of each row; None takes that of a provider's rows.

    Raises:
        DataError: no prompts, a prompt without tokens or with another value in the place of one, or
            as many masks or references as there are not prompts.
    """
    if isinstance(prompts, str):
        raise DataError("input_ids is a text; give a list of texts, or of token ids")
    if hasattr(prompts, "keys"):
        if "input_ids" not in prompts:
            names = ", ".join(map(str, prompts)) or "nothing"
            raise DataError(f"a mapping without input_ids, but with {names}")
        attention_mask = prompts.get("attention_mask", attention_mask)
        prompts = prompts["input_ids"]
    pad = getattr(tokenizer, "pad_token_id", None)
    rows: list[Problem] = []
    if isinstance(prompts, list | tuple) and prompts:
        encoder = Encoder(tokenizer)
        if isinstance(prompts[0], Problem):
            rows, pad = list(prompts), None
            prompts = [encoder.prompt(row) for row in rows]
        elif all(isinstance(text, str) for text in prompts):
            pad, prompts = None, [tokenizer.encode(text) for text in prompts]
    tokens = rows_of(prompts, attention_mask, pad)
    rows = rows or [Problem(i, "", origin=f"prompt {i} of the step") for i in range(len(tokens))]
    truths = [row.ground_truth for row in rows] if references is None else _listed(references)
    if len(truths) != len(rows):
        raise DataError(f"references has {len(truths)} rows, and input_ids has {len(rows)}")
    problems: list[Problem] = []
    for row, ids, truth in zip(rows, tokens, truths, strict=True):
        _check_tokens(ids, len(problems), tokenizer)
        prompt = PromptText.of(tokenizer.decode(ids, skip_special_tokens=True), ids)
        problems.append(replace(row, prompt=prompt, ground_truth=truth))
    return problems


def check_lengths(problems: Sequence[Problem], limit: int) -> None:
    """Raise DataError if a prompt has more tokens than `max_prompt_length`."""
    for problem in problems:
        if (length := len(ids_of(problem))) > limit:
            raise DataError(
                f"{problem.where}: the prompt has {length} tokens, max_prompt_length = {limit}; "
                "shorten it, or raise that"
            )


def ids_of(problem: Problem) -> list[int]:
    """Return the tokens of a prompt that `asked` has made."""
    assert isinstance(problem.prompt, PromptText)
    return list(problem.prompt.ids)


def _listed(references: Any) -> list[Any]:
    is_one = isinstance(references, str | Mapping) or getattr(references, "ndim", 1) == 0
    if is_one or not hasattr(references, "__iter__"):
        raise DataError(
            f"references = {shown(references)}; expected a list of what is right, one a prompt"
        )
    return list(references)


def _check_tokens(ids: list[int], index: int, tokenizer: Any) -> None:
    if not ids:
        raise DataError(f"prompt {index} has no tokens but padding")
    try:
        known = max(len(tokenizer), getattr(tokenizer, "vocab_size", 0))
    except TypeError:  # a tokenizer of the user's own
        known = 2**31
    for token in ids:
        if type(token) is not int or not 0 <= token < known:
            raise DataError(
                f"prompt {index} has {shown(token)} in the place of a token; expected whole "
                f"numbers below {known}, which is what the tokenizer has"
            )


def plain(value: Any) -> Any:
    """Return numbers of numpy or torch, alone or nested, as Python's own in lists."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [plain(v) for v in value] if isinstance(value, list | tuple) else plain_number(value)


def rows_of(input_ids: Any, attention_mask: Any = None, pad: int | None = None) -> list[list[int]]:
    """Return the ids of each row that count.

    Args:
        input_ids: (B, L), or B lists of ids of any length, or one such list.
        attention_mask: (B, L), 1 where a token counts.
        pad: token that is left out at both ends where there is no mask; None leaves none out.

    Raises:
        DataError: no rows, or as many masks as there are not rows or tokens.
    """
    rows = _rows(input_ids, "input_ids")
    if not rows:
        raise DataError("input_ids has no prompts; give at least one")
    if attention_mask is None:
        return [_without_padding(row, pad) for row in rows]
    masks = _rows(attention_mask, "attention_mask")
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


def _rows(values: Any, name: str) -> list[list[Any]]:
    rows = plain(values)
    if not isinstance(rows, list):
        raise DataError(
            f"{name} is {type(values).__name__}; expected a tensor (prompts, tokens), lists of "
            "token ids, or texts"
        )
    rows = [rows] if rows and isinstance(rows[0], int | float) else rows
    for row in rows:
        if not isinstance(row, list):
            raise DataError(
                f"a row of {name} is {type(row).__name__}; expected whole numbers, or texts alone"
            )
    return rows


def _without_padding(row: list[int], pad: int | None) -> list[int]:
    start, stop = 0, len(row)
    while start < stop and row[start] == pad:
        start += 1
    while stop > start and row[stop - 1] == pad:
        stop -= 1
    return row[start:stop]
