"""Row groups of a Parquet file: which are read, and how many are kept."""

import random

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.unit.data.conftest import damage_row_group, files, verl_row, write_jsonl, write_parquet
from verl_hpc.data import parquet as module
from verl_hpc.data.parquet import CACHED_ROW_GROUPS, ParquetRows
from verl_hpc.data.sources import open_source, read_problems
from verl_hpc.errors import DataError


@pytest.fixture
def cache():
    module._row_group.cache_clear()
    return module._row_group.cache_info


def test_opening_decodes_nothing_and_a_row_decodes_its_group_once(tmp_path, cache):
    rows = [verl_row(i) for i in range(30)]
    source = open_source(files(write_parquet(tmp_path / "a.parquet", rows, row_group_size=10)))
    assert cache().misses == 0
    assert [source[i].extra["index"] for i in (10, 19, 11)] == [10, 19, 11]
    assert (cache().misses, cache().currsize) == (1, 1)


def test_no_more_row_groups_are_kept_than_promised_over_all_files(tmp_path, cache):
    rows = [verl_row(i) for i in range(60)]
    parts = [(tmp_path / f"{start}.parquet", rows[start : start + 20]) for start in (0, 20, 40)]
    source = open_source(files(*(write_parquet(path, part) for path, part in parts)))
    for index in random.Random(0).sample(range(60), 60):
        assert source[index].extra["index"] == index
        assert cache().currsize <= CACHED_ROW_GROUPS


def test_a_batch_decodes_each_row_group_once(tmp_path, cache):
    rows = [verl_row(i) for i in range(60)]
    source = open_source(files(write_parquet(tmp_path / "a.parquet", rows, row_group_size=6)))
    read_problems(source, random.Random(0).sample(range(60), 60))
    assert cache().misses == 10


def test_only_columns_that_are_used_are_read(tmp_path):
    row = {**verl_row(0), "picture": b"x" * 1000}
    rows = ParquetRows(write_parquet(tmp_path / "a.parquet", [row]), ["prompt"], ["reward_model"])
    assert set(rows[0]) == {"prompt", "reward_model"}


def test_a_row_has_all_its_columns_where_they_are_asked_for(tmp_path):
    row = {**verl_row(0), "level": 3}
    rows = ParquetRows(write_parquet(tmp_path / "a.parquet", [row]), ["prompt"], [])
    assert rows.whole(0)["level"] == 3 and set(rows.whole(0)) == set(row)


@pytest.mark.parametrize("write", [write_parquet, write_jsonl])
def test_a_problem_reads_the_columns_of_its_row(tmp_path, write):
    ending = {write_parquet: "parquet", write_jsonl: "jsonl"}[write]
    rows = [{**verl_row(0), "level": level} for level in (0, 1, 10, 11)]
    paths = [write(tmp_path / f"{i}.{ending}", rows[2 * i : 2 * i + 2]) for i in (0, 1)]
    source = open_source(files(*paths))
    assert [source[i].columns()["level"] for i in range(4)] == [0, 1, 10, 11]


def test_a_missing_column_names_those_there_are(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [{"question": "1 + 1?", "answer": "2"}])
    with pytest.raises(DataError, match=r"no column 'prompt'; columns are question, answer"):
        open_source(files(path))
    named = files(path, prompt_key="task")
    with pytest.raises(DataError, match=r"no column 'task'; columns are question, answer"):
        open_source(named)


@pytest.mark.parametrize("damage", [lambda content: b"text", lambda content: content[:-20]])
def test_what_is_no_parquet_file_is_named(tmp_path, damage):
    path = write_parquet(tmp_path / "a.parquet", [verl_row(0)])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"a\.parquet: not a readable Parquet file"):
        open_source(files(path))


def test_a_damaged_page_is_named_by_its_rows(tmp_path, cache):
    path = write_parquet(tmp_path / "a.parquet", [verl_row(i) for i in range(20)], 10)
    damage_row_group(path, 1, 0)
    source = open_source(files(path))
    assert source[9].extra["index"] == 9
    with pytest.raises(DataError, match=r"a\.parquet rows 10 to 19: cannot be decoded"):
        source[12]


UNREADABLE = [
    (pa.timestamp("us"), 2**62),
    (pa.timestamp("us", tz="Mars/Crater"), 0),
    (pa.timestamp("ns"), 5),
    (pa.date32(), 2**31 - 1),
]


@pytest.mark.parametrize("kind, value", UNREADABLE)
def test_a_value_that_python_cannot_hold_is_named_by_its_row(tmp_path, cache, kind, value):
    path = tmp_path / "a.parquet"
    table = pa.table({"prompt": ["1?", "2?"], "answer": pa.array([None, value], kind)})
    parquet.write_table(table, path)
    source = open_source(files(path))
    with pytest.raises(DataError, match=r"a\.parquet row 1: a value cannot be read"):
        source[1]
    assert "row 1: a value cannot be read" in str(list(source.scan())[1])
    if value != 0:  # with a time zone that is unknown no row can be read
        assert source[0].prompt == next(source.scan()).prompt == "1?"
