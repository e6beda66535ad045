"""Chat messages as rows have them, brought to one form.

A message is a mapping with a `role` and, but for calls of tools, a `content` of text. Further
fields (`tool_calls`, `reasoning_content`, `name`, ...) stay for the chat template to read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verl_hpc.errors import DataError

Message = dict[str, Any]

MOST_CHARACTERS = 4 * 2**20
"""Longest text of a row: a million tokens have about as many characters."""

_SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function_response": "tool",
    "observation": "tool",
}
"""Roles of messages that have `from` and `value` (ShareGPT), and what templates call them."""

_EXPECTED = "a list of {role, content}, or of {from, value}"


def is_chat_list(value: Any) -> bool:
    """Whether a value is meant as messages: a list that begins with a mapping."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def read_messages(value: Sequence[Any], column: str) -> list[Message]:
    """Messages of a row in the form that chat templates read.

    Fields that are null are left out, at every depth: Arrow gives every message of a column all
    fields that one of them has, and templates take a field that is there for one that says
    something. Content in parts becomes one text.

    Args:
        value: a list of `{role, content}`, or of `{from, value}` (ShareGPT).
        column: what errors call it.

    Raises:
        DataError: something else, a part that is no text, a text that cannot be encoded, or fields
            within fields beyond what Python follows.
    """
    try:
        return [_message(item, f"{column}[{i}]") for i, item in enumerate(value)]
    except RecursionError:
        raise DataError(f"{column} has fields that are nested too deeply; mend the row") from None


def read_tools(value: Any) -> list[Any] | None:
    """Tools that a row gives its chat template: JSON schemas in a list, or that list as JSON.

    Raises:
        DataError: something else.
    """
    if isinstance(value, str) and value.strip():
        try:
            tools = json.loads(value)
        except ValueError as error:
            raise DataError(f"tools is a text that is not JSON ({error})") from None
    else:
        tools = without_nulls(value)
    if not tools:
        return None
    if isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools):
        return tools
    raise DataError(f"tools is {kind_of(value)}; expected a list of JSON schemas, or it as JSON")


def without_nulls(value: Any) -> Any:
    """A value without the fields of mappings that are null, at every depth."""
    if isinstance(value, Mapping):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [without_nulls(part) for part in value]
    return value


def text_of(messages: Iterable[Mapping[str, Any]], between: str = "\n\n") -> str:
    """The contents of messages, one after another."""
    return between.join(str(message.get("content", "")) for message in messages)


def checked_text(name: str, text: str) -> str:
    """A text of a row that a tokenizer can encode in reasonable time.

    Raises:
        DataError: more than `MOST_CHARACTERS`, or half of a surrogate pair.
    """
    if len(text) > MOST_CHARACTERS:
        raise DataError(
            f"{name} has {len(text):,} characters; at most {MOST_CHARACTERS:,} are read: no model "
            "takes more, and a tokenizer needs minutes for them; remove the row"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{name} has half of a surrogate pair, {error.object[error.start]!a}, at character "
            f"{error.start}, which cannot be encoded; remove it"
        ) from None
    return text


def kind_of(value: Any) -> str:
    """What a value is, in a few words: 'null', 'empty', 'list [1, 2]'."""
    if value is None:
        return "null"
    if value in ("", [], {}):
        return "empty"
    return f"{type(value).__name__} {value!r:.60}"


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, Mapping):
        raise DataError(f"{where} is {kind_of(item)}; expected {_EXPECTED}")
    message = without_nulls(item)
    if "role" not in message and {"from", "value"} <= message.keys():
        message = _from_sharegpt(message, where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise DataError(f"{where} has the role {kind_of(role)}; expected {_EXPECTED}")
    if message.get("weight", 1) not in (0, 1):
        raise DataError(f"{where} has the weight {message['weight']!r:.60}; expected 0 or 1")
    if "content" in message:
        message["content"] = _text(message["content"], where)
    elif not message.get("tool_calls"):
        raise DataError(f"{where} ({role}) has no content, and no tool_calls; give one of them")
    _check_texts(message, where)
    return message


def _from_sharegpt(message: Message, where: str) -> Message:
    role = _SHAREGPT_ROLES.get(str(message["from"]))
    if role is None:
        known = ", ".join(_SHAREGPT_ROLES)
        raise DataError(f"{where} is from {message['from']!r:.60}; known are {known}")
    others = {key: value for key, value in message.items() if key not in ("from", "value")}
    if message["from"] == "function_call":
        return {"role": role, "tool_calls": _calls(message["value"], where), **others}
    return {"role": role, "content": message["value"], **others}


def _calls(text: Any, where: str) -> list[dict[str, Any]]:
    """Calls of functions that ShareGPT has as the JSON text of one of them, or of a list."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        found = None
    calls = found if isinstance(found, list) else [found]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise DataError(
            f"{where} is from function_call and has the value {kind_of(text)}; expected the JSON "
            "text of {name, arguments}, or of a list of them"
        )
    return [{"type": "function", "function": call} for call in calls]


def _text(content: Any, where: str) -> str:
    """Content as one text; the parts of a list follow each other without anything between."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise DataError(f"{where} has the content {kind_of(content)}; expected a text, or parts")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if str(kind or "text").endswith("text") else None
        if not isinstance(text, str):
            raise DataError(
                f"{where} has a part of type {kind or kind_of(part)}; only parts of text are read: "
                "models of images, video and sound are not supported"
            )
    return "".join(part["text"] for part in content)


def _check_texts(value: Any, where: str) -> None:
    if isinstance(value, str):
        checked_text(where, value)
    elif isinstance(value, Mapping):
        for part in value.values():
            _check_texts(part, where)
    elif isinstance(value, list):
        for part in value:
            _check_texts(part, where)
