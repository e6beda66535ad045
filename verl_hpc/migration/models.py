"""What is known of a model before a run reads it: by its config.json, or else by its name."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

from verl_hpc.errors import ModelError
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.families import FAMILIES
from verl_hpc.layout.not_mapped import NOT_MAPPED
from verl_hpc.sources.local import local_directory


@cache
def _names() -> tuple[tuple[re.Pattern[str], str], ...]:
    text = Path(__file__).with_name("rows").joinpath("models.toml").read_text("utf-8")
    names = tomllib.loads(text)["names"]
    return tuple((re.compile(name, re.IGNORECASE), family) for name, family in names.items())


def model_at(path: str) -> tuple[bool | None, str]:
    """Whether a model is a mixture of experts, None if neither says it, and why a run refuses it,
    if it does, by its `config.json` on this machine, or else by its name."""
    directory = Path(local_directory(path))
    if (directory / "config.json").is_file():
        try:
            return read_architecture(directory).is_moe, ""
        except ModelError as error:
            return False, str(error)
    name = path.partition("@")[0].rstrip("/").rpartition("/")[2].replace("_", "-")
    family = next((family for known, family in _names() if known.search(name)), "")
    if not family:
        return None, ""
    if family in FAMILIES:
        return bool(FAMILIES[family].table.expert_rows), ""
    needs = f": it needs {NOT_MAPPED[family]}" if family in NOT_MAPPED else ""
    known_by = "by its name; its config.json is not here"
    return False, f"{path} is a {family} ({known_by}), which is not mapped{needs}"
