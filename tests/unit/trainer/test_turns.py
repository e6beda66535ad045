"""Runs whose responses have several turns: what is trained on, what is scored, what is counted."""

import json

import pytest
import torch

from tests.unit.config.trees import parse
from tests.unit.trainer.runs import loop, small_config, small_run
from verl_hpc.errors import ConfigError, EnvironmentStepError
from verl_hpc.generation.generate import generate
from verl_hpc.step.batch import StepRows
from verl_hpc.testing.local_run import local_run

OWN = """
from verl_hpc.environments.environment import Done, Environment

class Says(Environment):
    "The last letter of the prompt, behind each turn."

    def reset(self, problem):
        self.problem = problem
        if problem.prompt in ("cd", "ef") and FAILS:
            raise ValueError("no c, please")

    def step(self, tokens, text):
        return self.problem.prompt[-1]
"""
REWARD = """
import json

def score(solution_str, turns, response_ids, truncated, stop_reason, **_):
    assert stop_reason == ("length" if truncated else ".")
    with open(NOTES, "a") as file:
        file.write(json.dumps([solution_str, turns, response_ids, truncated]) + "\\n")
    return len(turns) / 10
"""


def environment(directory, fails=False, **config):
    (directory / "own.py").write_text(OWN.replace("FAILS", str(fails)))
    return {"name": f"{directory}/own.py:Says", "max_turns": 3} | config


def changes(directory, **config):
    (directory / "notes.py").write_text(REWARD.replace("NOTES", repr(f"{directory}/notes.jsonl")))
    return {
        "rollout__environment": environment(directory, **config),
        "rollout__max_response_tokens": 12,
        "reward__function": f"{directory}/notes.py:score",
        "steps": 3,
    }


def test_a_run_learns_from_what_the_model_said_alone(tmp_path):
    _, metrics = loop(small_run(tmp_path, **changes(tmp_path), evaluation__every=2))
    assert [line["step"] for line in metrics if "rollout/turns/mean" in line] == [1, 2, 3]
    assert max(line.get("rollout/turns/max", 0) for line in metrics) in (2, 3)
    assert all(line.get("rollout/environment/num_failed", 0) == 0 for line in metrics)
    assert any("val/score/mean" in line for line in metrics)
    asked = [json.loads(line) for line in (tmp_path / "notes.jsonl").read_text().splitlines()]
    assert [turns for _, turns, _, _ in asked if len(turns) > 1]
    for solution, turns, ids, _ in asked:
        expected = ["assistant", "environment"] * (len(turns) // 2) + ["assistant"]
        assert [turn["role"] for turn in turns] == expected
        assert solution == turns[-1]["content"], "of several turns the last"
        assert ids == [token for turn in turns for token in turn["token_ids"]]


def test_tokens_of_an_environment_are_masked(tmp_path):
    run = small_run(tmp_path, **changes(tmp_path))
    settings, rollout = run.settings.generate, run.rollout
    (samples, columns), _ = generate(rollout.place, rollout, settings, StepRows(1, [0, 2]))
    seen = 0
    for row, position in enumerate(columns.positions):
        sample, mask = samples.samples[position], columns["mask"][row]
        response = columns["tokens"][row][sample.prompt_length :]
        assert len(response) == len(mask) == sample.response_length
        observed = response[mask == 0]
        assert observed.tolist() == [ord("bc"[sample.group]) - ord("a") + 1] * len(observed)
        assert torch.equal(columns["rollout_log_probs"][row][mask == 0], torch.zeros(len(observed)))
        seen += len(observed)
    assert seen


def test_a_conversation_without_room_for_an_answer_was_cut(tmp_path):
    long = OWN.replace("FAILS", "False").replace("self.problem.prompt[-1]\n", '"c" * 12\n')
    (tmp_path / "long.py").write_text(long)
    asked = changes(tmp_path) | {"rollout__environment": {"name": f"{tmp_path}/long.py:Says"}}
    run = small_run(tmp_path, **asked)
    rows = StepRows(1, [0, 1, 2, 3])
    (samples, columns), _ = generate(run.rollout.place, run.rollout, run.settings.generate, rows)
    assert any(tokens[-1] == 0 for tokens in columns["tokens"]), "some have ended their turn"
    assert all(sample.truncated for sample in samples)


@pytest.mark.parametrize("purpose", ["greedy", "evaluation"])
def test_greedy_answers_and_evaluations_have_turns_too(tmp_path, purpose):
    run = small_run(tmp_path, **changes(tmp_path))
    settings = run.settings.generate.greedily(run.settings.problems, purpose)
    rows = StepRows(1, [0, 1, 2, 3])
    (_, columns), metrics = generate(run.rollout.place, run.rollout, settings, rows)
    assert metrics["rollout/turns/max"] >= 1
    again = generate(run.rollout.place, run.rollout, settings, rows)[0][1]
    for name in ("tokens", "mask"):
        pairs = zip(columns[name], again[name], strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), "the same seeds in every evaluation"


def test_a_step_that_fails_ends_the_run(tmp_path):
    with pytest.raises(EnvironmentStepError, match=r"train\.jsonl.*no c, please"):
        loop(small_run(tmp_path, **changes(tmp_path, fails=True)))


def test_or_is_counted(tmp_path, caplog):
    _, metrics = loop(small_run(tmp_path, **changes(tmp_path, fails=True, on_error="end")))
    assert sum(line.get("rollout/environment/num_failed", 0) for line in metrics) > 0
    assert "because a step of their environment failed" in caplog.text
    assert "no c, please" in caplog.text


def test_also_of_an_evaluation(tmp_path):
    more = changes(tmp_path, fails=True, on_error="end") | {"steps": 1}
    _, metrics = loop(small_run(tmp_path, **more, evaluation__at_start=True))
    # Of three held-out prompts one fails, if its first turn ends at all.
    assert {line["val/num_failed"] for line in metrics if "val/num_failed" in line} <= {0, 1}
    assert any("val/num_failed" in line for line in metrics)


WITH_TURNS = [
    ({"algorithm__advantage": {"name": "remax"}}, "greedy/"),
    ({"algorithm__drop_equal_groups": True, "batch__refill_rounds": 2, "steps": 2}, ""),
]


@pytest.mark.parametrize(("more", "prefix"), WITH_TURNS)
def test_remax_and_refilled_batches_have_turns(tmp_path, more, prefix):
    _, metrics = loop(small_run(tmp_path, **changes(tmp_path) | more))
    for line in metrics:
        assert line[f"{prefix}rollout/turns/mean"] >= 1
        assert line["rollout/environment/num_failed"] == 0


def test_a_class_that_cannot_be_made_is_an_error_at_start(tmp_path):
    config = small_config(tmp_path, **changes(tmp_path, options={"words": 3}))
    with pytest.raises(ConfigError, match=r"rollout\.environment\.options.*words"):
        loop(local_run(config))


CALCULATOR = {"name": "calculator"}
SECRET = CALCULATOR | {"options": {"api_key": "sk-1234"}}


UNFIT_SETTINGS = [
    ({"recipe": "sft"}, "rollout.environment with recipe: sft, which generates nothing"),
    ({"rollout__environment": {"name": "calculater"}}, "calculator"),
    ({"rollout__environment": SECRET}, "looks like a secret"),
]


@pytest.mark.parametrize(("more", "words"), UNFIT_SETTINGS)
def test_settings_that_do_not_go_together(more, words):
    with pytest.raises(ConfigError, match=words):
        parse(**{"rollout__environment": CALCULATOR} | more)
