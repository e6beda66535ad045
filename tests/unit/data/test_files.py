"""Files with verl's columns: what is read, in which order, and what is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.data.conftest import files, verl_row, write_jsonl, write_parquet
from tests.unit.data.shapes import said
from verl_hpc.data.problem import Problem
from verl_hpc.data.row_files import JsonlRows
from verl_hpc.data.sources import open_source, read_problems
from verl_hpc.errors import DataError


def test_a_row_of_verl_becomes_a_problem(tmp_path):
    source = open_source(files(write_jsonl(tmp_path / "a.jsonl", [verl_row(0), verl_row(1)])))
    assert source[1] == Problem(
        index=1,
        prompt=[{"role": "user", "content": "1 + 1?"}],
        data_source="openai/gsm8k",
        ground_truth="2",
        extra={"split": "train", "index": 1, "answer": "#### 2"},
        answer=None,
    )


def test_parquet_and_jsonl_give_the_same_problems(tmp_path):
    rows = [verl_row(i) for i in range(10)]
    from_parquet = open_source(files(write_parquet(tmp_path / "a.parquet", rows)))
    from_jsonl = open_source(files(write_jsonl(tmp_path / "a.jsonl", rows)))
    assert list(from_parquet) == list(from_jsonl)


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=4).filter(any),
    limit=st.none() | st.integers(1, 30),
    row_group_size=st.integers(1, 4),
    data=st.data(),
)
def test_several_files_are_one_data_set_in_order(
    tmp_path_factory, sizes, limit, row_group_size, data
):
    folder = tmp_path_factory.mktemp("files")
    rows = iter(map(verl_row, range(sum(sizes))))
    paths = []
    for number, size in enumerate(sizes):
        part = [next(rows) for _ in range(size)]
        # An empty Parquet file would have no columns to tell.
        if part and data.draw(st.booleans()):
            paths.append(write_parquet(folder / f"{number}.parquet", part, row_group_size))
        else:
            paths.append(write_jsonl(folder / f"{number}.jsonl", part))
    source = open_source(files(*paths, limit=limit))
    assert len(source) == min(sum(sizes), limit or sum(sizes))
    assert [p.extra["index"] for p in source] == list(range(len(source)))
    assert [p.index for p in source] == list(range(len(source)))


def test_raw_gsm8k_is_read_by_its_own_keys(gsm8k_dir):
    source = open_source(
        files(gsm8k_dir / "train.jsonl", prompt_key="question", answer_key="answer")
    )
    assert len(source) == 7473
    first = source[0]
    assert first.prompt.startswith("Natalia sold clips to 48 of her friends")
    assert first.answer.endswith("#### 72")
    assert (first.data_source, first.ground_truth, first.extra) == ("", first.answer, {})


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_keys_reach_into_columns(tmp_path, write):
    path = write(tmp_path / f"a.{write.__name__.removeprefix('write_')}", [verl_row(4)])
    assert open_source(files(path, answer_key="extra_info.answer"))[0].answer == "#### 5"
    source = open_source(files(path, answer_key="extra_info.solution"))
    with pytest.raises(DataError, match=r"no column 'extra_info.solution'; columns are .*prompt"):
        source[0]


def test_read_problems_keeps_the_order_asked_for(tmp_path):
    rows = [verl_row(i) for i in range(9)]
    source = open_source(files(write_parquet(tmp_path / "a.parquet", rows)))
    assert [p.index for p in read_problems(source, [7, 0, 7, 3])] == [7, 0, 7, 3]


@pytest.mark.parametrize("index", [-1, 2])
def test_indices_outside_raise_index_error(tmp_path, index):
    source = open_source(files(write_jsonl(tmp_path / "a.jsonl", [verl_row(0), verl_row(1)])))
    with pytest.raises(IndexError):
        source[index]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone.parquet", r"gone\.parquet: no such file"),
        ("rows.csv", r"rows\.csv: .* must be \.parquet or \.jsonl"),
        ("empty.jsonl", r"empty\.jsonl: no rows"),
    ],
)
def test_a_file_without_rows_is_refused(tmp_path, name, words):
    if "gone" not in name:
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=words):
        open_source(files(tmp_path / name))


WRONG_VALUES = [
    ({"prompt": 5}, "the prompt is int 5; expected text, or a list"),
    ({"prompt": None}, "the prompt is null"),
    ({"prompt": ""}, "the prompt is empty"),
    ({"prompt": []}, "the prompt is empty"),
    ({"prompt": ["hello"]}, r"the prompt is list \['hello'\]"),
    (
        {"prompt": [{"role": "user", "content": [{"type": "image"}]}]},
        "the prompt has 1 places for images .* and the row has 0 images",
    ),
    ({"reward_model": "rule"}, "reward_model is str 'rule'; expected a mapping"),
    ({"extra_info": [1]}, r"extra_info is list \[1\]; expected a mapping"),
    ({"prompt": "x" * (2**22 + 1)}, "the prompt has 4,194,305 characters; at most 4,194,304"),
    ({"target": 3}, "target is int 3; expected the text"),
    ({"target": None}, "target is null; expected the text"),
]


@pytest.mark.parametrize(("change", "message"), WRONG_VALUES)
def test_a_value_of_the_wrong_kind_is_found_by_its_line(tmp_path, change, message):
    rows = [{**verl_row(0), "target": "a"}, {**verl_row(1), "target": "b", **change}]
    source = open_source(files(write_jsonl(tmp_path / "a.jsonl", rows), answer_key="target"))
    assert source[0].answer == "a"
    with pytest.raises(DataError, match=rf"a\.jsonl line 2: {message}"):
        source[1]


def test_a_row_without_a_column_names_those_it_has(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"question": "1 + 1?", "answer": "2"}))
    with pytest.raises(
        DataError, match=r"line 1: no column 'prompt'; columns are question, answer"
    ):
        open_source(files(path))[0]


HALVES = [{"prompt": "1 \ud800 1?"}, {"prompt": said("u: \udfff")}, {"target": "\ud800"}]


@pytest.mark.parametrize("change", HALVES)
def test_half_a_character_is_found_by_its_line(tmp_path, change):
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "1?", "target": "2", **change}])
    with pytest.raises(DataError, match=r"a\.jsonl line 1: .* half of a surrogate pair"):
        open_source(files(path, answer_key="target"))[0]


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_rows_with_an_answer_and_no_reward_model(tmp_path, write):
    rows = [
        {"prompt": "1 + 1?", "answer": "2"},
        {"prompt": "1 + 2?", "answer": "x", "reward_model": {"ground_truth": "3"}},
        {"prompt": "1 + 3?", "ground_truth": "4", "answer": "It is 4."},
        {"prompt": "1 + 4?", "response": "5"},
        {"prompt": "1 + 5?"},
    ]
    name = write.__name__.removeprefix("write_")
    problems = [
        open_source(files(write(tmp_path / f"{i}.{name}", [row])))[0] for i, row in enumerate(rows)
    ]
    assert [problem.ground_truth for problem in problems] == ["2", "3", "4", "5", None]
    assert [problem.answer for problem in problems] == ["2", "x", "It is 4.", "5", None]


def test_a_problem_says_where_it_comes_from(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "1?"}\n\n\n{"prompt": "2?"}\n')
    other = write_parquet(tmp_path / "b.parquet", [{"prompt": "3?"}])
    source = open_source(files(path, other))
    assert [p.origin for p in source] == [f"{path} line 1", f"{path} line 4", f"{other} row 0"]


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
@pytest.mark.parametrize("form", [str, lambda text: said("u: 1 + 1?", f"a: {text}")])
def test_a_pair_is_two_answers_as_texts_or_as_chats(tmp_path, write, form):
    path = tmp_path / f"a.{write.__name__.removeprefix('write_')}"
    write(path, [{"prompt": "1 + 1?", "chosen": form("2"), "rejected": form("3")}])
    (problem,) = read_problems(open_source(files(path), needs="pair"), [0])
    before = [] if form is str else problem.prompt
    pair = (problem.answer, problem.rejected)
    assert [[*before, *answer] for answer in pair] == [[*form("2")], [*form("3")]]
    assert problem.prompt == ("1 + 1?" if form is str else said("u: 1 + 1?"))
    (problem,) = read_problems(open_source(files(path)), [0])
    assert (problem.answer, problem.rejected) == (None, None)


HALF_PAIRS = [
    ({"chosen": "2"}, "no column 'rejected'; columns are prompt, chosen"),
    ({"chosen": "2", "rejected": 3}, "rejected is int 3; expected an answer's text"),
    ({"chosen": [], "rejected": "3"}, "chosen is empty"),
]


@pytest.mark.parametrize(("row", "message"), HALF_PAIRS)
def test_half_a_pair_is_found_by_its_line(tmp_path, row, message):
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "p", **row}])
    with pytest.raises(DataError, match=f"a.jsonl line 1: {message}"):
        open_source(files(path), needs="pair")[0]


# The index of a JSONL file


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


MALFORMED_LINES = [
    (b'{"a": 1', r"rows\.jsonl line 4: not JSON \(Expecting ',' delimiter"),
    (b'{"a": "\xff"}', r"rows\.jsonl line 4: not JSON \('utf-8' codec"),
    (b"[1, 2]", r"rows\.jsonl line 4: expected an object with a field per column, found list"),
]


@pytest.mark.parametrize(("line", "message"), MALFORMED_LINES)
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
