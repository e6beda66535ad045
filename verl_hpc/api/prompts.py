"""Prompts that are token ids already, as the house's operators read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from verl_hpc.api.token_ids import all_count, rows_of
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
        found = cls(text)
        found.ids = tuple(ids)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> PromptText:
        return self


class IdTokenizer:
    """A tokenizer that gives back the tokens of a `PromptText`; all else is the tokenizer's."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        if isinstance(text, PromptText):
            return list(text.ids)
        return list(self._tokenizer.encode(text, **kwargs))


class StepPrompts:
    """The data set of a trainer that is handed its prompts: a source of which rows are added step
    by step, and forgotten behind it."""

    def __init__(self) -> None:
        self._problems: dict[int, Problem] = {}
        self.count = 0
        """Rows that there have been."""

    def add(self, problems: Sequence[Problem]) -> list[int]:
        """Numbers of new rows, in place of those of before."""
        rows = list(range(self.count, self.count + len(problems)))
        self._problems = dict(zip(rows, problems, strict=True))
        self.count += len(rows)
        return rows

    def __len__(self) -> int:
        return max(self.count, 1)

    def __getitem__(self, index: int) -> Problem:
        return self._problems[index]

    def scan(self) -> Iterator[Problem | DataError]:
        """Those of the newest step."""
        yield from self._problems.values()


def problems_of(
    input_ids: Any,
    tokenizer: Any,
    attention_mask: Any = None,
    references: Sequence[Any] | None = None,
) -> list[Problem]:
    """Rows of token ids as problems.

    Args:
        input_ids: (B, L) tensor of whole numbers, or B lists of ids of any length, or B texts; a
            mapping with input_ids and attention_mask, as tokenizers give. Tensors may be torch's
            or numpy's.
        attention_mask: (B, L), 1 where a token counts; None leaves out the tokenizer's padding at
            both ends of token ids, while texts have none.
        references: what is right, of each row.

    Raises:
        DataError: no prompts, a prompt without tokens or with what is none, or as many masks or
            references as there are not prompts.
    """
    if isinstance(input_ids, str):
        raise DataError("input_ids is a text; give a list of texts, or of token ids")
    if hasattr(input_ids, "keys"):
        if "input_ids" not in input_ids:
            names = ", ".join(map(str, input_ids)) or "nothing"
            raise DataError(f"a mapping without input_ids, but with {names}")
        attention_mask = input_ids.get("attention_mask", attention_mask)
        input_ids = input_ids["input_ids"]
    if isinstance(input_ids, list | tuple) and all(isinstance(row, str) for row in input_ids):
        input_ids = [tokenizer.encode(text) for text in input_ids]
        attention_mask = all_count(input_ids) if attention_mask is None else attention_mask
    rows = rows_of(input_ids, attention_mask, getattr(tokenizer, "pad_token_id", None))
    truths = _each(references) if references is not None else [None] * len(rows)
    if len(truths) != len(rows):
        raise DataError(f"references has {len(truths)} rows, and input_ids has {len(rows)}")
    found = []
    for index, (ids, truth) in enumerate(zip(rows, truths, strict=True)):
        _check_tokens(ids, index, tokenizer)
        if not ids:
            raise DataError(f"prompt {index} has no tokens but padding")
        text = tokenizer.decode(ids, skip_special_tokens=True)
        origin = f"prompt {index} of the step"
        prompt = PromptText.of(text, ids)
        found.append(Problem(index, prompt, ground_truth=truth, origin=origin))
    return found


def asked(
    prompts: Any,
    tokenizer: Any,
    attention_mask: Any = None,
    references: Sequence[Any] | None = None,
) -> list[Problem]:
    """As `problems_of`, or rows of a provider, which have prompts and references of their own."""
    is_list = isinstance(prompts, list | tuple) and len(prompts) > 0
    if not (is_list and isinstance(prompts[0], Problem)):
        return problems_of(prompts, tokenizer, attention_mask, references)
    truths = references if references is not None else [row.ground_truth for row in prompts]
    encoder = Encoder(tokenizer)
    ids = [encoder.prompt(row) for row in prompts]
    found = problems_of(ids, tokenizer, all_count(ids), truths)
    return [
        replace(row, prompt=problem.prompt, ground_truth=problem.ground_truth)
        for row, problem in zip(prompts, found, strict=True)
    ]


def check_lengths(problems: Sequence[Problem], limit: int) -> None:
    """Raises: DataError: a prompt has more tokens than `max_prompt_length`."""
    for problem in problems:
        if (length := len(ids_of(problem))) > limit:
            raise DataError(
                f"{problem.where}: the prompt has {length} tokens, max_prompt_length = {limit}; "
                "shorten it, or raise that"
            )


def ids_of(problem: Problem) -> list[int]:
    """Tokens of a prompt that `problems_of` has made."""
    assert isinstance(problem.prompt, PromptText)
    return list(problem.prompt.ids)


def _each(references: Any) -> list[Any]:
    is_one = isinstance(references, str | Mapping) or getattr(references, "ndim", 1) == 0
    if is_one or not isinstance(references, Iterable):
        raise DataError(
            f"references = {shown(references)}; expected a list of what is right, one a prompt"
        )
    return list(references)


def _check_tokens(ids: list[int], index: int, tokenizer: Any) -> None:
    """Raises: DataError: the tokenizer has no such tokens."""
    try:
        known = max(len(tokenizer), getattr(tokenizer, "vocab_size", 0))
    except TypeError:  # of a user's own
        known = 2**31
    for token in ids:
        if type(token) is not int or not 0 <= token < known:
            raise DataError(
                f"prompt {index} has {token!r} in the place of a token; expected whole numbers "
                f"below {known}, which is what the tokenizer has"
            )
