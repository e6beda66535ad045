"""From raw data sets to verl's columns."""

import pytest
from pyarrow import parquet

from tests.unit.data.conftest import files, write_jsonl
from verl_hpc.data import prepare as module
from verl_hpc.data.prepare import RECIPES, last_boxed, main, prepare
from verl_hpc.data.sources import open_source
from verl_hpc.errors import DataError

GSM8K_ROW = {"question": "What is 600 + 600?", "answer": "600 + 600 = <<600+600=1200>>\n#### 1,200"}
MATH_ROW = {
    "problem": "Halve $1$.",
    "solution": r"First \boxed{2}, no: $\boxed{\frac{1}{2}}$.",
    "level": "Level 1",
    "type": "Algebra",
}


def raw(tmp_path, train, test):
    folder = tmp_path / "raw"
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", train)
    write_jsonl(folder / "test.jsonl", test)
    return folder


def test_real_gsm8k_has_verls_columns_and_is_read_back(gsm8k_dir, tmp_path, capsys):
    assert main(["gsm8k", "--source", str(gsm8k_dir), "--out", str(tmp_path / "out")]) == 0
    assert "train.parquet: 7473 rows" in capsys.readouterr().out
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["test.parquet", "train.parquet"]
    table = parquet.read_table(tmp_path / "out" / "test.parquet")
    assert table.column_names == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    raw_source = open_source(
        files(gsm8k_dir / "test.jsonl", prompt_key="question", answer_key="answer")
    )
    source = open_source(files(tmp_path / "out" / "test.parquet", answer_key="extra_info.answer"))
    assert len(source) == len(raw_source) == 1319
    for problem, before in zip(source, raw_source, strict=True):
        assert problem.prompt == [
            {
                "role": "user",
                "content": f"{before.prompt} Let's think step by step and output the final answer "
                'after "####".',
            }
        ]
        assert problem.answer == before.answer
        assert problem.ground_truth == before.answer.split("#### ")[1].replace(",", "")
        assert problem.data_source == "openai/gsm8k"
        assert problem.extra == {
            "split": "test",
            "index": before.index,
            "answer": before.answer,
            "question": before.prompt,
        }


def test_math_takes_the_last_box_and_keeps_labels(tmp_path):
    unlabelled = {key: MATH_ROW[key] for key in ("problem", "solution")}
    source = raw(tmp_path, [MATH_ROW, unlabelled], [MATH_ROW])
    out = tmp_path / "out"
    assert prepare(RECIPES["math"], source, out) == {
        out / "train.parquet": 2,
        out / "test.parquet": 1,
    }
    labelled, plain = open_source(files(out / "train.parquet"))
    assert labelled.data_source == "DigitalLearningGmbH/MATH-lighteval"
    assert labelled.ground_truth == r"\frac{1}{2}"
    assert labelled.prompt[0]["content"] == (
        "Halve $1$. Let's think step by step and output the final answer within \\boxed{}."
    )
    assert (labelled.extra["level"], labelled.extra["type"]) == ("Level 1", "Algebra")
    assert (plain.extra["level"], plain.extra["type"]) == (None, None)


@pytest.mark.parametrize(
    ("solution", "boxed"),
    [
        (r"\boxed{7}", "7"),
        (r"\boxed{1} then \boxed{\frac{a}{\sqrt{b}}}.", r"\frac{a}{\sqrt{b}}"),
        (r"so $\boxed 7$ it is", "7"),
        (r"so \fbox{B}", "B"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{7", None),
        ("7", None),
    ],
)
def test_last_boxed(solution, boxed):
    assert last_boxed(solution) == boxed


def test_one_file_is_one_split(tmp_path):
    source = raw(tmp_path, [GSM8K_ROW], [GSM8K_ROW])
    out = tmp_path / "out"
    assert prepare(RECIPES["gsm8k"], source / "test.jsonl", out) == {out / "test.parquet": 1}
    assert open_source(files(out / "test.parquet"))[0].extra["split"] == "test"


def test_rows_are_written_in_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROWS_PER_GROUP", 2)
    source = raw(tmp_path, [GSM8K_ROW] * 5, [GSM8K_ROW])
    prepare(RECIPES["gsm8k"], source, tmp_path / "out")
    footer = parquet.read_metadata(tmp_path / "out" / "train.parquet")
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [2, 2, 1]


def test_existing_files_are_never_overwritten(tmp_path):
    source = raw(tmp_path, [GSM8K_ROW], [GSM8K_ROW])
    out = tmp_path / "out"
    out.mkdir()
    (out / "test.parquet").write_text("mine")
    with pytest.raises(DataError, match=r"test\.parquet: exists already; .* another --out"):
        prepare(RECIPES["gsm8k"], source, out)
    assert [p.name for p in out.iterdir()] == ["test.parquet"]
    assert (out / "test.parquet").read_text() == "mine"


@pytest.mark.parametrize(
    ("recipe", "row", "message"),
    [
        ("gsm8k", {"question": "1 + 1?"}, "needs a text 'answer'; fields are question"),
        ("gsm8k", {"question": 1, "answer": "#### 1"}, "needs a text 'question'"),
        ("gsm8k", {"question": "1 + 1?", "answer": "2"}, "answer holds no #### NUMBER"),
        ("math", {"problem": "1 + 1?", "solution": "2"}, r"solution holds no \\boxed"),
    ],
)
def test_a_malformed_row_leaves_nothing_behind(tmp_path, recipe, row, message):
    good = GSM8K_ROW if recipe == "gsm8k" else MATH_ROW
    source = raw(tmp_path, [good], [good, row])
    with pytest.raises(DataError, match=rf"test\.jsonl line 2: {message}"):
        prepare(RECIPES[recipe], source, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_missing_source_says_what_it_should_be(tmp_path, capsys):
    arguments = ["gsm8k", "--source", str(tmp_path / "gone"), "--out", str(tmp_path / "out")]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert "gone/train.jsonl: no such file; --source is a directory with" in error
    assert not (tmp_path / "out").exists()


def test_an_empty_source_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"train\.jsonl: no rows"):
        prepare(RECIPES["gsm8k"], raw(tmp_path, [], [GSM8K_ROW]), tmp_path / "out")


def test_help_shows_examples(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    assert "python -m verl_hpc.data.prepare gsm8k --source" in capsys.readouterr().out
