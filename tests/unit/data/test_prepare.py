"""From raw data sets to verl's columns."""

import csv
import subprocess
import sys
from string import ascii_uppercase

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.unit.data.conftest import files, write_jsonl
from verl_hpc.data import prepare as module
from verl_hpc.data.prepare import Written, main, prepare
from verl_hpc.data.public_sets import RECIPES, whole_number
from verl_hpc.data.sources import open_source
from verl_hpc.errors import DataError
from verl_hpc.rewards.built_in import built_in, function_for
from verl_hpc.rewards.request import Request

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
    out = tmp_path / "out"
    assert main(["gsm8k", "--source", str(gsm8k_dir), "--out", str(out)]) == 0
    assert "train.parquet: 7473 rows" in capsys.readouterr().out
    assert sorted(p.name for p in out.iterdir()) == ["test.parquet", "train.parquet"]
    columns = parquet.read_table(out / "test.parquet").column_names
    assert columns == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    raw_file = files(gsm8k_dir / "test.jsonl", prompt_key="question", answer_key="answer")
    raw_source = open_source(raw_file)
    source = open_source(files(out / "test.parquet", answer_key="extra_info.answer"))
    assert len(source) == len(raw_source) == 1319
    asks = ' Let\'s think step by step and output the final answer after "####".'
    for problem, before in zip(source, raw_source, strict=True):
        assert problem.prompt == [{"role": "user", "content": before.prompt + asks}]
        assert problem.answer == before.answer
        assert problem.ground_truth == before.answer.split("#### ")[1].replace(",", "")
        assert problem.data_source == "openai/gsm8k"
        kept = {"answer": before.answer, "question": before.prompt}
        assert problem.extra == {"split": "test", "index": before.index} | kept


def test_math_takes_the_last_box_and_keeps_labels(tmp_path):
    unlabelled = {key: MATH_ROW[key] for key in ("problem", "solution")}
    source = raw(tmp_path, [MATH_ROW, unlabelled], [MATH_ROW])
    out = tmp_path / "out"
    expected = {out / "train.parquet": Written(2, {}), out / "test.parquet": Written(1, {})}
    assert prepare(RECIPES["math"], source, out) == expected
    labelled, plain = open_source(files(out / "train.parquet"))
    assert labelled.data_source == "DigitalLearningGmbH/MATH-lighteval"
    assert labelled.ground_truth == r"\frac{1}{2}"
    assert labelled.prompt[0]["content"] == (
        "Halve $1$. Let's think step by step and output the final answer within \\boxed{}."
    )
    assert (labelled.extra["level"], labelled.extra["type"]) == ("Level 1", "Algebra")
    assert (plain.extra["level"], plain.extra["type"]) == (None, None)


@pytest.mark.parametrize("name", ["test.jsonl", "test-00000-of-00001.jsonl"])
def test_one_file_is_one_split(tmp_path, name):
    source, out = write_jsonl(tmp_path / name, [GSM8K_ROW]), tmp_path / "out"
    assert prepare(RECIPES["gsm8k"], source, out) == {out / "test.parquet": Written(1, {})}
    assert open_source(files(out / "test.parquet"))[0].extra["split"] == "test"


def test_rows_are_written_in_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROWS_PER_GROUP", 2)
    prepare(RECIPES["gsm8k"], raw(tmp_path, [GSM8K_ROW] * 5, [GSM8K_ROW]), tmp_path / "out")
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


def test_a_malformed_row_leaves_nothing_behind(tmp_path):
    source = raw(tmp_path, [GSM8K_ROW], [GSM8K_ROW, {"question": "1 + 1?"}])
    with pytest.raises(
        DataError, match=r"test\.jsonl line 2: needs a text 'answer'; fields are qu"
    ):
        prepare(RECIPES["gsm8k"], source, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_missing_source_says_what_it_should_be(tmp_path, capsys):
    assert main(["gsm8k", "--source", str(tmp_path / "gone"), "--out", str(tmp_path / "out")]) == 1
    assert "gone/train.jsonl: no such file; --source is a directory with" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_empty_source_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"train\.jsonl: no rows"):
        prepare(RECIPES["gsm8k"], raw(tmp_path, [], [GSM8K_ROW]), tmp_path / "out")


# One file of each release, with the fields that it has

MATH_500_ROW = {
    "problem": "Halve $1$.", "solution": r"It is $\boxed{\frac{1}{2}}$.", "answer": r"\frac{1}{2}",
    "subject": "Prealgebra", "level": 2, "unique_id": "test/prealgebra/1.json",
}  # fmt: skip
AIME_ROWS = [
    {"id": 60, "problem": "Find it.", "solution": "It is 204.", "answer": "204", "url": "u",
     "year": "2024"},
    {"ID": "2024-II-4", "Problem": "Find it.", "Solution": "33.", "Answer": 33},
    {"question": "Find it.", "answer": r"336^\circ"},
    {"problem": "Find it.", "answer": "025", "id": "3"},
    {"id": 1, "problem": "Find it.", "solution": r"\boxed{7}", "url": "u"},
]  # fmt: skip
WRONG = {f"Incorrect Answer {i}": f"wrong {i}" for i in (1, 2, 3)}
GPQA_ROW = {"Question": "Which one?\n", "Correct Answer": " right "} | WRONG
GPQA_ROW |= {"Record ID": "rec1", "Subdomain": "Optics"}
MMLU_ROW = {"question": "Which one?", "subject": "anatomy", "answer": 2,
            "choices": ["wrong 1", "wrong 2", "right", "wrong 3"]}  # fmt: skip
MMLU_PRO_ROW = {"question_id": 70, "question": "Which one?", "answer": "J", "answer_index": 9,
                "options": [f"wrong {i}" for i in range(9)] + ["right"],
                "category": "business"}  # fmt: skip
ARC_ROW = {
    "id": "Mercury_1",
    "question": "Which one?",
    "choices": {"text": ["wrong 1", "wrong 2", "right"], "label": ["1", "2", "3"]},
    "answerKey": "3",
}
CHOICES = {"gpqa": GPQA_ROW, "mmlu": MMLU_ROW, "mmlu_pro": MMLU_PRO_ROW, "arc": ARC_ROW}


def prepared(tmp_path, name, rows, seed=0, ending="jsonl"):
    """The problems of a prepared file."""
    path = tmp_path / f"released.{ending}"
    if ending == "jsonl":
        write_jsonl(path, rows)
    elif ending == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
    expected = {out / "released.parquet": Written(len(rows), {})}
    assert prepare(RECIPES[name], path, out, seed) == expected
    return list(open_source(files(out / "released.parquet")))


def test_math_500_keeps_its_answer_and_its_labels(tmp_path):
    (problem,) = prepared(tmp_path, "math500", [MATH_500_ROW])
    assert problem.ground_truth == r"\frac{1}{2}"
    assert problem.extra["answer"] == MATH_500_ROW["solution"]
    kept = {name: problem.extra[name] for name in ("level", "subject", "unique_id")}
    assert kept == {"level": "2", "subject": "Prealgebra", "unique_id": "test/prealgebra/1.json"}
    assert function_for(problem.data_source) is built_in("math")
    assert built_in("math")(r"\boxed{0.5}", problem.ground_truth)["score"] == 1.0


def test_the_answers_of_every_release_of_aime_are_integers(tmp_path):
    problems = [prepared(tmp_path, "aime", [row])[0] for row in AIME_ROWS]
    assert [problem.ground_truth for problem in problems] == ["204", "33", "336", "25", "7"]
    assert [problem.extra["id"] for problem in problems] == ["60", "2024-II-4", None, "3", "1"]
    answers = [problem.extra["answer"] for problem in problems]
    assert answers == ["It is 204.", "33.", None, None, r"\boxed{7}"]
    for problem in problems:
        assert problem.prompt[0]["content"].startswith("Find it. Let's think step by step")
        response = f"\\boxed{{{problem.ground_truth}}}"
        graded = function_for(problem.data_source)(response, problem.ground_truth)
        assert graded["score"] == 1.0


NUMBERS = {
    25: "25", "025": "25", "$25$": "25", "-3": "-3", "12.0": "12", "12.5": None,
    True: None, "x": None, "": None, "25 apples": None, 25.5: None, "000": "0",
}  # fmt: skip


def test_whole_number():
    assert {answer: whole_number(answer) for answer in NUMBERS} == NUMBERS
    assert whole_number(25.0) == "25"


@pytest.mark.parametrize("name", CHOICES)
def test_the_letter_is_that_of_the_right_option_whatever_the_order(tmp_path, name):
    row, orders = CHOICES[name], set()
    for seed in range(8):
        (problem,) = prepared(tmp_path, name, [row], seed)
        options = problem.extra["choices"]
        chosen = options[ascii_uppercase.index(problem.ground_truth)]
        assert chosen == problem.extra["answer"] == sorted(options)[0] == "right"
        assert problem.data_source == f"multiple_choice/{name}"
        lines = problem.prompt[0]["content"].splitlines()
        assert lines[0] == "Which one?"
        assert lines[2:-2] == [f"{a}) {o}" for a, o in zip(ascii_uppercase, options, strict=False)]
        orders.add(tuple(options))
        (again,) = prepared(tmp_path, name, [row], seed)
        assert again.prompt == problem.prompt
    assert len(orders) > 1


def test_the_order_of_options_is_of_the_question_not_of_its_row(tmp_path):
    rows = [MMLU_ROW | {"question": f"{i}?"} for i in range(12)]
    found = prepared(tmp_path, "mmlu", rows)
    fewer = prepared(tmp_path, "mmlu", rows[5:])
    assert [p.extra["choices"] for p in fewer] == [p.extra["choices"] for p in found[5:]]
    assert len({p.ground_truth for p in found}) > 1


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_releases_are_parquet_and_csv_too(tmp_path, ending):
    (problem,) = prepared(tmp_path, "gpqa", [GPQA_ROW], ending=ending)
    assert [problem] == prepared(tmp_path, "gpqa", [GPQA_ROW])
    assert problem.extra["id"] == "rec1"


@pytest.mark.parametrize("name", ["arc", "mmlu"])
def test_nested_choices_are_read_from_parquet(tmp_path, name):
    (problem,) = prepared(tmp_path, name, [CHOICES[name]], ending="parquet")
    assert problem.extra["answer"] == "right"


CODEFORCES_ROW = {
    "id": "1/A", "title": "Doubling", "description": "Double a number.", "rating": 800,
    "time_limit": 1.0, "memory_limit": 256.0, "input_format": "One integer n.",
    "output_format": "One integer.", "interaction_format": None, "note": None, "editorial": None,
    "examples": [{"input": "1\n", "output": "2\n"}], "input_mode": "stdio",
    "official_tests": [{"input": "1\n", "output": "2\n"}, {"input": "7", "output": "14"}],
    "official_tests_complete": True, "generated_checker": None,
}  # fmt: skip


def test_problems_of_codeforces_are_scored_by_their_tests(tmp_path):
    (problem,) = prepared(tmp_path, "codeforces", [CODEFORCES_ROW], ending="parquet")
    prompt = problem.prompt[0]["content"]
    assert prompt.startswith("## Doubling\nDouble a number.\n\n## Limits\n1.0 seconds, 256.0 meg")
    assert "## Examples\ninput:\n```\n1\n```\noutput:\n```\n2\n```\n\nWrite" in prompt
    assert "## Note" not in prompt
    assert (problem.extra["id"], problem.extra["rating"]) == ("1/A", "800")
    score = built_in("code")
    answers = ["```python\nprint(2 * int(input()))\n```", "```python\nprint(2)\n```"]
    asked = [Request(0, problem.data_source, problem.ground_truth, {}, a) for a in answers]
    assert [found["score"] for found in score(asked)] == [1.0, 0.0]


def test_a_problem_of_codeforces_may_be_called_as_a_part_of_it(tmp_path):
    row = CODEFORCES_ROW | {"title": "Examples"}
    (problem,) = prepared(tmp_path, "codeforces", [row], ending="parquet")
    prompt = problem.prompt[0]["content"]
    assert prompt.startswith("## Examples\nDouble a number.") and "\n## Examples\ninput:" in prompt


def test_a_problem_of_codeforces_without_limits_says_nothing_of_them(tmp_path):
    row = without(CODEFORCES_ROW, "time_limit") | {"memory_limit": None}
    (problem,) = prepared(tmp_path, "codeforces", [row])
    prompt = problem.prompt[0]["content"]
    assert "Limits" not in prompt and "None" not in prompt
    (problem,) = prepared(tmp_path, "codeforces", [CODEFORCES_ROW | {"memory_limit": None}])
    assert "## Limits\n1.0 seconds\n\n## Input" in problem.prompt[0]["content"]


def test_problems_of_codeforces_that_tests_cannot_decide_are_left_out_and_counted(tmp_path, capsys):
    unfit = [
        {"interaction_format": "Print ?, read an answer."}, {"input_mode": "file"},
        {"generated_checker": "def check(): ..."}, {"official_tests_complete": False},
        {"official_tests": []},
    ]  # fmt: skip
    rows = [CODEFORCES_ROW, *(CODEFORCES_ROW | fields for fields in unfit)]
    path = write_jsonl(tmp_path / "test.jsonl", rows)
    arguments = ["codeforces", "--source", str(path), "--out"]
    assert main([*arguments, str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "1 rows; 1 left out: it talks with its judge; 1 left out: it reads and writes" in told
    assert "2 left out: it has tests that are cut off, or none" in told
    write_jsonl(path, rows[1:])
    assert main([*arguments, str(tmp_path / "none")]) == 1
    assert f"{path}: 0 rows; 1 left out" in capsys.readouterr().err


def without(row, *names):
    return {name: value for name, value in row.items() if name not in names}


OTHER_FORMS = [
    ("gsm8k", {"question": 1, "answer": "#### 1"}, "needs a text 'question'"),
    ("gsm8k", {"question": "1 + 1?", "answer": "2"}, "answer holds no #### NUMBER"),
    ("math", {"problem": "1 + 1?", "solution": "2"}, "solution holds no \\boxed"),
    ("math500", without(MATH_500_ROW, "answer"), "needs a text 'answer'; fields are problem,"),
    ("aime", {"problem": "1?"}, r"needs 'answer', or a 'solution' with \boxed{...}; fields"),
    ("aime", {"problem": "1?", "answer": "1/2"}, "answer = '1/2' is no integer"),
    ("aime", {"answer": "1"}, "needs a text 'problem' or 'Problem' or 'question'"),
    ("gpqa", without(GPQA_ROW, "Incorrect Answer 3"), "needs a text 'Incorrect Answer 3'"),
    ("gpqa", GPQA_ROW | {"Incorrect Answer 1": " "}, "needs a text 'Incorrect Answer 1'"),
    ("mmlu", MMLU_ROW | {"choices": "A, B"}, "needs a list 'choices' or 'options'"),
    ("mmlu", MMLU_ROW | {"answer": 4}, "the right option is number 4, counted from 0, of 4"),
    ("mmlu", MMLU_ROW | {"answer": "E"}, "answer = 'E': expected a number from 0, or one of"),
    ("mmlu", MMLU_ROW | {"answer": True}, "answer = True: expected a number"),
    ("mmlu", MMLU_ROW | {"choices": ["a"], "answer": 0}, "1 options; from 2 to 26"),
    ("mmlu", MMLU_ROW | {"choices": ["a", None], "answer": 0}, "an option is no text"),
    ("mmlu", MMLU_ROW | {"choices": ["a"] * 27, "answer": 0}, "27 options; from 2 to 26"),
    ("arc", ARC_ROW | {"answerKey": "4"}, "answerKey = '4': expected one of the labels"),
    ("arc", ARC_ROW | {"choices": ["a", "b"]}, "needs 'choices' with lists 'text' and 'label'"),
    ("arc", without(ARC_ROW, "answerKey"), "answerKey = None: expected one of the labels"),
    ("codeforces", CODEFORCES_ROW | {"examples": [{"input": 1}]}, "needs 'examples', a list"),
    ("codeforces", without(CODEFORCES_ROW, "description"), "needs a text 'description'"),
]


def test_a_row_of_another_form_is_named(tmp_path):
    path, wrong = tmp_path / "released.jsonl", []
    for name, row, message in OTHER_FORMS:
        write_jsonl(path, [row])
        with pytest.raises(DataError) as caught:
            prepare(RECIPES[name], path, tmp_path / "out")
        said = str(caught.value)
        if not said.startswith(f"{path} line 1: ") or message not in said:
            wrong.append((name, message, said))
    assert (wrong, list((tmp_path / "out").iterdir())) == ([], [])


NO_FILES = [
    ("a.txt", "x", "the ending says the format; it must be .jsonl, .parquet or .csv"),
    ("a.parquet", "x", "not a readable Parquet file"),
    ("a.csv", "\udcff", "cannot be read"),
    ("a.csv", "Question\n", "no rows"),
]


@pytest.mark.parametrize(("file", "content", "message"), NO_FILES)
def test_a_file_that_is_none_is_named(tmp_path, file, content, message):
    path = tmp_path / file
    path.write_bytes(content.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(DataError, match=message):
        prepare(RECIPES["gpqa"], path, tmp_path / "out")


def test_a_data_set_of_one_file_takes_no_directory(tmp_path):
    with pytest.raises(DataError, match="of this data set --source is one file, .jsonl, .parquet"):
        prepare(RECIPES["aime"], tmp_path, tmp_path / "out")


def test_a_data_set_that_is_not_prepared(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["gsm8", "--source", str(tmp_path), "--out", str(tmp_path)])
    assert "did you mean gsm8k" in capsys.readouterr().err


def test_as_a_program(tmp_path):
    path = write_jsonl(tmp_path / "test.jsonl", [MMLU_ROW])
    words = [sys.executable, "-m", "verl_hpc.data.prepare", "mmlu", "--seed", "7", "--source", path]
    first, again = (
        subprocess.run([*words, "--out", tmp_path], capture_output=True, text=True)
        for _ in range(2)
    )
    assert (first.returncode, first.stdout) == (0, f"{tmp_path / 'test.parquet'}: 1 rows\n")
    assert again.returncode == 1 and "exists already; remove it" in again.stderr
