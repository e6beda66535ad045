"""Older names of verl's keys, and the shorter ones that tutorials teach, as keys of today."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from verl_hpc.migration.row import same
from verl_hpc.migration.values import Refused

OWN = "verl_hpc."
"""Before a setting of ours that verl has no key for: `verl_hpc.reward.function=exact_match`."""
_ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class Tutorial:
    """What a tutorial's name means."""

    key: str
    """A key of today."""
    by: str = ""
    """The function that makes the key's value, of other keys perhaps."""
    says: str = ""
    implies: Mapping[str, Any] = field(default_factory=dict)
    """What else the name says."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Other keys, by the values of the name that mean them."""


@dataclass(frozen=True)
class Older:
    """The content of rows/legacy.toml."""

    renamed: Mapping[str, str]
    """Keys, and sections with all that is below them, that verl has renamed."""
    tutorials: Mapping[str, Tutorial]
    algorithms: Mapping[str, str]
    """Values of verl's key, by a tutorial's name of an algorithm."""
    defaults: Mapping[str, Any]
    """Keys that tutorials leave out."""
    veomni: Mapping[str, Any]
    """Defaults of verl's engine VeOmni."""


@cache
def older() -> Older:
    """Read the older names."""
    text = Path(__file__).with_name("rows").joinpath("legacy.toml").read_text("utf-8")
    found = tomllib.loads(text)
    for name, entry in found["tutorials"].items():
        fields = {"key": entry} if isinstance(entry, str) else entry
        found["tutorials"][name] = Tutorial(**fields)
    return Older(**found)


def _algorithm(_: str, value: Any, __: Mapping[str, Any]) -> Any:
    known = older().algorithms
    found = known.get(str(value).lower())
    if found is None and value in ("dapo", "dr_grpo", "prime"):
        raise Refused("algorithm", "is several settings here", "those of docs/algorithms.md")
    if found is None:
        near = "recipe (sft, dpo, kto, ...), or algorithm.advantage.name"
        raise Refused("algorithm", f"expected one of {', '.join(known)}", near)
    return found


def _batch(name: str, value: Any, given: Mapping[str, Any]) -> Any:
    gpus, nodes = given.get("trainer.n_gpus_per_node"), given.get("trainer.nnodes", 1)
    if not _are_counts(value, gpus, nodes):
        raise Refused(name, "needs engine.num_gpus, and both are whole numbers", "batch.size")
    return value * gpus * nodes


def _ranks(name: str, value: Any, given: Mapping[str, Any]) -> Any:
    ranks = given.get(f"{_ROLLOUT}.tensor_model_parallel_size", 1)
    if not _are_counts(value, ranks):
        raise Refused(name, "expected a whole number", "rollout.tensor_parallel")
    return value * ranks


def _are_counts(*numbers: Any) -> bool:
    return all(type(number) is int and number > 0 for number in numbers)


def _fsdp(name: str, value: Any, _: Mapping[str, Any]) -> Any:
    if value is not True:
        raise Refused(name, "expected true", "parallel.engine")
    return "fsdp"


def _neighbours(name: str, value: Any, _: Mapping[str, Any]) -> Any:
    found = value if isinstance(value, list) else [value]
    whole = bool(found) and all(type(rank) is int for rank in found)
    if not whole or found != list(range(found[0], found[0] + len(found))):
        near = older().tutorials[name].key.removeprefix(OWN)
        raise Refused(name, "expected neighbours, such as [0, 1]", near)
    return f"{found[0]}-{found[-1]}"


_MAKE: Mapping[str, Callable[[str, Any, Mapping[str, Any]], Any]] = {
    "algorithm": _algorithm,
    "batch": _batch,
    "ranks": _ranks,
    "fsdp": _fsdp,
    "neighbours": _neighbours,
}
"""Functions of a tutorial's name, its value, and what is given by keys of today."""


@dataclass
class Modern:
    """What is given, as keys of today."""

    given: Mapping[str, Any]
    """Keys and values as they were written."""
    found: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """The older name that a key was given by, if there is one."""
    refused: list[Refused] = field(default_factory=list)
    """Older names with values that say nothing, and two names of one key that differ."""

    def take(self, new: str, key: str, value: Any) -> None:
        """A value of a key that was given as `key`."""
        if new in self.found and not same(self.found[new], value):
            other = self.names.get(new, new)
            theirs = f"{other} = {self.given.get(other)}"
            why = f"= {self.given[key]}, but {theirs}, and both are {new}; give one"
            self.refused.append(Refused(key, why))
            return
        self.found[new] = value
        if new != key:
            self.names.setdefault(new, key)

    def compute(self, name: str, meant: Tutorial) -> None:
        """Put the key that a tutorial's name means in the name's place."""
        try:
            value = _MAKE[meant.by](name, self.found.pop(name), self.found)
        except Refused as one:
            self.refused.append(one)
            return
        self.take(meant.key, name, value)


def modern(given: Mapping[str, Any]) -> Modern:
    """Keys of today for the older ones among those that are given."""
    made, tutorials = Modern(given), older().tutorials
    for key, value in given.items():
        new = _renamed(key, value)
        if new == key or value is not None:  # or verl's default of a name that it has replaced
            made.take(new, key, value)
    if made.found.get("actor_rollout_ref.actor.strategy") == "veomni":
        made.found = {**older().veomni, **made.found}
    for name, meant in tutorials.items():
        if meant.by and name in made.found:
            made.compute(name, meant)
    said = [tutorials[name] for name in given if name in tutorials]
    for meant in said:
        for new, value in meant.implies.items():
            made.found.setdefault(new, value)
    if said:
        size = made.found.get("data.train_batch_size")
        mini_batch = {"actor_rollout_ref.actor.ppo_mini_batch_size": size}
        for key, value in {**older().defaults, **mini_batch}.items():
            if value is not None:
                made.found.setdefault(key, value)
    return made


def _renamed(key: str, value: Any) -> str:
    meant = older().tutorials.get(key)
    if meant is not None:
        return key if meant.by else meant.instead.get(str(value), meant.key)
    for old, new in older().renamed.items():
        if key == old or key.startswith(f"{old}."):
            return new + key[len(old) :]
    return key
