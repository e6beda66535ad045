"""What pydantic found wrong with settings, in words for the person who wrote them."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_MOST_LINES = 20
_LONGEST_LINE = 400
_LONGEST_NAME = 60

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 120
_repr.maxlong = 40
_repr.maxlist = _repr.maxdict = 4
_repr.maxlevel = 3


def explain(
    error: ValidationError, model: type[BaseModel], tagged: Mapping[str, type[BaseModel]]
) -> str:
    """A line for every setting that is wrong: its name, its value, and what is allowed or near.

    Args:
        error: of validating a tree as `model`.
        model: of the whole tree.
        tagged: members of discriminated unions by their tag, which pydantic puts into a location.
    """
    details = error.errors(include_url=False)
    lines = [f"  {_line(detail, model, tagged)}" for detail in details[:_MOST_LINES]]
    if len(details) > _MOST_LINES:
        lines.append(f"  and {len(details) - _MOST_LINES} more")
    return "\n".join(lines)


def shown(value: Any) -> str:
    """A value as Python writes it, the middle of a long one left out."""
    return _repr.repr(value)


def near_or_all(word: str, known: Iterable[str], what: str = "known") -> str:
    """Names that a misspelt word may mean, as a question; where none is near, all there are."""
    names = list(known)
    near = difflib.get_close_matches(word[:_LONGEST_NAME], names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"{what}: {', '.join(names)}"


def _line(
    detail: Mapping[str, Any], model: type[BaseModel], tagged: Mapping[str, type[BaseModel]]
) -> str:
    text = _explanation(detail, model, tagged)
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}..."


def _explanation(
    detail: Mapping[str, Any], model: type[BaseModel], tagged: Mapping[str, type[BaseModel]]
) -> str:
    *sections, field = detail["loc"] or ("",)
    parts = (str(part) for part in (*(s for s in sections if s not in tagged), field))
    name = ".".join(part if len(part) <= _LONGEST_NAME else shown(part) for part in parts)
    if detail["type"] == "extra_forbidden":
        known = _fields_below(sections, model, tagged)
        return f"{name}: no such setting; {near_or_all(str(field), known)}"
    if detail["type"] == "missing":
        return f"{name}: is needed and not given"
    if detail["type"] in ("union_tag_not_found", "union_tag_invalid"):
        return f"{name}.{_wrong_tag(detail, _model_below(sections, model, tagged))}"
    message: str = detail["msg"].removeprefix("Value error, ")
    if not name:
        return message
    if isinstance(detail["input"], BaseModel | Mapping):
        return f"{name}: {message}"
    return f"{name} = {shown(detail['input'])}: {message}"


def _wrong_tag(detail: Mapping[str, Any], model: type[BaseModel]) -> str:
    """The field that says which member of a union is meant, and what it can be."""
    tag = detail["ctx"]["discriminator"].strip("'")
    options = _models_in(model.model_fields[detail["loc"][-1]].annotation)
    allowed = ", ".join(t for o in options for t in get_args(o.model_fields[tag].annotation))
    if detail["type"] == "union_tag_not_found":
        return f"{tag}: is needed and not given; one of {allowed}"
    return f"{tag} = {shown(detail['ctx']['tag'])}: must be one of {allowed}"


def _fields_below(
    sections: Sequence[str | int], model: type[BaseModel], tagged: Mapping[str, type[BaseModel]]
) -> list[str]:
    return sorted(_model_below(sections, model, tagged).model_fields)


def _model_below(
    sections: Sequence[str | int], model: type[BaseModel], tagged: Mapping[str, type[BaseModel]]
) -> type[BaseModel]:
    for section in map(str, sections):
        if section in model.model_fields:
            options = _models_in(model.model_fields[section].annotation)
            model = options[0] if options else model
        else:
            model = tagged.get(section, model)
    return model


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for part in getattr(annotation, "__args__", ()) for m in _models_in(part)]
