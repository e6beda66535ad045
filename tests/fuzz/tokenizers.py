"""Tokenizers that are incomplete, damaged, or of other kinds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.fuzz.cases import Case, End, Place, damage_file, edit_json, replace_file, set_field


def _file(name: str, content: bytes | None, end: End = "error") -> Case:
    shown = b"missing" if content is None else content[:30]
    return Case(f"tokenizer: {name} {shown!r}", replace_file(f"model/{name}", content), end)


def _template(text: Any, end: End = "error") -> Case:
    """A chat template, and prompts that need it."""

    def change(place: Place) -> None:
        for file in place.model.glob("*.jinja"):
            file.unlink()
        edit_json(place.model / "tokenizer_config.json", chat_template=text)
        place.set("data.chat", "always")

    return Case(f"tokenizer: template {text!r:.60}", change, end)


def _fields(end: End = "error", **changes: Any) -> Case:
    def change(place: Place) -> None:
        edit_json(place.model / "tokenizer_config.json", **changes)

    return Case(f"tokenizer: {changes}", change, end)


def _inside(name: str, edit: Callable[[dict[str, Any]], object], end: End = "error") -> Case:
    def damage(data: bytes) -> bytes:
        values = json.loads(data)
        edit(values)
        return json.dumps(values).encode()

    return Case(f"tokenizer: {name}", damage_file("model/tokenizer.json", damage), end)


def _gap(values: dict[str, Any]) -> None:
    values["model"]["vocab"]["a"] = 5000


def _more_words(values: dict[str, Any]) -> None:
    words = values["model"]["vocab"]
    words |= {f"word{n}": len(words) + n for n in range(1000)}


def _no_chat(place: Place) -> None:
    for file in place.model.glob("*.jinja"):
        file.unlink()
    edit_json(place.model / "tokenizer_config.json", chat_template=...)
    place.set("data.chat", "always")


CASES = (
    *(_file("tokenizer.json", content) for content in (None, b"", b"{", b"[]", b"{}", b"\xff\xfe")),
    *(_file("tokenizer_config.json", content) for content in (None, b"{", b"[]")),
    _fields("either", eos_token=...),
    _fields(eos_token=5),
    _fields("either", eos_token="<|nowhere|>"),
    _fields("same or error", pad_token=None),
    _fields("same or error", tokenizer_class="NoSuchTokenizer"),
    _fields("same or error", model_max_length="x"),
    _fields("same or error", auto_map={"AutoTokenizer": ["evil.Evil", None]}),
    *map(
        _template, ("", "{% for", "{{ nothing.at.all }}", "{{ 1 / 0 }}", "{% include 'x' %}", 5, [])
    ),
    _template("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
    _template("{{ raise_exception('no') }}"),
    _template("{{ 'x' * 10000000 }}"),
    _template("{{ messages.__class__.__mro__ }}", "either"),
    Case("tokenizer: no template", _no_chat),
    _inside("no vocabulary", lambda v: v["model"].update(vocab={})),
    _inside("more words than the model", _more_words),
    _inside("an id far above the others", _gap),
    _inside("another model", lambda v: v["model"].update(type="NoSuch")),
    _inside("no model", lambda v: v.pop("model")),
    _inside("no splitting", lambda v: v.update(pre_tokenizer=None), "either"),
    Case("tokenizer: missing", set_field("model.tokenizer", "gone")),
    Case("tokenizer: a file", set_field("model.tokenizer", "reward.py")),
)
