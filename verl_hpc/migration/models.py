"""What is known of a model before a run reads it: by its config.json, or else by its name."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Literal

from verl_hpc.errors import ModelError
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.families import FAMILIES
from verl_hpc.layout.not_mapped import BY_NAME, REFUSED
from verl_hpc.sources.local import local_directory


@cache
def _names() -> tuple[tuple[re.Pattern[str], str], ...]:
    text = Path(__file__).with_name("rows").joinpath("models.toml").read_text("utf-8")
    names = tomllib.loads(text)["names"]
    return tuple((re.compile(name, re.IGNORECASE), family) for name, family in names.items())


Kind = Literal["mapped", "adapts_by_name", "by_name"]
"""What trains a model: any engine, any engine but adapters with fully_shard alone, or fully_shard
alone."""


def model_at(path: str) -> tuple[Kind | None, str]:
    """What kind of model it is, None if nothing says it, and why a run refuses it, if it does, by
    its `config.json` on this machine, or else by its name."""
    directory = Path(local_directory(path))
    if (directory / "config.json").is_file():
        try:
            return _kind(read_architecture(directory, "fsdp").family), ""
        except ModelError as error:
            return None, str(error)
    name = path.partition("@")[0].rstrip("/").rpartition("/")[2].replace("_", "-")
    family = next((family for known, family in _names() if known.search(name)), "")
    if not family:
        return None, ""
    if family in FAMILIES or family in BY_NAME:
        return _kind(family), ""
    needs = f": it needs {REFUSED[family]}" if family in REFUSED else ""
    known_by = "by its name; its config.json is not here"
    return None, f"{path} is a {family} ({known_by}), which is not trained here{needs}"


def _kind(family: str) -> Kind:
    if family not in FAMILIES:
        return "by_name"
    table, dense = FAMILIES[family].table, FAMILIES[family].dense_table
    is_stacked = any(row.is_stacked for row in table.expert_rows)
    is_whole = table.uses("kv_rank") or table.uses("shared_ffn_size") or dense.rows or is_stacked
    return "adapts_by_name" if is_whole else "mapped"
