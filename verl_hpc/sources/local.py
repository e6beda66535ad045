"""A run's models as directories: names on a hub are looked for in its cache on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ModelError
from verl_hpc.layout.safetensors import safetensors_files
from verl_hpc.sources.cache import (
    HubName,
    hf_cache,
    locate,
    modelscope_caches,
    parse_name,
    source_of,
)


def model_settings(config: RunConfig) -> dict[str, str]:
    """Settings of a run that may name a model, a tokenizer or an adapter on a hub, with their
    values."""
    model = config.model
    texts: dict[str, str | None] = {"model.path": model.path, "model.tokenizer": model.tokenizer}
    texts["lora.path"] = config.lora.path if config.lora is not None else None
    for name, role in config.roles.items():
        texts[f"roles.{name}.path"] = role.path
        if isinstance(role.lora, BaseModel):
            texts[f"roles.{name}.lora.path"] = role.lora.path
    return {setting: text for setting, text in texts.items() if text is not None}


def on_hub(text: str) -> HubName | None:
    """The name on a hub that a setting has; None where it is a path, or a file here has it."""
    name = parse_name(text)
    return None if name is None or Path(text).exists() else name


def local_directory(text: str) -> str:
    """The directory of the cache that a name on a hub stands for; the text itself where it is a
    path, or where the cache does not have it."""
    name = on_hub(text)
    directory = locate(name) if name is not None else None
    return text if directory is None else str(directory)


def with_local_models(config: RunConfig) -> RunConfig:
    """Replace names of models by their directories in the cache; the configuration then records the
    commit, and does not follow a branch that moves on."""
    settings = model_settings(config)
    return put_settings(config, {name: local_directory(text) for name, text in settings.items()})


def found_models(config: RunConfig) -> dict[str, str]:
    """A directory for every setting that names a model on a hub.

    Raises:
        ModelError: some are not in the cache, or are there in part; with the command that fetches
            them.
    """
    settings = model_settings(config)
    missing = {name: text for name, text in settings.items() if needs_fetch(text)}
    if missing:
        raise not_cached(missing)
    named = {name: text for name, text in settings.items() if on_hub(text)}
    directories = {name: local_directory(text) for name, text in named.items()}
    for name, text in settings.items():
        check_whole(name, local_directory(text))
    return directories


def needs_fetch(text: str) -> bool:
    """Whether a setting names a model on a hub that the cache does not have."""
    return on_hub(local_directory(text)) is not None


def not_cached(missing: Mapping[str, str]) -> ModelError:
    """Make the error for names that are in no cache, with the command that fetches them.

    Args:
        missing: names on a hub, by setting.
    """
    named = ", ".join(f"{setting} = {text}" for setting, text in missing.items())
    hubs = {name.hub for name in map(parse_name, missing.values()) if name is not None}
    places = [str(hf_cache())] if "hf" in hubs else []
    places += [str(modelscope_caches()[0])] if "modelscope" in hubs else []
    return ModelError(
        f"{named}: no such directory here, and not in the cache of models ({', '.join(places)}). "
        f"On a node with network: {fetch_command(missing.values())}"
    )


def required_directory(setting: str, text: str) -> Path:
    """The directory, or the path, that an option of the command line names.

    Raises:
        ModelError: it is a name on a hub, and not in the cache.
    """
    if needs_fetch(text):
        raise not_cached({setting: text})
    return Path(local_directory(text))


def model_directory(setting: str, text: str) -> str:
    """The directory of a model that is read here, where nothing is downloaded.

    Raises:
        ModelError: there is no such directory, or the name is not in the cache.
    """
    directory = required_directory(setting, text)
    if not directory.is_dir():
        raise ModelError(
            f"{setting} = {text!r}: no such directory, and nothing is downloaded here; `python -m "
            "verl_hpc fetch ORG/NAME` brings a model of a hub, which is then given as ORG/NAME"
        )
    return str(directory)


def fetch_command(names: Any) -> str:
    """The command that brings models into the cache."""
    return f"python -m verl_hpc fetch {' '.join(dict.fromkeys(names))}"


def check_whole(setting: str, directory: str) -> None:
    """Check that a cached model has all its files of weights; an interrupted download lacks some.

    Raises:
        ModelError: some are missing.
    """
    path, source = Path(directory), source_of(directory)
    if source is None or not setting.endswith(".path") or setting.endswith("lora.path"):
        return
    try:
        safetensors_files(path)
    except ModelError as error:
        raise ModelError(
            f"{setting} = {source.partition(' ')[0]} is not whole in the cache: {error}. On a node "
            f"with network: {fetch_command([source.partition(' ')[0]])}"
        ) from None


def put_settings(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return a run with other values of some settings, by their names with dots."""
    for setting, value in values.items():
        config = _put(config, setting.split("."), value)
    return config


def _put(section: Any, names: list[str], value: Any) -> Any:
    """A copy of a section, or of a mapping of sections, with one value in it replaced."""
    name, *rest = names
    is_section = isinstance(section, BaseModel)
    old = getattr(section, name) if is_section else section[name]
    new = _put(old, rest, value) if rest else value
    if new == old:
        return section
    return section.model_copy(update={name: new}) if is_section else {**section, name: new}


SIZES = Path("configs/model")
"""Their config.json as NAME.json, seen from the root of a checkout."""


def shipped_sizes(model: str) -> Path | None:
    """File with the sizes of a model that is not on this machine, by the last part of its name;
    None where no file has that name.

    Args:
        model: name on a hub, or path that does not exist here.
    """
    file = SIZES / f"{Path(model).name}.json"
    return file if file.is_file() else None


def shipped_sentence(setting: str, model: str, file: Path) -> str:
    """What is assumed of a model whose sizes are those of a file."""
    return f"{setting} = {model} has the sizes of {file}, since it is not seen from here."
