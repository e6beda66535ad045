"""List the settings of a model: names, allowed values, defaults, meanings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from verl_hpc.section import CHOSEN_BY

_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
Schema = Mapping[str, Any]
"""A part of a JSON schema."""
_NEEDED = object()
_STARTS_ANEW = "Another, put over a file's, drops the file's settings beside it."


@dataclass(frozen=True)
class SettingInfo:
    """One setting, in words."""

    name: str
    """Dotted, as in a YAML file and in overrides; NAME stands for one of the user's."""
    allowed: str
    """Type and bounds, such as `integer >= 1`, or the words it can be."""
    default: str | None
    """The default as YAML writes it; None if the setting must be given."""
    meaning: str
    """Docstring of the setting."""
    member: str = ""
    """Condition under which an optional or alternative section has this setting."""


def settings_of(model: type[BaseModel], prefix: str = "") -> list[SettingInfo]:
    """All settings below a model, in the order of their definition.

    Args:
        model: of a tree of sections.
        prefix: put before each name, such as `site.`.
    """
    schema = model.model_json_schema()
    return list(_below(schema, schema.get("$defs", {}), prefix, {}, ""))


def _below(
    section: Schema, defs: Schema, prefix: str, given: Schema, member: str
) -> Iterator[SettingInfo]:
    """Settings of a section; `given` are defaults that the section above has for them."""
    for field, schema in section["properties"].items():
        name = f"{prefix}{field}"
        default = given.get(field, schema.get("default", _NEEDED))
        by_name = named_sections(schema, defs)
        # Sections with names of the user's are listed once, as NAME.
        if by_name is not None:
            yield _one(name, schema | {"type": "sections by name"}, default, member)
            yield from _below(by_name, defs, f"{name}.NAME.", {}, member)
            continue
        members = members_of(schema, defs)
        if not members:
            yield _one(name, schema, default, member)
            continue
        tag = tag_of(schema)
        if tag is not None:
            choice = {"enum": [m["properties"][tag]["const"] for m in members]}
            chosen = default[tag] if isinstance(default, Mapping) else default
            meaning = f"{_text(schema)} {_STARTS_ANEW}"
            yield _one(f"{name}.{tag}", choice | {"description": meaning}, chosen, "")
        for inner in members:
            said = member if default is not None else f"{name} is given"
            above = default if isinstance(default, Mapping) else {}
            if tag is not None:
                which = inner["properties"][tag]["const"]
                said = f"{name}.{tag} is {which}"
                above = above if above.get(tag) == which else {}
                inner = {"properties": {k: v for k, v in inner["properties"].items() if k != tag}}
            yield from _below(inner, defs, f"{name}.", above, said)


def named_sections(schema: Schema, defs: Schema) -> Schema | None:
    """Return the schema of a field's sections if the user names them, else None."""
    for below in schema.get("patternProperties", {}).values():
        for section in members_of(below, defs):
            return section
    return None


def members_of(schema: Schema, defs: Schema) -> list[Schema]:
    """Return the sections that a field can be; empty for a plain setting."""
    if "$ref" in schema:
        return [defs[schema["$ref"].rpartition("/")[2]]]
    choices = schema.get("anyOf", schema.get("oneOf", ()))
    return [section for choice in choices for section in members_of(choice, defs)]


def tag_of(schema: Schema) -> str | None:
    """Return the field that decides between several sections, or None."""
    for choice in (schema, *schema.get("anyOf", ())):
        if "discriminator" in choice:
            return str(choice["discriminator"]["propertyName"])
    return None


def _one(name: str, schema: Schema, default: Any, member: str) -> SettingInfo:
    shown = None if default is _NEEDED else _plain(default)
    return SettingInfo(name, _allowed(schema), shown, _text(schema), member)


def _text(schema: Schema) -> str:
    words = schema.get("description", "").split()
    if (chooser := schema.get(CHOSEN_BY)) is not None:
        words.append(f"Another {chooser}, put over a file's, drops the file's value.")
    return " ".join(words)


def _allowed(schema: Schema) -> str:
    if "anyOf" in schema:
        return " or ".join(_allowed(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(map(_plain, schema["enum"]))
    if "const" in schema:
        return _plain(schema["const"])
    words = [schema.get("type", "anything")]
    if schema.get("type") == "array":
        words.append(f"of {_allowed(schema['items'])}")
    below = list(schema.get("patternProperties", {}).values())
    if below and "$ref" not in below[0]:
        words = [f"{_allowed(below[0])} by name"]
    style = ",.0f" if schema.get("type") == "integer" else "g"
    words += [f"{sign} {schema[key]:{style}}" for key, sign in _BOUNDS.items() if key in schema]
    return " ".join(words)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


def leaves(
    section: BaseModel, prefix: str = "", is_set: bool = True
) -> Iterator[tuple[str, Any, bool]]:
    """Yield the dotted name of every setting below a section, its value, and whether it was given.

    Args:
        section: settings.
        prefix: put before each name.
        is_set: whether the section itself was given.
    """
    for field in type(section).model_fields:
        value, given = getattr(section, field), is_set and field in section.model_fields_set
        items = {f"{prefix}{field}": value}
        if isinstance(value, dict) and value:
            items = {f"{prefix}{field}.{key}": item for key, item in value.items()}
        for name, item in items.items():
            if isinstance(item, BaseModel):
                yield from leaves(item, f"{name}.", given)
            else:
                yield name, item, given
