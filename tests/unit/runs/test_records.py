"""Records of a run: what is written is read, and what is no record is nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from verl_hpc.runs.records import parse_record, read_record, write_record


@dataclass(frozen=True)
class Part:
    name: str
    share: float = 0.0


@dataclass(frozen=True)
class Whole:
    count: int
    job: str | None
    parts: tuple[Part, ...] = ()
    by_name: Mapping[str, Part] = field(default_factory=dict)
    pair: tuple[str, int] = ("", 0)


WHOLE = Whole(3, None, (Part("a", 0.5), Part("b")), {"c": Part("c", 1.0)}, ("d", 2))


def test_what_is_written_is_read(tmp_path):
    write_record(tmp_path / "record.json", WHOLE)
    assert read_record(tmp_path / "record.json", Whole) == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_a_list_has_the_fields_in_their_order_and_what_a_later_version_adds_is_left_out():
    listed = '[3, "4711", [["a", 1]], {}, ["d", 2]]'
    assert parse_record(listed, Whole) == Whole(3, "4711", (Part("a", 1.0),), {}, ("d", 2))
    assert parse_record('{"count": 3, "job": null, "more": 1}', Whole) == Whole(3, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"count": "3"},
        {"count": 1.5},
        {"job": 4},
        {"parts": None},
        {"parts": [{}]},
        {"parts": [["a"]]},
        {"by_name": []},
        {"pair": ["d"]},
    ],
)
def test_what_is_no_record_is_nothing(tmp_path, changes):
    path = tmp_path / "record.json"
    write_record(path, WHOLE)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert read_record(path, Whole) is None
    with pytest.raises(ValueError):
        parse_record(path.read_text(), Whole)


def test_what_is_torn_or_not_there_is_nothing(tmp_path):
    path = tmp_path / "record.json"
    assert read_record(path, Whole) is None
    for text in (b"", b'{"count": 1, "jo', b"null", b"3", b"\0" * 40, b"\xff", b"[" * 100_000):
        path.write_bytes(text)
        assert read_record(path, Whole) is None, text[:20]
