"""Sizes of published models that come with a checkout, for plans before a download."""

from __future__ import annotations

from pathlib import Path

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
