"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_NONE: Mapping[str, str] = {}


def lazy_names(
    package: str, modules: Mapping[str, str], elsewhere: Mapping[str, str] = _NONE
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package (PEP 562).

    Type checkers do not follow them: the package imports the same names under TYPE_CHECKING.

    Args:
        package: its `__name__`.
        modules: where each name is imported from.
        elsewhere: what serves in the place of names that there are not.
    """

    def get(name: str) -> Any:
        if name not in modules:
            hint = f": {elsewhere[name]}" if name in elsewhere else ""
            words = f"module {package!r} has no attribute {name!r}{hint}"
            # `from package import name` would drop an AttributeError's words.
            if hint and sys._getframe(1).f_code.co_name == "_handle_fromlist":
                raise ImportError(words)
            raise AttributeError(words)
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, names
