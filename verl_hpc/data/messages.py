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

_ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""Names of roles in lower case, and their names in templates. Other roles stay as they are, since a
template may know them."""
_SHAREGPT_ROLES = {**_ROLES, "function_response": "tool", "observation": "tool"}
"""Roles of messages with `from` and `value` (ShareGPT), and their names in templates."""
_CALLS = ("tool_calls", "function_call", "tool_call")
"""Fields for calls: the one that templates read, OpenAI's older form, and a singular of the first.
"""
_OTHER_ARGUMENTS = {"args", "input", "parameters"}
"""Names that libraries use for a call's `arguments`, which templates do not read."""
_UNREAD = ("refusal", "parts", "image", "images", "video", "videos", "audio", "audios")
"""Fields with content that chat templates do not read."""
PLACEHOLDER = "<image>"
"""Place of an image in the text of a prompt."""
IMAGE_KINDS = ("image", "image_url")
"""Types of parts that stand for an image."""
_MEDIA = ("image", "video", "audio", "sound")
_BELONGS_IN = {
    "thinking": "reasoning_content",
    "reasoning": "reasoning_content",
    "tool_use": "tool_calls",
    "tool_call": "tool_calls",
}
"""Types of parts that are no text, and the field of the message that templates read instead."""

_EXPECTED = "a list of {role, content}, or of {from, value}"


def is_chat_list(value: Any) -> bool:
    """Whether a value is meant as messages: a list that begins with a mapping."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def read_messages(value: Sequence[Any], column: str) -> list[Message]:
    """Return messages of a row in the form that chat templates read.

    Fields that are null are left out, at every depth: Arrow gives every message of a column all
    fields that one of them has, and templates take a field that is there for one that says
    something. Content in parts becomes one text, with `<image>` for a part that is an image.

    Args:
        value: a list of `{role, content}`, or of `{from, value}` (ShareGPT).
        column: name of the messages in errors.

    Raises:
        DataError: something else, a part that is neither text nor an image, a text that cannot be
            encoded, or fields within fields beyond what Python follows.
    """
    try:
        return [_message(item, f"{column}[{i}]") for i, item in enumerate(value)]
    except RecursionError:
        raise DataError(f"{column} has fields that are nested too deeply; mend the row") from None


def read_tools(value: Any) -> list[Any] | None:
    """Return the tools that a row gives its chat template, from a list of JSON schemas or its JSON
    text.

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
    """Return a value without null fields of mappings, at every depth."""
    if isinstance(value, Mapping):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [without_nulls(part) for part in value]
    return value


def text_of(messages: Iterable[Mapping[str, Any]], between: str = "\n\n") -> str:
    """Join the contents of messages."""
    return between.join(str(message.get("content", "")) for message in messages)


def checked_text(name: str, text: str) -> str:
    """Return a text of a row that a tokenizer can encode in reasonable time.

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
    """Describe a value in a few words: 'null', 'empty', 'list [1, 2]'."""
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
    elif message.get("role") == "function_call" and "content" in message:
        message["function_call"] = message.pop("content")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise DataError(f"{where} has the role {kind_of(role)}; expected {_EXPECTED}")
    message["role"] = role = _ROLES.get(role.lower(), role)
    _check_fields(message, where)
    message = _with_calls(message, where)
    if message.get("weight", 1) not in (0, 1):
        raise DataError(f"{where} has the weight {message['weight']!r:.60}; expected 0 or 1")
    if "content" in message:
        message["content"] = _text(message["content"], where)
    elif not message.get("tool_calls"):
        raise DataError(f"{where} ({role}) has no content, and no tool_calls; give one of them")
    _check_texts(message, where)
    return message


def _from_sharegpt(message: Message, where: str) -> Message:
    speaker = str(message["from"]).lower()
    if speaker not in _SHAREGPT_ROLES:
        known = ", ".join(_SHAREGPT_ROLES)
        raise DataError(f"{where} is from {message['from']!r:.60}; known are {known}")
    others = {key: value for key, value in message.items() if key not in ("from", "value")}
    field = "function_call" if speaker == "function_call" else "content"
    return {"role": _SHAREGPT_ROLES[speaker], field: message["value"], **others}


def _check_fields(message: Message, where: str) -> None:
    """Raises: DataError: a field other than the content has words, an image or a sound."""
    for name in _UNREAD:
        value = message.get(name)
        if value and isinstance(value, str | list | Mapping):
            raise DataError(
                f"{where} has the field {name}, {kind_of(value)}, which chat templates do not "
                "read; put its words in content, or remove the row"
            )


def _with_calls(message: Message, where: str) -> Message:
    """Return a message with all of its tool calls in `tool_calls`, or without that field."""
    others = {key: part for key, part in message.items() if key not in _CALLS}
    by_field = {name: _calls(message[name], where, name) for name in _CALLS if name in message}
    full = {name: calls for name, calls in by_field.items() if calls}
    if len(full) > 1:
        raise DataError(
            f"{where} has {' and '.join(full)}, of which templates read one; put all calls in "
            "tool_calls"
        )
    for name, calls in full.items():
        is_list = name == "tool_calls"
        others["tool_calls"] = calls if is_list else [_wrapped(call) for call in calls]
    return others


def _calls(value: Any, where: str, field: str) -> list[dict[str, Any]]:
    """Return function calls as a list, from one call or a list, as mappings or as JSON texts."""
    parsed = _parsed(value)
    if not parsed:
        return []
    calls = [_parsed(call) for call in (parsed if isinstance(parsed, list) else [parsed])]
    if not all(map(_is_call, calls)):
        raise DataError(
            f"{where} has the {field} {kind_of(value)}; expected {{name, arguments}}, or "
            "{type, function: {name, arguments}}, or a list of them, or the JSON text of one of "
            "these"
        )
    return calls


def _parsed(value: Any) -> Any:
    """Parse a JSON text; a blank text gives None, and other texts stay as they are."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value)
    except ValueError:
        return value


def _is_call(call: Any) -> bool:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return False
    name = function.get("name")
    has_others = "arguments" not in function and bool(_OTHER_ARGUMENTS & function.keys())
    return isinstance(name, str) and bool(name) and not has_others


def _wrapped(call: dict[str, Any]) -> dict[str, Any]:
    return call if "function" in call else {"type": "function", "function": call}


def _text(content: Any, where: str) -> str:
    """Return content as one text; the parts of a list are joined without anything between."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise DataError(f"{where} has the content {kind_of(content)}; expected a text, or parts")
    return "".join(_part(part, where) for part in content)


def _part(part: Any, where: str) -> str:
    """Return the text of one part of a message's content."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise DataError(
            f"{where} has a part of content that is {kind_of(part)}; expected a text, or "
            "{type: text, text: ...}; remove the part, or give it a text"
        )
    kind, text = str(part.get("type", "text")), part.get("text")
    if kind in IMAGE_KINDS:
        return PLACEHOLDER
    if not kind.endswith("text"):
        raise DataError(
            f"{where} has a part of type {kind:.60}; only parts of text are read: {_advice(kind)}"
        )
    if not isinstance(text, str):
        raise DataError(
            f"{where} has a part of type {kind:.60} whose text is {kind_of(text)}; expected a "
            "text; remove the part, or give it one"
        )
    return text


def _advice(kind: str) -> str:
    """Advise what to do about a part of content that is no text."""
    if any(word in kind for word in _MEDIA):
        return "models of video and sound are not supported"
    if kind in _BELONGS_IN:
        return f"put what it says in {_BELONGS_IN[kind]} of the message"
    return "remove it, or make it a part of text"


def _check_texts(value: Any, where: str) -> None:
    if isinstance(value, str):
        checked_text(where, value)
    elif isinstance(value, Mapping):
        for part in value.values():
            _check_texts(part, where)
    elif isinstance(value, list):
        for part in value:
            _check_texts(part, where)
