"""Read rows of a data set: the prompt, and the answers to learn from or to score by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from verl_hpc.config.data import FilesConfig, TrainOn
from verl_hpc.data import images
from verl_hpc.data.conversations import answered, asked, compared, says_the_end
from verl_hpc.data.messages import (
    checked_text,
    is_chat_list,
    kind_of,
    read_messages,
    read_tools,
    without_nulls,
)
from verl_hpc.data.problem import LABEL_COLUMN, PAIR_COLUMNS, Answer, Problem, Prompt
from verl_hpc.errors import DataError

ANSWER_COLUMNS = ("answer", "response")
GROUND_TRUTH_COLUMNS = ("ground_truth", *ANSWER_COLUMNS)
"""Columns for the ground truth of a row without reward_model, in order of preference."""
LEARNED_COLUMNS = ("completion", *ANSWER_COLUMNS)
"""Columns for the answer to imitate or to label, in order of preference. In a row with a
completion, or a conversation without a prompt, `answer` is the ground truth instead."""
CONVERSATION_COLUMNS = ("messages", "conversations")
"""Columns for a whole conversation, in order of preference."""
PROMPT_COLUMNS = ("prompt", *CONVERSATION_COLUMNS, *PAIR_COLUMNS)
"""Columns in which a prompt may be if no setting names one."""
SYSTEM_COLUMNS = ("system", "system_prompt")
"""Columns for a system message that the prompt lacks."""
TEMPLATE_COLUMNS = ("tools", "chat_template_kwargs", "enable_thinking")
"""Columns with arguments for the chat template: TRL's names, and that of verl's SFT."""
LEFT_OUT_COLUMNS = ("input", "context", "history")
"""Columns that belong to an instruction or a question and are not read."""
OPTIONAL_COLUMNS = (
    "prompt",
    "data_source",
    "reward_model",
    "extra_info",
    *GROUND_TRUTH_COLUMNS,
    *PAIR_COLUMNS,
    "completion",
    LABEL_COLUMN,
    *CONVERSATION_COLUMNS,
    *SYSTEM_COLUMNS,
    *TEMPLATE_COLUMNS,
    *LEFT_OUT_COLUMNS,
    images.COLUMN,
)
Needs = Literal["prompt", "answer", "pair", "label"]
"""What every row must have: a prompt, and for all but `prompt` also an answer to imitate, a pair of
answers, or an answer that is labelled good or bad."""
_RENAME = "name the right one in prompt_key or answer_key of the data set"
_PAIR = f"a pair needs {' and '.join(PAIR_COLUMNS)}"


class RowReader:
    """Reads rows as problems.

    Args:
        config: the names of columns.
        needs: parts that every row must have.
        train_on: which turns of the model are imitated (`conversations.answered`).
    """

    def __init__(
        self, config: FilesConfig, needs: Needs = "prompt", train_on: TrainOn = "all"
    ) -> None:
        self._prompt_key, self._answer_key = config.prompt_key, config.answer_key
        self._is_named = config.prompt_key != FilesConfig.model_fields["prompt_key"].default
        self._needs, self._train_on = needs, train_on

    def problem(
        self, row: Mapping[str, Any], index: int, origin: str, directory: Path | None = None
    ) -> Problem:
        """Return the problem of a row.

        Args:
            row: values by column.
            index: number of the row.
            origin: name of the row in errors.
            directory: what paths of images are relative to.

        Raises:
            DataError: the row lacks what is needed, or its columns contradict each other.
        """
        problem = _facts_of(row, index, origin)
        for column in LEFT_OUT_COLUMNS if self._prompt_key in ("instruction", "question") else ():
            if row.get(column):
                raise DataError(
                    f"{column} is {kind_of(row[column])}, which belongs to the {self._prompt_key} "
                    "and would be left out; join the two in one column"
                )
        said = self._said(row)
        return replace(
            problem,
            system=_system(row),
            template_arguments=_template_arguments(row),
            images=self._pictures(row, said, directory),
            **said,
        )

    def _pictures(
        self, row: Mapping[str, Any], said: Mapping[str, Any], directory: Path | None
    ) -> tuple[images.Picture, ...]:
        """Return the images of a row, which has a place for each in the prompt that it says."""
        columns = (self._prompt_key, *CONVERSATION_COLUMNS, *PAIR_COLUMNS, *LEARNED_COLUMNS)
        chats = [value for column in columns if is_chat_list(value := _or_none(row, column))]
        if not chats and row.get(images.COLUMN) is None:
            return ()
        pictures = images.pictures_of(row, chats[0] if chats else None, directory)
        has_parts = any(map(images.has_image_parts, chats))
        images.check_places(said["prompt"], len(pictures), has_parts)
        if pictures or has_parts:
            images.check_answers(said.get("answer"), said.get("rejected"))
        return pictures

    def _said(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the prompt and the answers by their fields of `Problem`."""
        if self._needs == "prompt":
            return self._asked(row)
        if self._needs == "pair":
            chosen, rejected = _pair(row)
            parts = compared(self._pair_prompt(row, chosen, rejected), chosen, rejected)
            return dict(zip(("prompt", "answer", "rejected"), parts, strict=True))
        beside = self._prompt(row, may_lack=_has_chat(row, self._answer_key))
        column = self._answer_key or self._learned_column(row)
        read = _conversation if column in CONVERSATION_COLUMNS else _text_or_chat
        answer = read(row, column)
        prompt = beside if column != self._prompt_key else None
        if self._needs == "answer":
            prompt, answer = answered(prompt, answer, self._train_on, column)
            return {"prompt": prompt, "answer": answer}
        prompt, answer = answered(prompt, answer, "last", column)
        return {"prompt": prompt, "answer": answer, "label": _label(row)}

    def _pair_prompt(
        self, row: Mapping[str, Any], chosen: Answer, rejected: Answer
    ) -> Prompt | None:
        """Return the prompt that a row gives apart from its pair: a column of its own, or a
        conversation, without an answer of the pair at its end."""
        prompt = self._prompt(row, may_lack=True)
        column = _first_of(row, CONVERSATION_COLUMNS)
        if prompt is not None or column is None:
            return prompt
        conversation = _conversation(row, column)
        for answer in (chosen, rejected):
            if says_the_end(answer, conversation):
                length = 1 if isinstance(answer, str) else len(answer)
                return conversation[:-length] or None
        return conversation

    def _asked(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the prompt, and the row's text to imitate, if it has one."""
        prompt = self._asked_prompt(row)
        column = self._answer_key or _first_of(row, ANSWER_COLUMNS)
        answer = _value(row, column) if column else None
        if isinstance(answer, str):
            return {"prompt": prompt, "answer": checked_text(column or "", answer)}
        if self._answer_key:
            raise DataError(f"{column} is {kind_of(answer)}; expected the text to imitate")
        return {"prompt": prompt}

    def _asked_prompt(self, row: Mapping[str, Any]) -> Prompt:
        """Return the prompt of its column, or the question of a conversation or a pair."""
        key = self._prompt_key
        conversation = key if key in CONVERSATION_COLUMNS else _first_of(row, CONVERSATION_COLUMNS)
        has_pair = all(row.get(column) is not None for column in PAIR_COLUMNS)
        if key not in (*CONVERSATION_COLUMNS, *PAIR_COLUMNS):
            prompt = self._prompt(row, may_lack=has_pair or conversation is not None)
            if prompt is not None:
                return prompt
        if has_pair and (key in PAIR_COLUMNS or conversation is None):
            return compared(None, *_pair(row))[0]
        return asked(_conversation(row, conversation or key))

    def _prompt(self, row: Mapping[str, Any], may_lack: bool) -> Prompt | None:
        """Return the prompt of its column; None if the row may lack it and no setting names it."""
        if may_lack and not self._is_named and row.get(self._prompt_key) is None:
            return None
        return _prompt(_value(row, self._prompt_key))

    def _learned_column(self, row: Mapping[str, Any]) -> str:
        """Return the column of the answer to imitate or to label, if no setting names one.

        Raises:
            DataError: there is none, or two could be it.
        """
        columns = self._could_be_learned(row)
        if not columns:
            known = ", ".join((*LEARNED_COLUMNS, *CONVERSATION_COLUMNS))
            raise DataError(
                f"no answer in any of {known}; columns are {', '.join(row)}; name the column of "
                "the answer in answer_key of the data set"
            )
        column, *others = columns
        for other in others:
            if not _agree(row, column, other):
                raise DataError(
                    f"{' and '.join(sorted((column, other)))} could both be what is learned; set "
                    "answer_key to the one that is meant"
                )
        return column

    def _could_be_learned(self, row: Mapping[str, Any]) -> list[str]:
        """Return the columns that may hold the answer to imitate or to label: conversations, then
        answers. Empty ones are left out, unless there are no others."""
        key = self._prompt_key
        whole = [key] if self._is_named and _is_whole(_value(row, key)) else []
        conversation = whole or _first_of(row, CONVERSATION_COLUMNS)
        has_prompt = not whole and row.get(key) is not None
        is_compared = row.get("completion") is not None or (conversation and not has_prompt)
        columns = [c for c in (*CONVERSATION_COLUMNS, *LEARNED_COLUMNS) if c not in whole]
        there = [
            c for c in columns if row.get(c) is not None and not (c == "answer" and is_compared)
        ]
        return [*whole, *(c for c in there if row[c] not in ("", []))] or there


def _facts_of(row: Mapping[str, Any], index: int, origin: str) -> Problem:
    """Return the problem of a row without its prompt and its answers."""
    if row.get("reward_model") is not None:
        truth = _mapping(row, "reward_model").get("ground_truth")
    else:
        column = _first_of(row, GROUND_TRUTH_COLUMNS)
        truth = row[column] if column else None
    return Problem(
        index=index,
        prompt="",
        data_source=row.get("data_source") or "",
        ground_truth=truth,
        extra=_mapping(row, "extra_info"),
        origin=origin,
    )


def _value(row: Mapping[str, Any], key: str, advice: str = _RENAME) -> Any:
    """Return the value that `key` names; `a.b` is field b of column a."""
    value: Any = row
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            if key == "prompt" and (no_chat := _no_conversation(row)) is not None:
                raise DataError(no_chat)
            raise DataError(f"no column {key!r}; columns are {', '.join(row)}; {advice}")
        value = value[name]
    return value


def _or_none(row: Mapping[str, Any], key: str) -> Any:
    """Return the value that `key` names as `_value` does; None without one."""
    value: Any = row
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _no_conversation(row: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a conversation's column; None without such a column."""
    for column in CONVERSATION_COLUMNS:
        if column in row and not is_chat_list(row[column]):
            kind = kind_of(row[column])
            return f"{column} is {kind}; expected a conversation as a list of {{role, content}}"
    return None


def _mapping(row: Mapping[str, Any], column: str) -> dict[str, Any]:
    value = row.get(column)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DataError(f"{column} is {kind_of(value)}; expected a mapping")
    return value


def _first_of(row: Mapping[str, Any], columns: Iterable[str]) -> str | None:
    """Return the first of some columns that has a value."""
    return next((column for column in columns if row.get(column) is not None), None)


def _agree(row: Mapping[str, Any], column: str, other: str) -> bool:
    """Whether two columns have the same answer, with or without the conversation before it."""
    values = _value(row, column), _value(row, other)
    if not all(isinstance(value, str) or is_chat_list(value) for value in values):
        return values[0] == values[1]
    one, two = _text_or_chat(row, column), _text_or_chat(row, other)
    return says_the_end(one, two) or says_the_end(two, one)


def _prompt(value: Any) -> Prompt:
    if isinstance(value, str) and value:
        return checked_text("the prompt", value)
    if is_chat_list(value):
        return read_messages(value, "the prompt")
    raise DataError(
        f"the prompt is {kind_of(value)}; expected text, or a list of {{role, content}} of texts"
    )


def _has_chat(row: Mapping[str, Any], key: str | None) -> bool:
    """Whether an answer may bring its prompt with it."""
    columns = (*LEARNED_COLUMNS, *CONVERSATION_COLUMNS)
    return key is not None or any(is_chat_list(row.get(column)) for column in columns)


def _is_whole(value: Any) -> bool:
    """Whether a prompt's column has a conversation that ends with an answer."""
    return is_chat_list(value) and read_messages(value, "the prompt")[-1]["role"] == "assistant"


def _conversation(row: Mapping[str, Any], column: str) -> list[dict[str, Any]]:
    value = _text_or_chat(row, column)
    if isinstance(value, str):
        raise DataError(f"{column} is {kind_of(value)}; expected a conversation as a chat list")
    return value


def _pair(row: Mapping[str, Any]) -> tuple[Answer, Answer]:
    """Return the better and the worse answer."""
    chosen, rejected = (_text_or_chat(row, column, _PAIR) for column in PAIR_COLUMNS)
    return chosen, rejected


def _label(row: Mapping[str, Any]) -> bool:
    value = _value(row, LABEL_COLUMN, "it says whether the answer is good, true or false")
    if not isinstance(value, bool):
        raise DataError(
            f"{LABEL_COLUMN} is {kind_of(value)}; expected true, where the answer is good, or false"
        )
    return value


def _text_or_chat(row: Mapping[str, Any], column: str, advice: str = _RENAME) -> Answer:
    value = _value(row, column, advice)
    if is_chat_list(value):
        return read_messages(value, column)
    if isinstance(value, str):
        return checked_text(column, value)
    raise DataError(
        f"{column} is {kind_of(value)}; expected an answer's text, or a list of {{role, content}} "
        "that ends with it"
    )


def _system(row: Mapping[str, Any]) -> str | None:
    texts = {column: row[column] for column in SYSTEM_COLUMNS if row.get(column)}
    for column, value in texts.items():
        if not isinstance(value, str):
            raise DataError(f"{column} is {kind_of(value)}; expected the text of a message")
        checked_text(column, value)
    said = list(texts.values())
    if len(set(said)) > 1:
        raise DataError(
            f"{' and '.join(texts)} are {said[0]!r:.60} and {said[1]!r:.60}, and a conversation "
            "has one system message; remove the column that is not meant"
        )
    return said[0] if said else None


def _template_arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = without_nulls(_mapping(row, "chat_template_kwargs"))
    if (thinks := row.get("enable_thinking")) is not None:
        if not isinstance(thinks, bool):
            raise DataError(f"enable_thinking is {kind_of(thinks)}; expected true or false")
        arguments["enable_thinking"] = thinks
    if (tools := read_tools(row.get("tools"))) is not None:
        arguments["tools"] = tools
    return arguments
