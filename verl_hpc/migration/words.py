"""Words of a command line in Hydra's syntax, as keys and values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_hpc.config.explain import shown
from verl_hpc.config.plain_yaml import read_yaml
from verl_hpc.config.tree import read_tree
from verl_hpc.errors import ConfigError
from verl_hpc.migration.reference import Form, leaves
from verl_hpc.migration.table import note
from verl_hpc.migration.values import Refused

_FORMS: dict[str, Form] = {"dp": "fsdp", "fsdp": "fsdp", "megatron": "megatron", "veomni": "fsdp"}
_FILES: dict[str, Form] = {"ppo_trainer": "fsdp", "ppo_megatron_trainer": "megatron"}
_ENGINES = (["model_engine"], ["override model_engine"])
_ENGINE_KEYS = ("model_engine", "actor_rollout_ref.actor.model_engine")
"""The key of the form, and the name that verl's examples/README.md has for it, which verl's own
configuration does not have."""
_FLAGS = ("use_fsdp", "standalone")
"""Options of tutorials and of torchrun that have no value."""
_DICTIONARY_COLON = re.compile(r":(?=[^\s/])")
_BACKSLASH = "\\"
_ESCAPED = re.compile(r"[\w.*]*(?:\\[{}\[\]][\w.*]*)+")
"""A name with brackets that Hydra takes as they are, behind backslashes."""


@dataclass
class Overrides:
    """What a command line says."""

    given: dict[str, Any] = field(default_factory=dict)
    form: Form | None = None
    """Form of the reference configuration, if the command line says it."""
    refused: list[Refused] = field(default_factory=list)
    """Keys with values that cannot be read, or that only Hydra understands."""

    def over(self, other: Overrides) -> Overrides:
        """What both say; this one decides."""
        given, refused = other.given | self.given, [*other.refused, *self.refused]
        return Overrides(given, self.form or other.form, refused)


def read_words(words: Iterable[str], beside: Path | None = None) -> Overrides:
    """`key=value`, `+key=value`, `++key=value`, `--key value` and `--config-name=...`.

    Args:
        beside: the directory of the script that the words are from, beside whose directory config
            a file of `--config-name` may be.

    Raises:
        ConfigError: a word is none of these, or the file of `--config-name` is not there.
    """
    overrides, files = Overrides(), {"config_name": "", "config_path": ""}
    for word in joined(words):
        name, separator, text = word.partition("=")
        if word.startswith("--"):
            name = name[2:].replace("-", "_")
        if name in files and word.startswith("--"):
            files[name] = text
        elif name.startswith("~"):
            raise ConfigError(f"{word}: takes a key of verl's away; leave it out, and set ours")
        elif not separator or not name.lstrip("+"):
            raise ConfigError(f"{word!r}: expected key=value, as verl's command line has")
        else:
            _set(overrides, name.lstrip("+"), text)
    file = files["config_name"].removesuffix(".yaml")
    if not file or file in _FILES:
        return overrides.over(Overrides(form=_FILES.get(file)))
    return overrides.over(of_tree(read_tree(_own_file(file, files["config_path"], beside))))


def _own_file(name: str, folder: str, beside: Path | None) -> Path:
    """The YAML file of `--config-name`.

    Raises:
        ConfigError: it is not there.
    """
    places = [Path(folder)] if folder else []
    if beside is not None:
        places = [*places, beside / (folder or "config")]
    for place in places:
        if (place / f"{name}.yaml").is_file():
            return place / f"{name}.yaml"
    looked = f"not in {', '.join(map(str, places))}" if places else "without --config-path"
    raise ConfigError(note("no_file", name=name, looked=looked, files=", ".join(_FILES)))


def of_tree(tree: Mapping[str, Any]) -> Overrides:
    """What a YAML file says, and the form of verl's file that it lies over."""
    said = Overrides(dict(leaves(tree)))
    entries = said.given.pop("defaults", None) or []
    for entry in entries if isinstance(entries, list) else [entries]:
        if isinstance(entry, dict) and [*entry] in _ENGINES:
            _choose_form(said, *entry.values())
        elif entry in [*_FILES]:
            said.form = _FILES[entry]
        elif entry != "_self_":
            said.refused.append(Refused("defaults", note("other_file", entry=shown(entry))))
    for key in _ENGINE_KEYS:
        if key in said.given:
            _choose_form(said, said.given.pop(key))
    return said


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


def _choose_form(found: Overrides, engine: object) -> None:
    """The form of the reference configuration that `model_engine` asks for."""
    if isinstance(engine, str) and engine in _FORMS:
        found.form = _FORMS[engine]
        if engine == "veomni":
            found.given.setdefault("actor_rollout_ref.actor.strategy", engine)
    else:
        why = f"= {engine}: no such engine is here; expected {', '.join(_FORMS)}"
        found.refused.append(Refused("model_engine", why))


def _set(found: Overrides, key: str, text: str) -> None:
    if "@" in key or "/" in key:
        why = f"= {text}: is a file of Hydra's configuration groups"
        found.refused.append(Refused(key, why, "model_engine=megatron, or the keys that it sets"))
        return
    try:
        value = _value(text)
    except ValueError as error:
        problem = str(error).partition("\n")[0]
        found.refused.append(Refused(key, f"= {text}: the value cannot be read: {problem}"))
        return
    if key in _ENGINE_KEYS:
        _choose_form(found, value)
    else:
        found.given[key] = value


def _value(text: str) -> Any:
    """Raises: ValueError: it begins as a list, a dictionary or a text in quotes, and is none."""
    text = text.strip()
    if text.startswith("{"):  # Hydra needs no space behind the colon of a dictionary
        text = _ESCAPED.sub(lambda name: f'"{name[0].replace(_BACKSLASH, "")}"', text)
        text = _DICTIONARY_COLON.sub(": ", text)
    try:
        return read_yaml(text)
    except ValueError:
        if text[:1] in ("[", "{", "'", '"'):
            raise
        return text
