"""Recognise files with verl's keys, or those of tutorials about verl."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

SECTIONS = ("actor_rollout_ref", "trainer", "engine", "custom_reward_function", "reward_model")
"""Top-level keys of verl's files that ours never have."""
MIGRATE = "python -m verl_hpc migrate"
NEEDED = "recipe"
"""Top-level key of all our files and of none of verl's."""
_MARKS = ("pretrain_model_path", "train_files", "train_path", "batch_size_per_gpu")


def is_foreign(tree: Mapping[str, Any]) -> bool:
    """Whether a file has verl's keys and not ours."""
    if NEEDED in tree:
        return False
    if isinstance(tree.get("algorithm"), str):  # a section in ours
        return True
    return any(section in tree for section in SECTIONS) or not set(_names(tree)).isdisjoint(_MARKS)


def _names(tree: Mapping[str, Any]) -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _names(value)
        else:
            yield str(name).rpartition(".")[2]
