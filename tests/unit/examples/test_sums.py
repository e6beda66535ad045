"""The calculator example's problems: right answers, calls as the tool reads them, none held out."""

import json

from examples import sums
from examples.sums import EVALUATION_SHARE, main
from verl_hpc.data.split import is_held_out
from verl_hpc.environments.calculator import Calculator
from verl_hpc.environments.environment import Done


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_problems_and_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(sums, "ROWS", {"sft": 300, "rl": 200, "evaluation": 100})
    assert main(["--out", str(tmp_path), "--seed", "3"]) == 0
    files = {name: read(tmp_path / f"{name}.jsonl") for name in sums.ROWS}
    tool = Calculator("[", "]", "{result}=")
    for row in (*files["rl"], *files["evaluation"]):
        assert tool.step([], f"[{row['prompt'][:-1]}]") == row["answer"] + "="
    calls = [row for row in files["sft"] if "[" in row["answer"]]
    assert 60 < len(calls) < 120
    for row in calls:
        call, end, told = row["answer"].partition("]")
        assert tool.step([], call + end) == told.partition("=")[0] + "="
        assert told.partition("=")[0] == told.partition("=")[2]
    assert tool.step([], "2146") == Done()
    for name, rows in files.items():
        held_out = {is_held_out(row["prompt"][:-1], EVALUATION_SHARE) for row in rows}
        assert held_out == {name == "evaluation"}


def test_evaluation_is_the_same_for_every_seed(monkeypatch):
    monkeypatch.setattr(sums, "ROWS", {"rl": 20, "evaluation": 20})
    assert list(sums.rows("evaluation", 1)) == list(sums.rows("evaluation", 2))
    assert list(sums.rows("rl", 1)) != list(sums.rows("rl", 2))
