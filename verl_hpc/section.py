"""Base class and field types of all sections of settings."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A frozen group of settings; a name it does not know is an error, never ignored."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )

    def _check_unchanged(self, names: Iterable[str], other: str) -> None:
        """Raises: ValueError: one of these fields is not its default, though nothing reads it with
        the `other` setting."""
        for name in names:
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(f"{name} = {value} has no effect with {other}; leave it out")


_MOST = 2**31 - 1
_LARGEST = 1e9
# Strict: true is not a number, and a text that looks like one is a text.
Integer = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True)]

Positive = Annotated[Integer, Field(ge=1, le=_MOST)]
NonNegative = Annotated[Integer, Field(ge=0, le=_MOST)]
Seed = Annotated[Integer, Field(ge=0, lt=2**63)]
Fraction = Annotated[Number, Field(ge=0.0, le=1.0)]
ProperFraction = Annotated[Number, Field(ge=0.0, lt=1.0)]
Finite = Annotated[Number, Field(ge=-_LARGEST, le=_LARGEST)]
NonNegativeFinite = Annotated[Number, Field(ge=0.0, le=_LARGEST)]
PositiveFinite = Annotated[Number, Field(gt=0.0, le=_LARGEST)]
Rate = Annotated[Number, Field(ge=0.0, le=100.0)]
"""A rate of learning, decay and the like; the bound is far above what anybody trains with."""
PositiveRate = Annotated[Number, Field(gt=0.0, le=100.0)]
Seconds = Annotated[Number, Field(ge=0.001, le=30 * 86400)]
"""A time limit in seconds, at most 30 days."""


CHOSEN_BY = "chosen_by"


def chosen_by(setting: str) -> Any:
    """Declare that a setting belongs to the variant that another setting of its section chooses.

    If that setting is changed over a file's, the file's value of this one is dropped.
    """
    return Field(json_schema_extra={CHOSEN_BY: setting})


def check_path_text(text: str) -> str:
    """Raises: ValueError: no file can have this path."""
    if re.search("[\0-\x1f\x7f-\x9f\u2028\u2029]", text):
        raise ValueError("has a control character or a line break")
    if len(text) > 4000:
        raise ValueError("should have at most 4000 characters")
    if max(len(os.fsencode(name)) for name in text.split("/")) > 255:
        raise ValueError("has a name of more than 255 bytes, which no file system holds")
    return text


PathText = Annotated[str, Field(min_length=1), AfterValidator(check_path_text)]
"""A path that a file may have."""


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"no regular expression ({error})") from None
    return pattern


Pattern = Annotated[str, Field(min_length=1, max_length=10_000), AfterValidator(_check_pattern)]


def _check_plain(value: Any, name: str = "") -> Any:
    """Raises: ValueError: the dump of a configuration would read back as another one."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} = {value}: must be finite")
    for key, part in _parts(value):
        below = f"{name}.{key}".lstrip(".")
        if isinstance(value, dict) and not isinstance(key, str):
            kind = type(key).__name__
            raise ValueError(
                f"{below}: a name must be text, and {key} is {kind}; write it in quotes"
            )
        _check_plain(part, below)
    return value


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


Options = Annotated[dict[str, Any], AfterValidator(_check_plain)]
"""Settings of other people's code, by their names there."""

OWN_NAME = "path/file.py:name"
"""Form of the name of something in the user's code."""


def is_own(name: str) -> bool:
    """Whether a name has the form path/file.py:name."""
    return re.fullmatch(r"[^:]+\.py:[A-Za-z_]\w*", name) is not None


OwnName = Annotated[PathText, Field(json_schema_extra={"const": OWN_NAME})]
"""Name of something in a file of the user's."""


class OwnSection(Section):
    """Settings of the user's code, which checks them where it runs."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _is_plain(self) -> OwnSection:
        _check_plain(self.model_extra)
        return self
