"""Explain pydantic's errors to the person who wrote the settings."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from verl_hpc.config.foreign import MIGRATE, NEEDED, SECTIONS
from verl_hpc.section import OwnSection, is_own

_MOST_LINES = 20
_LONGEST_LINE = 400
_LONGEST_NAME = 60
_KEY = "[key]"
"""Last part of a location whose error is about the key itself, not its value."""

_NO_SECTION = ("model_type", "model_attributes_type", "union_tag_not_found")
"""Types of pydantic's errors for a value in the place of a section."""
_BRANCH = re.compile(r"[A-Z]\w*Config|literal\[.*\]")
"""Parts of a location with which pydantic names the alternatives of an untagged union."""

_KIND = {bool: "true or false", int: "a number (027 is 27)", float: "a number"}

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 120
_repr.maxlong = 40
_repr.maxlist = _repr.maxdict = 4
_repr.maxlevel = 3


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """A line for every setting that is wrong: its name, its value, and what is allowed or near.

    Args:
        error: from validating a tree as `model`.
        model: the model of the whole tree.
    """
    details = [d for d in error.errors(include_url=False) if not _is_other_branch(d)]
    lines = [f"  {_line(detail, model)}" for detail in details[:_MOST_LINES]]
    if len(details) > _MOST_LINES:
        lines.append(f"  and {len(details) - _MOST_LINES} more")
    return "\n".join(lines)


def shown(value: Any) -> str:
    """A value as Python writes it, the middle of a long one left out."""
    return _repr.repr(value)


def near_or_all(word: str, known: Iterable[str], what: str = "known") -> str:
    """Ask whether a near name was meant by a misspelt word; if none is near, list all names."""
    names = list(known)
    near = difflib.get_close_matches(word[:_LONGEST_NAME], names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"{what}: {', '.join(names)}"


def _is_other_branch(detail: Mapping[str, Any]) -> bool:
    """Whether it says that a section is not the word that could stand in its place."""
    return detail["type"] == "literal_error" and isinstance(detail["input"], Mapping)


def _line(detail: Mapping[str, Any], model: type[BaseModel]) -> str:
    text = _explanation(detail, model)
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}..."


def _explanation(detail: Mapping[str, Any], model: type[BaseModel]) -> str:
    *sections, field = [p for p in detail["loc"] if not _BRANCH.fullmatch(str(p))] or [""]
    names, below = _walk(sections, model)
    if field == _KEY:
        return f"{_dotted(names)}: as a name, {detail['msg']}"
    name = _dotted([*names, str(field)])
    if detail["type"] == "extra_forbidden":
        known = sorted(below.model_fields)
        if field in SECTIONS and not names and NEEDED in known:
            says = f"`{MIGRATE} --keys {field}` says what it becomes here"
            return f"{name}: a key of verl's in a run of verl_hpc's; {says}"
        return f"{name}: no such setting; {near_or_all(str(field), known)}"
    if detail["type"] == "missing":
        return f"{name}: is needed and not given"
    is_value = not isinstance(detail["input"], BaseModel | Mapping)
    # A plain value in the place of a section: show how the section is written.
    if is_value and detail["type"] in _NO_SECTION:
        value, info = detail["input"], below.model_fields.get(str(field))
        example = _example(value, [below] if info is None else _models_in(info.annotation))
        return f"{name} = {shown(value)}: expected a section, such as {example}"
    if detail["type"] in ("union_tag_not_found", "union_tag_invalid"):
        return f"{name}.{_wrong_tag(detail, below)}"
    message: str = detail["msg"].removeprefix("Value error, ")
    if not name:
        return message
    if not is_value:
        return f"{name}: {message}"
    # YAML has read a text without quotes as another type.
    if detail["type"] == "string_type" and isinstance(detail["input"], bool | int | float):
        message = (
            f"must be text, and without quotes it is {_KIND[type(detail['input'])]}; put it in "
            "quotes, on a command line in another pair around them"
        )
    return f"{name} = {shown(detail['input'])}: {message}"


def _wrong_tag(detail: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Say that the tag of a union is missing or unknown, and what it can be."""
    context = detail["ctx"]
    # 'kind', or a function such as name_of().
    tag = context["discriminator"].strip("'").removesuffix("_of()")
    if detail["type"] == "union_tag_not_found":
        members = _models_in(model.model_fields[detail["loc"][-1]].annotation)
        allowed = ", ".join(t for m in members for t in get_args(m.model_fields[tag].annotation))
        return f"{tag}: is needed and not given; one of {allowed}"
    allowed = context["expected_tags"].replace("'", "")
    return f"{tag} = {shown(context['tag'])}: must be one of {allowed}"


def _example(value: Any, members: Sequence[type[BaseModel]]) -> str:
    """Write an example of one of `members` with its required fields, using the given value if that
    is text."""
    text = value if isinstance(value, str) else None
    chosen = next((m for m in members if text in _tags(m)), members[0])
    if text is not None and is_own(text):
        chosen = next((m for m in members if issubclass(m, OwnSection)), chosen)
    words = [f"{name}: {tag}" for tag, name in _tags(chosen).items()]
    given = "..." if text is None or text in _tags(chosen) else text
    needed = [name for name, field in chosen.model_fields.items() if field.is_required()]
    for name in needed or [*chosen.model_fields][: 0 if words else 1]:
        kind = chosen.model_fields[name].annotation
        says = "..." if kind in (int, float, bool) else given
        words.append(f"{name}: [{says}]" if get_origin(kind) is list else f"{name}: {says}")
    return f"{{{', '.join(words)}}}"


def _tags(member: type[BaseModel]) -> dict[str, str]:
    """Return the names of a member's tag fields by the one value that each can have."""
    tags: dict[str, str] = {}
    for name, field in member.model_fields.items():
        if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1:
            tags[get_args(field.annotation)[0]] = name
    return tags


def _walk(
    sections: Sequence[str | int], model: type[BaseModel]
) -> tuple[list[str], type[BaseModel]]:
    """Return the names of sections as they are written, without tags, and the model below them."""
    names: list[str] = []
    members: list[type[BaseModel]] = []
    is_key = False
    for section in map(str, sections):
        if len(members) > 1:
            # This part is the tag of a union, not a name.
            model, members = _tagged(members, section), []
            continue
        names.append(section)
        field = None if is_key else model.model_fields.get(section)
        is_key = False
        members = _models_in(field.annotation) if field is not None else []
        if field is not None and members:
            # In a mapping of sections, the next part is a key.
            model, is_key = members[0], get_origin(field.annotation) is dict
    return names, model


def _tagged(members: Sequence[type[BaseModel]], tag: str) -> type[BaseModel]:
    """Return the member of a union with this tag, or the last member if none has it."""
    for member in members:
        if any(tag in get_args(field.annotation) for field in member.model_fields.values()):
            return member
    return members[-1]


def _dotted(parts: Iterable[str]) -> str:
    return ".".join(part if len(part) <= _LONGEST_NAME else shown(part) for part in parts)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for part in getattr(annotation, "__args__", ()) for m in _models_in(part)]
