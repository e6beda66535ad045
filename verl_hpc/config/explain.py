"""What pydantic found wrong with settings, in words for the person who wrote them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError


def explain(
    error: ValidationError, model: type[BaseModel], tagged: Mapping[str, type[BaseModel]]
) -> str:
    """A line for every setting that is wrong: its name, its value, and what is allowed or near.

    Args:
        error: of validating a tree as `model`.
        model: of the whole tree.
        tagged: members of discriminated unions by their tag, which pydantic puts into a location.
    """
    return "\n".join(f"  {_line(detail, model, tagged)}" for detail in error.errors())


def _line(
    detail: Mapping[str, Any], model: type[BaseModel], tagged: Mapping[str, type[BaseModel]]
) -> str:
    *sections, field = detail["loc"] or ("",)
    name = ".".join(str(part) for part in (*(s for s in sections if s not in tagged), field))
    if detail["type"] == "extra_forbidden":
        known = _fields_below(sections, model, tagged)
        near = difflib.get_close_matches(str(field), known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
        return f"{name}: no such setting; {hint}"
    if detail["type"] == "missing":
        return f"{name}: is needed and not given"
    message: str = detail["msg"].removeprefix("Value error, ")
    if not name:
        return message
    if isinstance(detail["input"], BaseModel | Mapping):
        return f"{name}: {message}"
    return f"{name} = {detail['input']!r}: {message}"


def _fields_below(
    sections: Sequence[str | int], model: type[BaseModel], tagged: Mapping[str, type[BaseModel]]
) -> list[str]:
    for section in map(str, sections):
        if section in model.model_fields:
            options = _models_in(model.model_fields[section].annotation)
            model = options[0] if options else model
        else:
            model = tagged.get(section, model)
    return sorted(model.model_fields)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for part in getattr(annotation, "__args__", ()) for m in _models_in(part)]
