"""The short answers' problems and their control: right answers, and none of an evaluation's."""

import json
import re

from examples import short_answers
from examples.short_answers import EVALUATION_SHARE, LARGEST, main, shuffled
from verl_hpc.data.split import is_held_out

ASK = " Answer with the number alone."


def test_problems_and_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(short_answers, "ROWS", {"train": 200, "evaluation": 100})
    for seed in (1, 2):
        assert main(["--out", str(tmp_path / str(seed)), "--seed", str(seed)]) == 0
    for task in short_answers.TASKS:
        for name, count in short_answers.ROWS.items():
            first, second = (
                [*map(json.loads, (tmp_path / seed / task / f"{name}.jsonl").open())]
                for seed in "12"
            )
            assert (first == second) == (name == "evaluation")
            assert len({row["prompt"] for row in first}) == count
            for row in first:
                question = row["prompt"].removesuffix(ASK)
                assert is_held_out(question, EVALUATION_SHARE) == (name == "evaluation")
                a, b = map(int, re.findall(r"\d+", question))
                assert int(row["answer"]) == (a + b if "+" in question else a - b) >= 0
                assert task == "left" or max(a, b) <= LARGEST


def test_the_control_gives_the_same_scores_to_other_responses():
    responses, truths = [f"it is {n % 4}" for n in range(40)], ["3"] * 40
    scores = shuffled(responses, truths)
    assert sum(scores) == 10
    assert scores != [float(text.endswith("3")) for text in responses]
    assert scores == shuffled(responses, truths)
