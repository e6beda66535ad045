"""Comparison of the texts that two models' token ids stand for."""

from __future__ import annotations

import filecmp
from pathlib import Path
from typing import Any, NamedTuple

from verl_hpc.errors import ModelError
from verl_hpc.layout.json_file import read_json_object

_FILE = "tokenizer.json"


class OtherToken(NamedTuple):
    """A token id that two models read differently."""

    id: int
    ours: str
    theirs: str


def first_other_token(ours: Path, theirs: Path) -> OtherToken | None:
    """The first token id that stands for different texts in two models.

    Added tokens are not compared, since models rename reserved ones, nor are ids that only one
    has: a reward model may have a token more.

    Args:
        ours: directory of the one tokenizer.
        theirs: of the other.

    Returns:
        None where there is no such id, and where one of the two has no tokenizer.json.

    Raises:
        ModelError: a tokenizer.json cannot be read, or holds no vocabulary.
    """
    one, other = ours / _FILE, theirs / _FILE
    if not (one.is_file() and other.is_file()) or _same_bytes(one, other):
        return None
    first, second = _texts(one), _texts(other)
    differ = (number for number in first.keys() & second.keys() if first[number] != second[number])
    number = min(differ, default=None)
    return None if number is None else OtherToken(number, first[number], second[number])


def _same_bytes(one: Path, other: Path) -> bool:
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:  # said by whoever reads it
        return False


def _texts(file: Path) -> dict[int, str]:
    """Texts by token id, without added tokens."""
    fields = read_json_object(file)
    model, added = fields.get("model"), fields.get("added_tokens") or []
    rows = _rows(model.get("vocab") if isinstance(model, dict) else None)
    if rows is None or not all(type(n) is int and isinstance(text, str) for n, text in rows):
        raise _malformed(file, "model.vocab is no table of tokens and their ids")
    if not isinstance(added, list) or not all(map(_has_id, added)):
        raise _malformed(file, "added_tokens is no list of tokens with their ids")
    left_out = {token["id"] for token in added}
    return {number: text for number, text in rows if number not in left_out}


def _has_id(token: Any) -> bool:
    return isinstance(token, dict) and type(token.get("id")) is int


def _malformed(file: Path, what: str) -> ModelError:
    return ModelError(f"model: {file}: {what}; bring the tokenizer.json that belongs to the model")


def _rows(vocab: Any) -> list[tuple[Any, Any]] | None:
    """Ids and texts; None if it is no vocabulary. A Unigram's is a list of texts and scores."""
    if isinstance(vocab, dict):
        return [(number, text) for text, number in vocab.items()]
    if isinstance(vocab, list) and all(isinstance(row, list) and row for row in vocab):
        return list(enumerate(row[0] for row in vocab))
    return None
