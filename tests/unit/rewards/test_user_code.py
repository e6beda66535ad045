"""Reward functions in files of the user."""

import pickle

import pytest

from verl_hpc.errors import RewardError
from verl_hpc.rewards.user_code import load_function


def written(folder, text, name="mine.py"):
    path = folder / name
    path.write_text(text)
    return path


def test_a_function_is_found_in_its_file(tmp_path):
    path = written(tmp_path, "def score(x):\n    return x + 1\n")
    assert load_function(f"{path}:score")(1) == 2


def test_files_of_one_name_are_two_modules(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = written(tmp_path / "a", "def score():\n    return 'a'\n")
    second = written(tmp_path / "b", "def score():\n    return 'b'\n")
    assert load_function(f"{first}:score")() == "a"
    assert load_function(f"{second}:score")() == "b"


def test_a_file_is_imported_once(tmp_path):
    path = written(tmp_path, "def one(): ...\ndef two(): ...\n")
    one, two = load_function(f"{path}:one"), load_function(f"{path}:two")
    assert one.__globals__ is two.__globals__


def test_its_classes_can_be_pickled(tmp_path):
    path = written(tmp_path, "class Judge:\n    def __call__(self):\n        return 1.0\n")
    judge = load_function(f"{path}:Judge")()
    assert pickle.loads(pickle.dumps(judge))() == 1.0


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RewardError, match=r"no file .*gone\.py; give path/to/file\.py:function"):
        load_function(f"{tmp_path}/gone.py:score")


def test_a_missing_function_names_those_there_are(tmp_path):
    path = written(tmp_path, "def score(): ...\ndef _hidden(): ...\n")
    with pytest.raises(RewardError, match=r"defines no 'scare'; it defines score$"):
        load_function(f"{path}:scare")


def test_what_is_not_callable_is_refused(tmp_path):
    path = written(tmp_path, "score = 1.0\n")
    with pytest.raises(RewardError, match="score is float, not a function"):
        load_function(f"{path}:score")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def score(:\n", "cannot be imported: SyntaxError"),
        ("import no_such_module\n", "cannot be imported: ModuleNotFoundError: No module named"),
        ("import sys; sys.exit(0)\n", r"cannot be imported: it calls sys\.exit\(0\)"),
        ("raise ValueError('x' * 5_000_000)\n", r"xxx\.\.\. \(2,000 of 5,000,0"),
    ],
)
def test_a_file_that_raises_on_import_is_named_with_the_reason(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(RewardError, match=message) as caught:
        load_function(f"{path}:score")
    assert caught.value.__cause__ is not None


def test_a_file_of_another_ending_is_refused(tmp_path):
    path = written(tmp_path, "def score(): ...\n", "mine.txt")
    with pytest.raises(RewardError, match="not a Python file"):
        load_function(f"{path}:score")


def test_an_import_without_an_end_is_ended(tmp_path, no_alarm):
    path = written(tmp_path, "while True:\n    pass\n")
    with pytest.raises(RewardError, match=r"longer than import_timeout_s = 0\.2"):
        load_function(f"{path}:score", 0.2)
    with pytest.raises(RewardError, match=r"longer than import_timeout_s = 0\.2"):
        load_function(f"{path}:score", 0.2)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("while True: pass", r"longer than import_timeout_s = 0\.2"),
        ("raise KeyError(name)", r"its 'score' cannot be read: KeyError"),
        ("import sys; sys.exit(0)", r"its 'score' cannot be read: it calls sys\.exit\(0\)"),
    ],
)
def test_names_that_a_module_makes_up_are_under_the_limit(tmp_path, no_alarm, body, message):
    path = written(tmp_path, f"def __getattr__(name):\n    {body}\n")
    with pytest.raises(RewardError, match=message):
        load_function(f"{path}:score", 0.2)
