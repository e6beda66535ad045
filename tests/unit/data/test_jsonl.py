"""The index of a JSONL file."""

import pytest

from verl_hpc.data.row_files import JsonlRows
from verl_hpc.errors import DataError


def written(tmp_path, content: bytes) -> JsonlRows:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    return JsonlRows(path)


def test_rows_are_found_in_any_order_past_blank_lines_and_without_a_last_newline(tmp_path):
    rows = written(tmp_path, '{"a": 1}\n\n  \n{"a": "zwölf"}\r\n{"a": 3}'.encode())
    assert (len(rows), [rows[i]["a"] for i in (2, 0, 1)]) == (3, [3, 1, "zwölf"])


def test_the_index_takes_eight_bytes_a_row(tmp_path):
    rows = written(tmp_path, b'{"a": 1}\n' * 1000)
    assert rows._starts.itemsize * len(rows._starts) == 8000


MALFORMED = [
    (b'{"a": 1', r"rows\.jsonl line 4: not JSON \(Expecting ',' delimiter"),
    (b'{"a": "\xff"}', r"rows\.jsonl line 4: not JSON \('utf-8' codec"),
    (b"[1, 2]", r"rows\.jsonl line 4: expected an object with a field per column, found list"),
]


@pytest.mark.parametrize(("line", "message"), MALFORMED)
def test_a_malformed_line_is_named_by_file_and_number(tmp_path, line, message):
    rows = written(tmp_path, b'{"a": 1}\n\n{"a": 2}\n' + line + b"\n")
    assert rows[1] == {"a": 2}
    with pytest.raises(DataError, match=message):
        rows[2]


def test_endless_nesting_is_named_by_its_line(tmp_path):
    deep = b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    rows = written(tmp_path, b'{"a": 1}\n' + deep + b"\n")
    with pytest.raises(DataError, match=r"rows\.jsonl line 2: not JSON \(maximum recursion"):
        rows[1]
