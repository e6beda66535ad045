"""Arguments of public functions against their annotations, with errors as those of settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from verl_hpc.config.explain import near_or_all, shown
from verl_hpc.errors import ConfigError

_P = ParamSpec("_P")
_R = TypeVar("_R")

_STRICT = ConfigDict(arbitrary_types_allowed=True, strict=True)


def checked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, which names an argument that it does not have, or whose type is another than
    its annotation's. What is handed on is what was given; `Any` is not looked at.

    Raises:
        ConfigError: by calls of it.
    """
    signature = inspect.signature(function)
    said = function.__qualname__.removesuffix(".__init__")

    @functools.cache
    def adapters() -> dict[str, TypeAdapter[Any]]:
        hints = get_type_hints(function)
        hints = {name: hints.get(name, Any) for name in signature.parameters}
        return {n: TypeAdapter(h, config=_STRICT) for n, h in hints.items() if h is not Any}

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            names = [name for name in signature.parameters if name != "self"]
            unknown = [name for name in kwargs if name not in names]
            why = (
                f"{unknown[0]} is no argument of it; {near_or_all(unknown[0], names, 'arguments')}"
                if unknown
                else f"{error}; its arguments are {', '.join(names)}"
            )
            raise ConfigError(f"{said}: {why}") from None
        for name, adapter in adapters().items():
            if name in given:
                _check(f"{said}: {name}", given[name], adapter)
        return function(*args, **kwargs)

    return call


def _check(said: str, value: Any, adapter: TypeAdapter[Any]) -> None:
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        reasons = list(dict.fromkeys(one["msg"] for one in error.errors(include_url=False)))
        where = "".join(f"[{place!r}]" for place in _inside(error))
        raise ConfigError(f"{said}{where} = {shown(value)}; {', or '.join(reasons)}") from None


def _inside(error: ValidationError) -> tuple[Any, ...]:
    """Where in a container the fault is, if it is at one place and no choice of types."""
    places = {one["loc"] for one in error.errors(include_url=False)}
    return places.pop() if len(places) == 1 else ()
