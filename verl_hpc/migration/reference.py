"""verl's keys and their defaults, as its generated reference configurations list them.

`python -m benchmarks.verl_keys` makes `keys.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

Form = Literal["fsdp", "megatron"]
FORMS: tuple[Form, Form] = ("fsdp", "megatron")
"""verl composes one of two trees of keys, by model_engine."""
MISSING = "???"
"""The default of a key that has none."""


@dataclass(frozen=True)
class Reference:
    """What verl knows."""

    commit: str
    """Commit of verl's repository."""
    forms: Mapping[str, Mapping[str, Any]]
    """Defaults by key, of each form; interpolations as they are written."""

    def __contains__(self, key: str) -> bool:
        return any(key in keys for keys in self.forms.values())

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of both forms."""
        return tuple(dict.fromkeys(key for keys in self.forms.values() for key in keys))


@cache
def reference() -> Reference:
    """The keys of verl 0.9, and those that its main branch has added since."""
    found = json.loads(Path(__file__).with_name("keys.json").read_text(encoding="utf-8"))
    shared = found["shared"]
    return Reference(found["commit"], {form: shared | found[form] for form in FORMS})


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of a tree; an empty section is a value."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        elif name != "_target_":  # names verl's own class of a section
            yield f"{prefix}{name}", value
