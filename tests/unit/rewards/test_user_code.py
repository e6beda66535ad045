"""Reward functions in files of the user."""

import pickle

import pytest

from verl_hpc.errors import RewardError
from verl_hpc.rewards.user_code import load_function


def written(folder, text, name="mine.py"):
    path = folder / name
    path.write_text(text)
    return path


def test_files_of_one_name_are_two_modules(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        written(tmp_path / name, f"def score():\n    return {name!r}\n")
    assert [load_function(f"{tmp_path}/{name}/mine.py:score")() for name in "ab"] == ["a", "b"]


def test_a_file_is_imported_once(tmp_path):
    path = written(tmp_path, "def one(): ...\ndef two(): ...\n")
    one, two = load_function(f"{path}:one"), load_function(f"{path}:two")
    assert one.__globals__ is two.__globals__


def test_its_classes_can_be_pickled(tmp_path):
    path = written(tmp_path, "class Judge:\n    def __call__(self):\n        return 1.0\n")
    judge = load_function(f"{path}:Judge")()
    assert pickle.loads(pickle.dumps(judge))() == 1.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone.py:score", r"no file .*gone\.py; give path/to/file\.py:function"),
        ("mine.py:scare", r"defines no 'scare'; it defines score$"),
        ("mine.py:_number", "_number is float, not a function"),
        ("mine.txt:score", "not a Python file"),
    ],
)
def test_what_names_no_function_of_a_python_file_is_refused(tmp_path, name, message):
    for file in ("mine.py", "mine.txt"):
        written(tmp_path, "def score(): ...\n_number = 1.0\n", file)
    with pytest.raises(RewardError, match=message):
        load_function(f"{tmp_path}/{name}")


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


def test_an_import_without_an_end_is_ended(tmp_path, no_alarm):
    path = written(tmp_path, "while True:\n    pass\n")
    for _ in range(2):
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
