"""Bad rows and prompts on both sides, found before anything is built."""

import pytest

from tests.unit.data.conftest import damage_row_group, files, verl_row, write_jsonl, write_parquet
from verl_hpc.config.data import DataConfig, ReasoningGymConfig
from verl_hpc.data import scan
from verl_hpc.data.check import Checked, HeldOut, WithoutRows, check_data
from verl_hpc.data.problem import Problem
from verl_hpc.data.sources import open_source
from verl_hpc.errors import DataError


def check(train, evaluation=None, **settings) -> Checked:
    config = DataConfig(train=train, evaluation=evaluation, **settings)
    return check_data(config, open_source(train), [held_out(evaluation)] if evaluation else [])


def held_out(config, name="data.evaluation"):
    return HeldOut(name, config, open_source(config))


def both(tmp_path, train, evaluation):
    return [
        files(write_jsonl(tmp_path / f"{name}.jsonl", [verl_row(i) for i in indices]))
        for name, indices in (("train", train), ("test", evaluation))
    ]


def test_prompts_on_both_sides_are_refused_with_counts_an_example_and_a_way_out(tmp_path):
    train, evaluation = both(tmp_path, [9, 1, 2, 1], [1, 2, 2, 3])
    with pytest.raises(DataError) as caught:
        check(train, evaluation)
    assert str(caught.value) == (
        f"2 of the 3 different prompts of data.evaluation ({evaluation.paths[0]}) occur in "
        f"data.train ({train.paths[0]}), in 3 of its 4 rows; the first is {train.paths[0]} line 2: "
        "'1 + 1?'. Give other files; or set data.overlap to drop (these rows leave training) or "
        "to warn"
    )


def test_they_can_leave_training(tmp_path):
    train, evaluation = both(tmp_path, [9, 1, 2, 1, 8], [1, 2, 2, 3])
    checked = check(train, evaluation, overlap="drop")
    assert list(checked.dropped) == [1, 2, 3]
    assert checked.warning.endswith("line 2: '1 + 1?'; these rows leave training")
    assert checked.facts == {
        "rows": 4,
        "different prompts": 3,
        "prompts found in training": 2,
        "rows dropped from training": 3,
    }
    rest = WithoutRows(open_source(train), checked.dropped)
    assert [p.extra["index"] for p in rest] == [9, 8]
    assert [(p.index, p.origin[-6:]) for p in rest] == [(0, "line 1"), (1, "line 5")]
    assert [problem.prompt[0]["content"] for problem in rest.scan()] == ["9 + 1?", "8 + 1?"]
    left = check_data(DataConfig(train=train, evaluation=evaluation), rest, [held_out(evaluation)])
    assert left.facts["prompts found in training"] == 0
    with pytest.raises(DataError, match="data.overlap = drop leaves no row"):
        check(evaluation, evaluation, overlap="drop")


def test_or_stay_with_a_word(tmp_path):
    checked = check(*both(tmp_path, [1, 2], [2]), overlap="warn")
    assert checked.warning.startswith("1 of the 1 different prompts of data.evaluation")
    assert checked.warning.endswith("line 2: '2 + 1?'; they stay in training")
    assert not checked.dropped
    assert checked.facts["prompts found in training"] == 1


def several(tmp_path, **sets):
    """Held-out sets, by name, of rows by their numbers."""
    return [
        held_out(files(write_jsonl(tmp_path / f"{n}.jsonl", map(verl_row, rows))), f"sets.{n}")
        for n, rows in sets.items()
    ]


def test_every_set_is_compared_and_training_is_read_once(tmp_path, monkeypatch):
    train = files(write_jsonl(tmp_path / "train.jsonl", map(verl_row, [9, 1, 2, 3, 8])))
    sets = several(tmp_path, one=[1, 5], two=[6, 7], three=[3, 1, 2, 4])
    source, scans = open_source(train), []
    scan = type(source).scan
    monkeypatch.setattr(type(source), "scan", lambda self: scans.append(self) or scan(self))
    with pytest.raises(DataError) as caught:
        check_data(DataConfig(train=train), source, sets)
    assert scans.count(source) == 1
    message = str(caught.value)
    assert "1 of the 2 different prompts of sets.one" in message
    assert "3 of the 4 different prompts of sets.three" in message
    assert "sets.two" not in message
    checked = check_data(DataConfig(train=train, overlap="drop"), source, sets)
    assert list(checked.dropped) == [1, 2, 3]
    assert checked.facts == {
        "rows": 8,
        "different prompts": 8,
        "prompts found in training": 4,
        "rows dropped from training": 3,
        "rows of sets.one": 2,
        "rows of sets.two": 2,
        "rows of sets.three": 4,
    }


def test_a_set_that_is_disjoint_by_construction_stands_beside_one_that_is_not(tmp_path):
    train = generated(size=2000, seed=1, split="train")
    clean = held_out(generated(size=50, seed=9, split="evaluation"), "sets.clean")
    dirty = held_out(generated(size=200, seed=2, split="train"), "sets.dirty")
    with pytest.raises(DataError, match=r"^\S+ of the \S+ different prompts of sets\.dirty \("):
        check_data(DataConfig(train=train), open_source(train), [clean, dirty])
    assert check_data(DataConfig(train=train), open_source(train), [clean]).facts["rows"] == 50


def test_disjoint_data_passes(tmp_path):
    checked = check(*both(tmp_path, range(50), range(50, 60)))
    assert (checked.facts["prompts found in training"], checked.warning) == (0, "")


TERMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}


def generated(**settings):
    return ReasoningGymConfig(**{"task": "chain_sum", "options": TERMS, **settings})


def test_a_task_of_few_questions_is_refused_without_splits():
    with pytest.raises(DataError, match=r"Set split: train in data\.train and split: evaluation"):
        check(generated(size=2000, seed=1), generated(size=200, seed=1_000_003))


def test_splits_of_one_share_need_no_pass(monkeypatch):
    from verl_hpc.data.reasoning_gym_source import ReasoningGymSource

    train = generated(size=100_000_000, seed=1, split="train")
    checked = check(train, generated(size=50, seed=9, split="evaluation"))
    assert checked.facts == {
        "rows": 50,
        "different prompts": 50,
        "prompts found in training": 0,
        "rows dropped from training": 0,
    }
    monkeypatch.setattr(ReasoningGymSource, "scan", lambda self: iter([Problem(0, "1?")]))
    other_share = generated(size=50, split="evaluation", evaluation_share=0.2)
    with pytest.raises(DataError, match="1 of the 1 different prompts"):
        check(train, other_share)


def test_bad_rows_are_found_at_the_start_and_the_first_are_named(tmp_path):
    rows = [verl_row(i) for i in range(900)]
    path = write_jsonl(tmp_path / "a.jsonl", [*rows, {"prompt": 5}])
    with pytest.raises(DataError, match=r"^\S+a\.jsonl line 901: the prompt is int 5; expected"):
        check(files(path))
    assert check(files(path), check="drawn") == check(files(path, limit=900)) == Checked()
    with path.open("a") as file:
        file.write('\n{"prompt"\n' + '{"prompt": ""}\n' * 1000)
    with pytest.raises(DataError) as caught:
        check(files(path))
    first, *named, last = str(caught.value).splitlines()[:5]
    assert first == "1,002 rows cannot be used, the first of them:"
    lines = [line.split(":")[0].rpartition("/")[2] for line in named]
    assert lines == [f"a.jsonl line {number}" for number in (901, 903, 904)]
    assert last.endswith("set data.check to drawn to meet each when it is drawn")


def test_bad_rows_of_evaluation_are_found_too(tmp_path):
    train, evaluation = both(tmp_path, [1], [2])
    bad = files(*evaluation.paths, write_jsonl(tmp_path / "bad.jsonl", [{"prompt": None}]))
    with pytest.raises(DataError, match=r"bad\.jsonl line 1: the prompt is null"):
        check(train, bad)
    assert check(train, bad, check="drawn").facts["different prompts"] == 1


def test_a_damaged_page_is_found_at_the_start(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [verl_row(i) for i in range(20)], 10)
    damage_row_group(path, 1, 1)
    with pytest.raises(DataError, match=r"10 rows cannot be used, .*\n.*rows 10 to 19: cannot be"):
        check(files(path))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "no answer in any of completion, answer, response"),
        (3, "answer is int 3; expected an answer's text, or a list"),
    ],
)
def test_imitation_needs_an_answer_in_every_row(tmp_path, answer, message):
    rows = [{"prompt": "0?", "answer": "1"}, {"prompt": "1?", "answer": answer}]
    config = files(write_jsonl(tmp_path / "a.jsonl", rows))
    assert check(config) == Checked()
    with pytest.raises(DataError, match=f"line 2: {message}"):
        check_data(DataConfig(train=config), open_source(config, needs="answer"), [])


def test_a_scan_of_parquet_reads_what_can_be_wrong_and_no_more(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [{**verl_row(i), "answer": "a"} for i in range(3)])
    source = open_source(files(path, answer_key="extra_info.answer"))
    scanned = list(source._files[0].scan())
    assert [set(row) for row in scanned] == [{"prompt", "extra_info", "data_source", "answer"}] * 3
    assert scanned[0]["extra_info"] == {"answer": "#### 1"}
    assert [p.prompt for p in source.scan()] == [p.prompt for p in source]


def test_a_long_pass_says_how_far_it_is(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(scan, "TOLD_EVERY_S", 0.0)
    check(files(write_jsonl(tmp_path / "a.jsonl", [verl_row(0)] * 2)))
    assert caplog.messages == [f"data.train: {n} of 2 rows checked" for n in (1, 2)]
