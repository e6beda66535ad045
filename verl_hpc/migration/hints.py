"""What a setting that does not exist is called here, where verl has it by that name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from verl_hpc.config.foreign import MIGRATE
from verl_hpc.migration.legacy import older
from verl_hpc.migration.reference import reference
from verl_hpc.migration.row import RANKS, Row
from verl_hpc.migration.table import find, known

_UNKNOWN = re.compile(r"(?P<name>[\w.]+): no such setting; (?P<near>.*)")
_WORDS = {
    "algorithm.loss.name": "actor_rollout_ref.actor.policy_loss.loss_mode",
    "checkpoint.resume": "trainer.resume_mode",
    "algorithm.advantage.name": "algorithm.adv_estimator",
    "algorithm.kl.estimator": "algorithm.kl_penalty",
}
"""verl's keys whose words have another meaning or name here, by our setting."""
_REFUSED_VALUE = re.compile(rf"(?P<name>{'|'.join(_WORDS)}) = '(?P<value>\w+\+?)': (?!verl's )")
_MOST = 3


def with_verls_names(message: str) -> str:
    """An error about settings, in which those that verl has say what they are here.

    Args:
        message: with lines such as `rollout.n: no such setting; known: ...`, or
            `algorithm.loss.name = 'geo_mean': must be one of ...`.
    """
    return _REFUSED_VALUE.sub(_with_verls_value, _UNKNOWN.sub(_explained, message))


def _with_verls_value(found: re.Match[str]) -> str:
    value = found["value"]
    ours = known(_WORDS[found["name"]]).words.get(value)
    if ours == "dppo":
        ours = f"dppo with divergence: {value.removeprefix('dppo_')}"
    return found[0] if ours in (None, value) else f"{found[0]}verl's {value} is {ours} here; "


def _explained(found: re.Match[str]) -> str:
    name = found["name"]
    keys = _keys_of(name.split("."))
    if keys:
        return f"{name}: no such setting; {_told(keys)}"
    if any(f".{name}." in f".{key}" for key in _known()):
        says = f"`{MIGRATE} --keys {name}` lists what the keys below verl's become here"
        near = "" if found["near"].startswith("known: ") else f"{found['near']} "
        return f"{name}: no such setting; {near}{says}"
    return found[0]


def _told(keys: Sequence[str]) -> str:
    """What keys of verl's, which a name may mean, are here."""
    rows = {key: row for key in keys if (row := _row(key)) is not None}
    ours = dict.fromkeys(_ours(row) for row in rows.values() if row.ours)
    if ours:
        first = next(key for key, row in rows.items() if row.ours)
        return f"verl's {first} is {' or '.join(list(ours)[:_MOST])} here"
    return f"a key of verl's; `{MIGRATE} --keys {keys[0]}` says what becomes of it here"


def _row(key: str) -> Row | None:
    return find(older().renamed.get(key, key))


def _ours(row: Row) -> str:
    if row.ours[0] == RANKS:
        return "the number of ranks that are started"
    return " and ".join(name for name in row.ours[:_MOST])


def _known() -> Iterator[str]:
    yield from reference().keys
    yield from older().renamed


def _keys_of(parts: Sequence[str]) -> list[str]:
    """verl's keys that end with a name; or of those that are settings here the ones that have its
    parts in their order and end as it does, or just end so if all of them are one setting."""
    same_last = [key for key in _known() if key.rpartition(".")[2] == parts[-1]]
    whole = ".".join(parts)
    named = [key for key in same_last if key == whole or key.endswith(f".{whole}")]
    if named:
        return named
    settings = {key: row.ours for key in same_last if (row := _row(key)) is not None and row.ours}
    named = [key for key in settings if _is_part(parts, key.split("."))]
    section = ".".join(parts[:-1])
    named = named or [k for k, ours in settings.items() if _is_of(section, ours)]
    return named or (list(settings) if len(set(settings.values())) == 1 else [])


def _is_of(section: str, settings: Sequence[str]) -> bool:
    return bool(section) and any(name.rpartition(".")[0] == section for name in settings)


def _is_part(parts: Sequence[str], of: Sequence[str]) -> bool:
    rest = iter(of)
    return all(part in rest for part in parts)
