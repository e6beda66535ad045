"""Drop the settings of a variant that another one replaces, such as those of a loss."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from verl_hpc.config.explain import shown
from verl_hpc.config.settings import Schema, members_of, named_sections, tag_of
from verl_hpc.section import CHOSEN_BY

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Place:
    """A setting to drop."""

    section: dict[str, Any]
    field: str
    name: str
    """Dotted name of the setting."""
    why: str


def drop_replaced(
    below: dict[str, Any], above: Mapping[str, Any], model: type[BaseModel], origin: str
) -> list[str]:
    """Take out of `below` what belongs to a variant that `above` replaces, and say so in the log.

    A variant is a section of several that its `name` or `kind` decides between, or what a setting
    declares with `chosen_by`. What `above` gives itself is not looked at.

    Args:
        below: the settings that are changed in place.
        above: settings that are put over them.
        model: the model of both trees.
        origin: where `below` comes from, for the log.

    Returns:
        Dotted names of what was dropped.
    """
    if not (below and above):
        return []  # the schema takes longer than all else that is read
    schema = _schema(model)
    dropped: dict[str, list[str]] = {}
    for place in list(_replaced(below, above, schema, schema.get("$defs", {}), "")):
        del place.section[place.field]
        dropped.setdefault(place.why, []).append(place.name)
    for why, names in dropped.items():
        _tell(f"{origin}: {why}; dropped with it: {', '.join(names)}")
    return [name for names in dropped.values() for name in names]


@cache
def _tell(text: str) -> None:
    """Log each text once, since a command may read a file several times."""
    _logger.warning(text)


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _replaced(
    below: dict[str, Any], above: Mapping[str, Any], section: Schema, defs: Schema, prefix: str
) -> Iterator[_Place]:
    """Yield the settings to drop from a section, in the order of its definition."""
    for field, schema in section["properties"].items():
        name, chooser = f"{prefix}{field}", schema.get(CHOSEN_BY)
        if field in below and chooser is not None:
            default = section["properties"][chooser].get("default")
            if (why := _change(below, above, chooser, default, prefix)) is not None:
                yield _Place(below, field, name, why)
                continue
        if isinstance(below.get(field), dict) and isinstance(above.get(field), Mapping):
            yield from _replaced_in(below[field], above[field], schema, defs, f"{name}.")


def _replaced_in(
    below: dict[str, Any], above: Mapping[str, Any], schema: Schema, defs: Schema, prefix: str
) -> Iterator[_Place]:
    """Yield the settings to drop from a field that is a section, one of several, or sections by
    name."""
    by_name = named_sections(schema, defs)
    if by_name is not None:
        for key in below.keys() & above.keys():
            if isinstance(below[key], dict) and isinstance(above[key], Mapping):
                yield from _replaced(below[key], above[key], by_name, defs, f"{prefix}{key}.")
        return
    sections = members_of(schema, defs)
    tag = tag_of(schema)
    if tag is not None:
        default = (schema.get("default") or {}).get(tag)
        # Another variant: all of the old one's settings go. Else look into the chosen section.
        if (why := _change(below, above, tag, default, prefix)) is not None:
            yield from (_Place(below, f, f"{prefix}{f}", why) for f in below if f != tag)
            return
        chosen = below.get(tag, default)
        sections = [s for s in sections if s["properties"][tag].get("const") == chosen]
    for section in sections:
        yield from _replaced(below, above, section, defs, prefix)


def _change(
    below: Mapping[str, Any], above: Mapping[str, Any], chooser: str, default: Any, prefix: str
) -> str | None:
    """Describe which variant replaces which; None if the variant stays."""
    before, now = below.get(chooser, default), above.get(chooser)
    if now is None or before is None or now == before:
        return None
    return f"{prefix}{chooser} = {shown(now)} replaces {shown(before)}"
