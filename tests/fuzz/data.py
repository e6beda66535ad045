"""Data sets that are missing, damaged, or of other kinds."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tests.fuzz.cases import PROBLEMS, Case, End, Place, replace_file, rows, set_field


def _first(**changes: Any) -> bytes:
    return rows(PROBLEMS[0] | changes, *PROBLEMS[1:])


def _last(**changes: Any) -> bytes:
    return rows(*PROBLEMS[1:], PROBLEMS[0] | changes)


_JSONL: dict[str, tuple[bytes, End]] = {
    "empty": (b"", "error"),
    "blank lines": (b"\n\n \n", "error"),
    "blank lines between": (rows(*PROBLEMS).replace(b"\n", b"\n\n"), "same"),
    "one row": (rows(PROBLEMS[0]), "either"),
    "no newline at the end": (rows(*PROBLEMS)[:-1], "same"),
    "carriage returns": (rows(*PROBLEMS).replace(b"\n", b"\r\n"), "same"),
    "a byte order mark": (b"\xef\xbb\xbf" + rows(*PROBLEMS), "same or error"),
    "bytes": (bytes(range(256)) * 8, "error"),
    "zeros": (bytes(4096), "error"),
    "a list": (rows([1]), "error"),
    "a text": (rows("x"), "error"),
    "null": (rows(None), "error"),
    "cut": (rows(*PROBLEMS)[:-20], "error"),
    "no JSON": (b"prompt: x\n", "error"),
    "deep brackets": (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "error"),
    "a huge number": (b'{"prompt": ' + b"9" * 5000 + b"}\n", "error"),
    "not UTF-8": (b'{"prompt": "\xff\xfe"}\n', "error"),
    "half a character": (b'{"prompt": "\\ud800"}\n', "error"),
    "no prompt": (rows({"question": "x"}), "error"),
    "an empty object": (rows({}), "error"),
    "prompt null": (_first(prompt=None), "error"),
    "prompt empty": (_first(prompt=""), "error"),
    "prompt a number": (_first(prompt=5), "error"),
    "prompt a bool": (_first(prompt=True), "error"),
    "prompt an object": (_first(prompt={"a": 1}), "error"),
    "prompt an empty list": (_first(prompt=[]), "error"),
    "prompt a list of texts": (_first(prompt=["x"]), "error"),
    "a message without role": (_first(prompt=[{"content": "x"}]), "error"),
    "a message with a number": (_first(prompt=[{"role": "user", "content": 5}]), "error"),
    "a message of parts": (_first(prompt=[{"role": "user", "content": [{"text": "x"}]}]), "error"),
    "an unknown role": (_first(prompt=[{"role": "x", "content": "y"}]), "either"),
    "a prompt of 20 MB": (_first(prompt="x" * 20_000_000), "error"),
    "a prompt of one character": (_first(prompt="x"), "either"),
    "a prompt with NUL": (_first(prompt="a\0b"), "either"),
    "a prompt of special tokens": (_first(prompt="<|endoftext|>" * 20), "either"),
    "right to left": (_first(prompt="\u202e\u0627\u0644"), "either"),
    "emoji": (_first(prompt="\U0001f600" * 5), "either"),
    "reward_model a text": (_first(reward_model="x"), "error"),
    "reward_model a list": (_first(reward_model=[1]), "error"),
    "reward_model null": (_first(reward_model=None), "same or error"),
    "extra_info a text": (_first(extra_info="x"), "error"),
    "extra_info null": (_first(extra_info=None), "same or error"),
    "data_source a number": (_first(data_source=5), "same or error"),
    "data_source a list": (_first(data_source=[5]), "same or error"),
    "data_source null": (_first(data_source=None), "same or error"),
    "ground_truth an object": (_first(reward_model={"ground_truth": {"a": [1]}}), "same or error"),
    "the last row a number": (_last(prompt=5), "error"),
    "the last row half a character": (rows(*PROBLEMS[1:]) + b'{"prompt": "\\ud800"}\n', "error"),
    "the last row no JSON": (rows(*PROBLEMS) + b"{\n", "error"),
    "a name twice": (b'{"prompt": 5, "prompt": "x"}\n', "either"),
    "NaN": (b'{"prompt": NaN}\n', "error"),
    "more columns": (rows(*(row | {"more": [1, {"a": None}]} for row in PROBLEMS)), "same"),
}


def _parquet(name: str, damage: Callable[[bytes], bytes], end: End = "error") -> Case:
    def change(place: Place) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        file = place.directory / "problems.parquet"
        parquet.write_table(pa.Table.from_pylist(PROBLEMS), file, compression="snappy")
        file.write_bytes(damage(file.read_bytes()))
        place.set("data.train.paths", ["problems.parquet"])

    return Case(f"parquet {name}", change, end)


def _middle(data: bytes, patch: bytes) -> bytes:
    return data[:40] + patch + data[40 + len(patch) :]


def _place(name: str, change: Callable[[Place], None], end: End = "error") -> Case:
    return Case(f"data {name}", change, end)


def _pipe(place: Place) -> None:
    os.mkfifo(place.directory / "pipe.jsonl")
    place.set("data.train.paths", ["pipe.jsonl"])


def _loop(place: Place) -> None:
    (place.directory / "loop.jsonl").symlink_to("loop.jsonl")
    place.set("data.train.paths", ["loop.jsonl"])


def _paths(*paths: str) -> Callable[[Place], None]:
    return set_field("data.train.paths", list(paths))


def _gym(**changes: Any) -> Callable[[Place], None]:
    tasks = {"kind": "reasoning_gym", "task": "chain_sum", "size": 20}
    return set_field("data.train", tasks | changes)


CASES = (
    *(
        Case(f"jsonl {name}", replace_file("problems.jsonl", content), end)
        for name, (content, end) in _JSONL.items()
    ),
    _parquet("whole", bytes, "same"),
    _parquet("empty", lambda data: b""),
    _parquet("cut", lambda data: data[:-100]),
    _parquet("half", lambda data: data[: len(data) // 2]),
    _parquet("damaged page", lambda data: _middle(data, b"\xff" * 60)),
    _parquet("zeroed page", lambda data: _middle(data, bytes(60))),
    _parquet("damaged footer", lambda data: data[:-60] + b"\xff" * 40 + data[-20:]),
    _parquet("random", lambda data: bytes(range(256)) * 10),
    _place("no such file", _paths("gone.jsonl")),
    _place("a directory", _paths("model")),
    _place("another ending", _paths("reward.py")),
    _place("a good file and a missing one", _paths("problems.jsonl", "gone.jsonl")),
    _place("a long name", _paths("x" * 5000 + ".jsonl")),
    _place("a device", _paths("/dev/zero")),
    _place("a pipe", _pipe),
    _place("a link to itself", _loop),
    _place("the same file twice", _paths("problems.jsonl", "problems.jsonl"), "same or error"),
    _place("another column", set_field("data.train.prompt_key", "question")),
    _place("a field of a text", set_field("data.train.prompt_key", "prompt.x")),
    _place("an empty column", set_field("data.train.prompt_key", "")),
    _place("a missing answer", set_field("data.train.answer_key", "answer")),
    _place("more rows than there are", set_field("data.train.limit", 10**9), "same"),
    _place("an unknown task", _gym(task="chain_sun")),
    _place("an unknown option", _gym(options={"x": 1})),
    _place("an option of another type", _gym(options={"min_terms": "x"})),
    _place("an impossible option", _gym(options={"min_terms": 9, "max_terms": 2})),
    _place("a size beyond counting", _gym(size=10**30)),
    _place("an option that is a list", _gym(options={"min_terms": [1]})),
)
