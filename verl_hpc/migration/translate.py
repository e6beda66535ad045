"""From verl's keys to a run of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from verl_hpc.config.explain import shown
from verl_hpc.config.foreign import is_foreign
from verl_hpc.config.load import parse_config, parse_overridden
from verl_hpc.config.replaced import drop_replaced
from verl_hpc.config.run import RunConfig
from verl_hpc.config.tree import put, read_tree
from verl_hpc.errors import ConfigError
from verl_hpc.migration.convert.plain import converters
from verl_hpc.migration.legacy import OWN, modern
from verl_hpc.migration.reference import FORMS, Form, reference
from verl_hpc.migration.row import Draft, Row, same
from verl_hpc.migration.table import find, near
from verl_hpc.migration.values import Refused, Values
from verl_hpc.migration.words import Overrides, of_tree, read_words


@dataclass
class Migration:
    """What verl's keys come to."""

    settings: dict[str, Any]
    """Ours, by dotted name; those that are our defaults are left out."""
    origins: Mapping[str, tuple[str, ...]]
    """verl's keys, or what stands above them, by setting."""
    notes: Mapping[str, str]
    """What a reader should know of a key that was converted."""
    refused: list[Refused] = field(default_factory=list)
    ranks: int | None = None
    """Processes that the run is for, if verl's keys say how many."""

    def tree(self) -> dict[str, Any]:
        """The settings, as a run's YAML file has them."""
        return _nested(self.settings)

    def why_refused(self) -> list[tuple[str, str]]:
        """Keys that are refused, and why."""
        return [(one.key, one.why) for one in self.refused]

    def config(self) -> RunConfig:
        """The run.

        Raises:
            ConfigError: keys that cannot be honoured, or settings that do not go together.
        """
        if self.refused:
            lines = [f"  {line}" for line in told_together(self.why_refused())]
            raise ConfigError("\n".join(["verl's keys that cannot be honoured:", *lines]))
        try:
            return parse_config(self.tree(), "verl's keys")
        except ConfigError as error:
            raise ConfigError(f"{error}{self._whence(str(error))}") from None

    def _whence(self, text: str) -> str:
        """Where the settings that a message names come from."""
        found = [
            f"\n  {name} comes from {', '.join(keys)}"
            for name, keys in self.origins.items()
            if keys and re.search(rf"(?<![\w.]){re.escape(name)}( = |: )", text)
        ]
        return "".join(found[:5])


def told_together(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """Keys and what is said of each, those of which the same is said in one text."""
    keys: dict[str, list[str]] = {}
    for key, reason in reasons:
        keys.setdefault(reason, []).append(key)
    return [f"{', '.join(names)}: {reason}" for reason, names in keys.items()]


def migrate(words: Sequence[str], beside: Path | None = None) -> Migration:
    """Translate a command line: the words of `main_ppo`, from a script in a directory.

    Raises:
        ConfigError: a word is no override.
    """
    return translate(read_words(words, beside))


def migrate_file(path: Path, words: Sequence[str] = ()) -> Migration:
    """Translate a YAML file with verl's or a tutorial's keys, and overrides over it.

    Raises:
        ConfigError: as `migrate`, or the file cannot be read.
    """
    return migrate_tree(read_tree(path), words)


def migrate_tree(tree: Mapping[str, Any], words: Sequence[str] = ()) -> Migration:
    """Translate the content of such a file, and overrides over it."""
    return translate(read_words(words).over(of_tree(tree)))


def load_run(path: str | Path, words: Sequence[str] = ()) -> RunConfig | Migration:
    """A run's file, with overrides in the file's own language.

    Raises:
        ConfigError: as `load_config`, or as `migrate_file`.
    """
    tree = read_tree(Path(path), RunConfig)
    foreign = is_foreign(tree)
    return migrate_tree(tree, words) if foreign else parse_overridden(tree, words, str(path))


def translate(spoken: Overrides) -> Migration:
    """Look up every key, and let the rows of the table make our settings."""
    now = modern(spoken.given)
    form = _form(spoken.form, now.found)
    draft, refusals = Draft(), list(spoken.refused)
    given, names = dict(now.found), now.names
    own = {k.removeprefix(OWN): given.pop(k) for k in list(given) if k.startswith(OWN)}
    values = Values(given, form, own)
    for key in given:
        try:
            _row(key, values).check(key, values, draft)
        except Refused as one:
            refusals.append(one)
    draft.put("recipe", "rl")
    for convert in converters():
        try:
            convert(values, draft)
        except Refused as one:
            if all(one.key != other.key for other in refusals):
                refusals.append(one)
    if any(name.startswith("placement.") for name in own):
        draft.settings.pop("parallel.data_parallel", None)  # roles have ranks of their own
    replaced = drop_replaced(_nested(draft.settings), _nested(own), RunConfig, "verl's keys")
    # A value in the place of a section, such as null, leaves nothing of it.
    below = tuple(f"{name}." for name in (*replaced, *own))
    draft.settings = {k: v for k, v in draft.settings.items() if not f"{k}.".startswith(below)}
    for name, value in own.items():
        draft.put(name, value, f"{OWN}{name}")
    for refusal in refusals:
        refusal.key = names.get(refusal.key, refusal.key)
    told_already = {one.key for one in now.refused}
    refusals = [*now.refused, *(one for one in refusals if one.key not in told_already)]
    refused = {one.key for one in refusals}
    notes = {names.get(key, key): text for key, text in draft.notes.items()}
    notes = {key: text for key, text in notes.items() if key not in refused}
    return Migration(_trimmed(draft.settings), draft.origins, notes, refusals, draft.ranks)


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted name as a run's YAML file has them."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        put(found, name, value)
    return found


def _form(said: str | None, given: Mapping[str, Any]) -> Form:
    """Find which of verl's two trees of keys the given ones belong to."""
    strategy = given.get("actor_rollout_ref.actor.strategy")
    if said is None and (strategy == "megatron" or any(".megatron." in key for key in given)):
        return "megatron"
    return "megatron" if said == "megatron" else "fsdp"


def _row(key: str, values: Values) -> Row:
    """The row of a key.

    Raises:
        Refused: verl has no such key, or none with the engine that is chosen; or true or false is
            given where verl's default is a number, which Python would take for 1 or 0.
    """
    row, forms, form = find(key), reference().forms, values.form
    if row is None:
        raise Refused(key, f"verl has no such key; {near(key)}")
    other = next(one for one in FORMS if one != form)
    if key in forms[other] and key not in forms[form]:
        raise Refused(key, f"verl reads it with {other} alone, and this is {form}", _CHOOSE)
    value = values[key]
    if isinstance(value, bool) and type(values.default(key)) in (int, float):
        raise Refused(key, f"= {shown(value)}; expected a number")
    return row


_CHOOSE = "model_engine=megatron, or leave the other engine's keys out"


def _trimmed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that are at our default.

    A section whose `name` or `kind` chooses another variant than the default keeps all of its
    settings: each variant has defaults of its own.
    """
    kept = {n: v for n, v in settings.items() if n in _NEEDED or not same(_ours(n), v)}
    tags = [name.rpartition(".") for name in kept]
    variants = tuple(f"{section}." for section, _, field in tags if field in ("name", "kind"))
    return {k: v for k, v in settings.items() if k in kept or k.startswith(variants)}


_NEEDED = ("distillation.name",)
"""Without it the section says nothing."""


@cache
def _ours(name: str) -> Any:
    """Our default; of a name that has none, what no value is."""
    section: Any = RunConfig
    default: Any = None
    for part in name.split("."):
        field = section.model_fields.get(part) if _is_section(section) else None
        if field is None:
            return PydanticUndefined
        default = field.default
        section = type(default) if isinstance(default, BaseModel) else field.annotation
    return default


def _is_section(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, BaseModel)
