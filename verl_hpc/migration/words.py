"""Words of a command line in Hydra's syntax, as keys and values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from verl_hpc.config.plain_yaml import read_yaml
from verl_hpc.errors import ConfigError
from verl_hpc.migration.reference import Form

_FORMS: dict[str, Form] = {"dp": "fsdp", "fsdp": "fsdp", "megatron": "megatron"}
_FILES = {"ppo_trainer": "fsdp", "ppo_megatron_trainer": "megatron"}
_FLAGS = ("use_fsdp", "standalone")
"""Options of tutorials and of torchrun that have no value."""
_DICTIONARY_COLON = re.compile(r":(?=[^\s/])")


@dataclass
class Overrides:
    """What a command line says."""

    given: dict[str, Any] = field(default_factory=dict)
    form: str | None = None
    """Form of the reference configuration, if the command line says it."""


def read_words(words: Iterable[str]) -> Overrides:
    """`key=value`, `+key=value`, `++key=value`, `--key value` and `--config-name=...`.

    Raises:
        ConfigError: a word is none of these, or its value cannot be read.
    """
    overrides = Overrides()
    for word in joined(words):
        if word.startswith("--"):
            name, _, text = word[2:].partition("=")
            _option(overrides, name, text)
            continue
        name, separator, text = word.partition("=")
        if name.startswith("~"):
            raise ConfigError(f"{word}: takes a key of verl's away; leave it out, and set ours")
        if not separator or not name.lstrip("+"):
            raise ConfigError(f"{word!r}: expected key=value, as verl's command line has")
        _set(overrides, name.lstrip("+"), text)
    return overrides


def joined(words: Iterable[str]) -> Iterator[str]:
    """Words, an option and its value as one: `--key=value`.

    Raises:
        ConfigError: an option has no value.
    """
    waiting = iter(words)
    for word in waiting:
        if not word.startswith("--") or "=" in word:
            yield word
            continue
        text = "true" if word[2:].replace("-", "_") in _FLAGS else next(waiting, None)
        if text is None or text.startswith("--"):
            raise ConfigError(f"{word}: has no value; expected {word} VALUE")
        yield f"{word}={text}"


def _option(found: Overrides, name: str, text: str) -> None:
    plain = name.replace("-", "_")
    if plain == "config_name":
        file = text.removesuffix(".yaml")
        if file not in _FILES:
            raise ConfigError(
                f"--config-name={text}: expected one of {', '.join(_FILES)}; give a file of your "
                "own as --config FILE"
            )
        found.form = _FILES[file]
    elif plain == "config_path":
        # Where verl's own file is; what it says is in the table.
        if PurePosixPath(text).name != "config":
            raise ConfigError(
                f"--config-path={text}: verl's own files are in a directory config; give a file of "
                "your own as --config FILE"
            )
    else:
        _set(found, plain, text)


def form_of(engine: object) -> Form:
    """Return the form of the reference configuration that `model_engine` asks for.

    Raises:
        ConfigError: there is no such engine.
    """
    if not isinstance(engine, str) or engine not in _FORMS:
        raise ConfigError(
            f"model_engine={engine}: no such engine is here; expected {', '.join(_FORMS)}"
        )
    return _FORMS[engine]


def _set(found: Overrides, key: str, text: str) -> None:
    value = _value(key, text)
    if key == "model_engine":
        found.form = form_of(value)
        return
    if "@" in key or "/" in key:
        raise ConfigError(
            f"{key}={text}: a file of Hydra's configuration groups; give model_engine=megatron, or "
            "the keys that the file sets"
        )
    found.given[key] = value


def _value(key: str, text: str) -> Any:
    text = text.strip()
    if text.startswith("{"):  # Hydra needs no space behind the colon of a dictionary
        text = _DICTIONARY_COLON.sub(": ", text)
    try:
        return read_yaml(text)
    except ValueError as error:
        if text[:1] in ("[", "{", "'", '"'):
            problem = str(error).partition("\n")[0]
            raise ConfigError(f"{key}={text}: the value cannot be read: {problem}") from None
        return text
