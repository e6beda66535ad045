"""Algorithms, and those of the user's files, as one setting that `name` decides.

A class in a file of `algorithms.advantages` or `algorithms.losses`, or in `algorithms.preferences`,
is a choice by being there.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Annotated, Any, TypeVar, Union

from pydantic import Discriminator, Field, Tag

from verl_hpc.section import OWN_NAME, Section, is_own

S = TypeVar("S", bound=Section)


def members(package: ModuleType, base: type[S]) -> dict[str, type[S]]:
    """Sections of a module, or of a package's modules, by the name that each has."""
    inner = (info.name for info in iter_modules(getattr(package, "__path__", ())))
    modules = [import_module(f"{package.__name__}.{name}") for name in inner] or [package]
    sections = {
        value.model_fields["name"].default: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base)
        if value.__module__ == module.__name__ and not value.model_fields["name"].is_required()
    }
    return dict(sorted(sections.items()))


def one_of(package: ModuleType, base: type[Section], own: type[Section], default: str) -> Any:
    """The type of a setting that is a section of the package, or of the user's.

    Args:
        package: has the sections in its modules; a plain module has them itself.
        base: of them all.
        own: the section of one whose name is path/file.py:name.
        default: name of a section that is given without its name.
    """

    def name_of(value: Any) -> str | None:
        if isinstance(value, Mapping):
            name = str(value.get("name", default))
        elif isinstance(value, base):
            name = str(value.model_dump()["name"])
        else:
            return None
        return OWN_NAME if is_own(name) else name

    tagged: list[Any] = [Annotated[m, Tag(name)] for name, m in members(package, base).items()]
    union: Any = Union.__getitem__((*tagged, Annotated[own, Tag(OWN_NAME)]))
    # As pydantic writes it where a field's value alone decides.
    schema: dict[str, Any] = {"discriminator": {"propertyName": "name"}}
    return Annotated[union, Discriminator(name_of), Field(json_schema_extra=schema)]
