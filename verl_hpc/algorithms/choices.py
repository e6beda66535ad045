"""The algorithms of a package, and those of the user's files, as one setting that `name` decides.

A file of `algorithms.advantages` or `algorithms.losses` adds its class by being there.
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
    """Sections of a package's modules, by the name that each has."""
    sections: dict[str, type[S]] = {}
    for info in iter_modules(package.__path__):
        module = import_module(f"{package.__name__}.{info.name}")
        for value in vars(module).values():
            is_section = isinstance(value, type) and issubclass(value, base)
            if is_section and value.__module__ == module.__name__:
                sections[value.model_fields["name"].default] = value
    return sections


def one_of(package: ModuleType, base: type[Section], own: type[Section], default: str) -> Any:
    """The type of a setting that is a section of the package, or of the user's.

    Args:
        package: of one section a module.
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
