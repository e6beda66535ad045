"""Check arguments of public functions against their annotations, with errors like those of
settings."""

from __future__ import annotations

import functools
import inspect
import numbers
import operator
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar, get_type_hints

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError

from verl_hpc.config.explain import near_or_all, shown
from verl_hpc.errors import ConfigError
from verl_hpc.tutorial_names import ELSEWHERE

_P = ParamSpec("_P")
_R = TypeVar("_R")

_STRICT = ConfigDict(arbitrary_types_allowed=True, strict=True)


def checked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function with checked arguments: an unknown name, or a value whose type is not the
    annotation's, is an error. Values are passed on as given, numbers of numpy as Python's own;
    arguments annotated `Any` are not checked.

    Raises:
        ConfigError: in a call with a wrong argument.
    """
    signature = inspect.signature(function)
    said = function.__qualname__.removesuffix(".__init__")

    @functools.cache
    def adapters() -> dict[str, TypeAdapter[Any]]:
        # The return annotation may name a type that is imported for type checkers alone.
        said = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
        here = vars(sys.modules[function.__module__])
        hints = get_type_hints(SimpleNamespace(__annotations__=said), here, include_extras=True)
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD and name in hints:
                hints[name] = dict[str, hints[name]]  # type: ignore[valid-type]
        hints = {name: hints.get(name, Any) for name in signature.parameters}
        return {n: TypeAdapter(h, config=_STRICT) for n, h in hints.items() if h is not Any}

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            names = [name for name in signature.parameters if name != "self"]
            unknown = [name for name in kwargs if name not in names]
            why = (
                f"{unknown[0]} is no argument of it; {_instead(unknown[0], names)}"
                if unknown
                else f"{error}; its arguments are {', '.join(names)}"
            )
            raise ConfigError(f"{said}: {why}") from None
        given = bound.arguments
        for name, adapter in adapters().items():
            if name in given:
                given[name] = plain_number(given[name])
                _check(f"{said}: {name}", given[name], adapter)
        return function(*bound.args, **bound.kwargs)

    return call


def having(what: str, *methods: str) -> AfterValidator:
    """Return a validator for an annotation of `checked`: `Annotated[Any, having("a queue",
    "get")]`.

    Args:
        what: the expected value in words, for the error.
        methods: names of methods that the value must have.
    """

    def check(value: Any) -> Any:
        if not all(callable(getattr(value, method, None)) for method in methods):
            raise ValueError(f"expected {what}")
        return value

    return AfterValidator(check)


def _instead(unknown: str, names: list[str]) -> str:
    return ELSEWHERE.get(unknown) or near_or_all(unknown, names, "arguments")


def plain_number(value: Any) -> Any:
    """Return a number of numpy or another library as Python's own; other values unchanged."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, numbers.Integral):
        return operator.index(value)
    return float(value) if isinstance(value, numbers.Real) else value


def _numbers(value: Any) -> Any:
    """Return a value with the numbers of a list or mapping as Python's own."""
    if isinstance(value, dict):
        return {key: plain_number(part) for key, part in value.items()}
    return [plain_number(part) for part in value] if type(value) is list else plain_number(value)


def _check(said: str, value: Any, adapter: TypeAdapter[Any]) -> None:
    try:
        adapter.validate_python(_numbers(value))
    except ValidationError as error:
        reasons = [one["msg"] for one in error.errors(include_url=False)]
        reasons = list(dict.fromkeys(r.removeprefix("Value error, ") for r in reasons))
        where = "".join(f"[{place!r}]" for place in _inside(error))
        raise ConfigError(f"{said}{where} = {shown(value)}; {', or '.join(reasons)}") from None


def _inside(error: ValidationError) -> tuple[Any, ...]:
    """Return the place of the fault inside a container; empty if there are several."""
    places = {one["loc"] for one in error.errors(include_url=False)}
    return places.pop() if len(places) == 1 else ()
