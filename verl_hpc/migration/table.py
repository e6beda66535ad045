"""The table: what becomes of each key of verl, as the files in rows/ have it.

A file has tables of rows, named by the section of verl that their keys are below. A row is a key
and a text, our setting of the same value, or some of these fields:

- `ours`: settings that the key decides; `agrees`: settings that it must agree with;
- `fixed`, `any`, `refused`: why verl's default alone is taken, any value is, or none is; `told`:
  what happens here, whatever the value; `near`: what to use instead; `also`: values that are taken
  besides the default; `until`: the last release of verl that had the key;
- `by`: the conversion, one of convert/plain.py, or a function of another module of convert/ that
  reads several keys; `words`: the table of our words for verl's; `noted`: that of notes by value;
  `other` and `choices`: a key that it must agree with, and our words of that key with which it
  counts; `otherwise`: why another value is refused; `if_given`: verl's default counts as nothing;
  `says`: how it is converted.

A name in angle brackets is one of PLACES: such a row is one of each model, or of the models in
`of`. `of` and `by` of a table are those of its rows. `@name` is a reason in a table `reasons`, with
what to use instead if that is the same. In a table of words, and in `also`, `null` is null. The
tables `notes` have sentences for functions.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from verl_hpc.migration.legacy import older
from verl_hpc.migration.reference import reference
from verl_hpc.migration.row import PLACES, Fate, Row

_FOLDER = Path(__file__).with_name("rows")
_FILES = (
    *("run", "model", "engine", "algorithm", "data", "rollout", "reward", "other"),
    *("earlier", "script"),
)
_FATES: Mapping[str, Fate] = {
    "ours": "honoured",
    "agrees": "agrees",
    "fixed": "fixed",
    "any": "any",
    "told": "told",
    "refused": "refused",
}
_PLACE = re.compile(r"<(\w+)>")
COMPOSED = ("model_engine",)
"""The group of Hydra that decides between two trees of keys."""


@cache
def rows() -> tuple[Row, ...]:
    """All rows, in the order in which they are read: what comes later knows what came before."""
    shared, tables = _read()
    return tuple(
        _row(key, fields, model, shared)
        for section, entries in tables
        for key, fields, model in _section(section, entries)
    )


def note(name: str, /, **values: Any) -> str:
    """A sentence of the table `notes`, with values in the places that it has for them."""
    text: str = _read()[0]["notes"][name]
    return text.format(**values)


def notes(prefix: str) -> dict[str, str]:
    """Sentences by the rest of their names."""
    texts = _read()[0]["notes"].items()
    return {name.removeprefix(prefix): text for name, text in texts if name.startswith(prefix)}


@cache
def _read() -> tuple[dict[str, dict[str, Any]], list[tuple[str, dict[str, Any]]]]:
    """What the files share by name, and their tables of rows."""
    shared: dict[str, dict[str, Any]] = {"reasons": {}, "words": {}, "notes": {}}
    tables = []
    for file in _FILES:
        text = (_FOLDER / f"{file}.toml").read_text("utf-8")
        for name, entries in tomllib.loads(text).items():
            if name in shared:
                shared[name] |= entries
            else:
                tables.append((name, entries))
    return shared, tables


def _section(section: str, entries: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Keys, the fields of their rows, and the models that they are of."""
    place = _PLACE.match(section)
    models, by = entries.get("of"), entries.get("by", "")
    for model in PLACES[place[1]] if place else ("",):
        for name, entry in entries.items():
            if name in ("of", "by"):
                continue
            fields = {"ours": entry} if isinstance(entry, str) else dict(entry)
            if "ours" in fields:
                fields = {"by": by} | fields
            of = fields.pop("of", models)
            if of is None or model in of.split():
                yield f"{section}.{name}".lstrip("."), fields, model


def _row(
    key: str, fields: dict[str, Any], model: str, shared: Mapping[str, Mapping[str, Any]]
) -> Row:
    (kind,) = fields.keys() & _FATES.keys()
    if kind in ("ours", "agrees"):
        fields["ours"] = tuple(_filled(fields.pop(kind), model).split())
    else:
        fields["says"] = fields.pop(kind)
    for name in ("says", "otherwise"):
        if fields.get(name, "").startswith("@"):
            fields[name], *near = shared["reasons"][fields[name][1:]]
            if near and kind in ("fixed", "refused"):
                fields.setdefault("near", near[0])
    if "near" in fields:
        fields["near"] = _filled(fields["near"], model)
    if "words" in fields:
        words = shared["words"][fields["words"]]
        fields["words"] = {_plain(theirs): _plain(ours) for theirs, ours in words.items()}
    if "noted" in fields:
        fields["noted"] = shared["words"][fields["noted"]]
    fields["also"] = tuple(map(_plain, fields.get("also", ())))
    fields["choices"] = tuple(fields.get("choices", "").split())
    return Row(_filled(key, model), _FATES[kind], **fields)


def _filled(text: str, model: str) -> str:
    return _PLACE.sub(lambda place: PLACES[place[1]][model], text)


def _plain(word: Any) -> Any:
    return None if word == "null" else word


@cache
def _by_key() -> dict[str, Row]:
    return {row.key: row for row in rows() if not row.is_pattern}


@cache
def _patterns() -> tuple[Row, ...]:
    """The most particular first."""
    return tuple(sorted((r for r in rows() if r.is_pattern), key=lambda row: -len(row.key)))


def find(key: str) -> Row | None:
    """The row of a key; None if verl does not know it."""
    if key in _by_key():
        return _by_key()[key]
    return next((row for row in _patterns() if row.expression.fullmatch(key)), None)


def known(key: str) -> Row:
    """The row of a key that has one."""
    row = find(key)
    assert row is not None, key
    return row


def near(key: str) -> str:
    """Names that a misspelt key may mean, as a question."""
    names = dict.fromkeys([*reference().keys, *_by_key(), *older().tutorials, *older().renamed])
    last = key.rpartition(".")[2]
    if last in COMPOSED:
        return f"did you mean {last}, at the top?"
    alike = [name for name in names if name.endswith(f".{key}")][:3]
    same_last = [n for n in names if n.rpartition(".")[2] == last]
    alike = alike or difflib.get_close_matches(key[:120], same_last, n=3, cutoff=0.6)
    alike = alike or difflib.get_close_matches(key[:120], names, n=3, cutoff=0.75)
    alike = alike or same_last[:3]
    alike = alike or difflib.get_close_matches(key[:120], names, n=3, cutoff=0.5)
    if not alike:
        return "`python -m verl_hpc migrate --keys` lists those that are known"
    return f"did you mean {' or '.join(alike)}?"
