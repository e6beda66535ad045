"""A row of the table: a verl key, what becomes of it, and the models whose keys it may be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from verl_hpc.migration.values import Refused, Values

Fate = Literal["honoured", "agrees", "fixed", "any", "told", "refused"]
RANKS = "ranks"
"""In the place of a setting: how many processes are started."""


@dataclass
class Draft:
    """Our settings, as they come together."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Values by dotted name."""
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """verl's keys that a setting comes from."""
    notes: dict[str, str] = field(default_factory=dict)
    """What a reader should know about a key, by key."""
    ranks: int | None = None
    """Processes that the run is for, if it is said."""

    def put(self, name: str, value: Any, *keys: str) -> None:
        self.settings[name] = value
        self.origins[name] = keys

    def note(self, key: str, text: str) -> None:
        self.notes[key] = text


@dataclass(frozen=True)
class Row:
    """What becomes of one key, or of all keys of a pattern."""

    key: str
    """A key; or a pattern, in which `*` is one or more parts of a name."""
    fate: Fate
    """honoured: it decides a setting of ours. agrees: only what goes with the keys that decide the
    setting is taken, or what makes no difference. fixed: only values at which verl does what
    happens here are taken. any: all are taken, for none changes a number here. told: all are taken,
    or those of `also`, and a note says what happens here. refused: none is."""
    ours: tuple[str, ...] = ()
    """Settings that it decides, or that it agrees with."""
    says: str = ""
    """How it is converted, or why it is refused."""
    near: str = ""
    """What to use instead of a key or a value that is refused, in our terms; `none` where `says`
    tells why nothing serves."""
    by: str = ""
    """The function that converts keys that are honoured, or agree; several keys may share it."""
    also: tuple[Any, ...] = ()
    """Values of a fixed or told key that are taken besides verl's default."""
    words: Mapping[Any, Any] = field(default_factory=dict)
    """Our word for each of verl's; others are refused."""
    noted: Mapping[str, str] = field(default_factory=dict)
    """Notes of values that are honoured in another way than verl's."""
    other: str = ""
    """Another key, with which it must agree or goes."""
    choices: tuple[str, ...] = ()
    """Our words of the other key with which it counts, one for each setting or all for one."""
    otherwise: str = ""
    """Why another word, or the value with another choice, is refused."""
    until: str = ""
    """The last release of verl that had the key, if today's does not."""
    if_given: bool = False
    """Whether verl's default counts as nothing. It does where it decides no number, and ours is
    chosen for what is here."""

    @property
    def is_pattern(self) -> bool:
        return "*" in self.key

    @cached_property
    def expression(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.key).replace(r"\*", ".+"))

    def check(self, key: str, values: Values, draft: Draft) -> None:
        """Note what a reader should know of a value that is not verl's default.

        Raises:
            Refused: it cannot be honoured.
        """
        if self.fate == "refused":
            raise Refused(key, self.says, self.near)
        is_limited = self.fate == "fixed" or (self.fate == "told" and self.also)
        if is_limited and not self._is_taken(key, values):
            raise Refused(key, self.otherwise or self.says, self.near)
        if self.fate in ("any", "fixed", "told") and not same(values[key], values.default(key)):
            draft.note(key, "changes no number: " * (self.fate != "told") + self.says)
        if self.noted and (text := self.noted.get(values.word(key))):
            draft.note(key, text)

    def _is_taken(self, key: str, values: Values) -> bool:
        found = values[key]
        return any(same(found, value) for value in (values.default(key), *self.also))


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, 1 and 1.0 too, but not 1 and true."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


ACTOR, REF, CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"
FSDP = {ACTOR: f"{ACTOR}.fsdp_config", REF: f"{REF}.fsdp_config", CRITIC: "critic.fsdp"}
"""Sections of the FSDP form, by model."""
MODEL = {ACTOR: "actor_rollout_ref.model", REF: "actor_rollout_ref.model", CRITIC: "critic.model"}
ROLE = {ACTOR: "", REF: "roles.reference.", CRITIC: "roles.critic."}
ROLLOUT = "actor_rollout_ref.rollout"
PROFILERS = tuple(f"{section}.profiler" for section in (ACTOR, REF, CRITIC, ROLLOUT))

_MODELS = {"actor": ACTOR, "ref": REF, "critic": CRITIC}
PLACES: Mapping[str, Mapping[str, str]] = {
    "model": _MODELS,
    "fsdp": {name: FSDP[model] for name, model in _MODELS.items()},
    "weights": {"actor": MODEL[ACTOR], "critic": MODEL[CRITIC]},
    "profiler": dict(zip((*_MODELS, "rollout"), PROFILERS, strict=True)),
    "role": {name: ROLE[model] for name, model in _MODELS.items()},
    "dtype": {name: f"{ROLE[model] or 'model.'}dtype" for name, model in _MODELS.items()},
}
"""What a name in angle brackets in the table is for each model."""


def has_critic(values: Values) -> bool:
    """Whether the run trains a critic."""
    return values["algorithm.adv_estimator"] == "gae"


def has_reference(values: Values) -> bool:
    """Whether the run has a reference."""
    return values["algorithm.use_kl_in_reward"] is True or values[f"{ACTOR}.use_kl_loss"] is True


def is_there(values: Values, model: str) -> bool:
    """Whether the run has a model."""
    return {ACTOR: True, REF: has_reference(values), CRITIC: has_critic(values)}[model]
