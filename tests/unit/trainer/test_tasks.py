"""Runs of several tasks in this process: three kinds of steps on one actor."""

import json
import shutil
from collections import Counter

import pytest

from tests.jobs.launch import differing
from tests.unit.trainer.runs import files, lines, loop, recipe_of, small_run
from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.schema import step_name
from verl_hpc.errors import ConfigError, DataError, RewardError, TrainingError
from verl_hpc.trainer.guards import read_violations, resume
from verl_hpc.trainer.loop import Loop
from verl_hpc.trainer.records import open_records
from verl_hpc.trainer.state import START
from verl_hpc.trainer.train import take_steps

ADAPTIVE = {"placement": "reward", "controller": "adaptive", "coefficient": 0.01}
NUMBERS = ("mean", "square", "weight")
PAIRS = [{"prompt": p, "chosen": p + "a", "rejected": p + "b"} for p in ("ab", "cd", "e")]


def tasks(directory, **weights):
    """Longer responses are better; answers are the prompts backwards; one answer beats another."""
    (directory / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)))
    given = {
        "longer": {"algorithm": {"kl": ADAPTIVE}},
        "backwards": {"recipe": "sft", "train": files(directory, "back.jsonl", ["ab", "cd", "dc"])},
        "better": {
            "recipe": "dpo",
            "train": {"kind": "files", "paths": [f"{directory}/pairs.jsonl"]},
        },
    }
    return {name: {"weight": weights.get(name, 1 / 3)} | task for name, task in given.items()}


def run_of(directory, **changes):
    given = {"steps": 12, "tasks": tasks(directory), "optimizer__lr": 3e-2, "held_out": None}
    given |= {"rollout__num_samples": 3}
    return small_run(directory, **given | {"checkpoint": {"every": 1, "keep": 99}} | changes)


def task_of(row):
    (name,) = {n.split("/")[1] for n in row if n.startswith("task/") and n.count("/") > 2}
    return name


def of_steps(rows):
    """Rows without times."""
    return [{n: v for n, v in row.items() if n.startswith(("task/", "actor/"))} for row in rows]


def test_three_kinds_of_tasks_learn(tmp_path):
    _, rows = loop(run_of(tmp_path, steps=60, checkpoint={}))
    by_task = {}
    for row in rows:
        by_task.setdefault(task_of(row), []).append(row)
    assert {*by_task} == {"longer", "backwards", "better"}
    first = {name: of_task[0] for name, of_task in by_task.items()}
    last = {name: of_task[-1] for name, of_task in by_task.items()}
    loss = "task/backwards/sft/loss"
    assert last["backwards"][loss] < 0.8 * first["backwards"][loss]
    loss = "task/better/preference/loss"
    assert last["better"][loss] < 0.8 * first["better"][loss]
    score = "critic/score/mean"
    scores = [row[f"task/longer/{score}"] for row in by_task["longer"]]
    assert sum(scores[-4:]) > sum(scores[:4])
    assert all(row[score] == row[f"task/longer/{score}"] for row in by_task["longer"])
    assert all(row["task/better/weight"] == pytest.approx(1 / 3) for row in rows)


def test_a_killed_run_goes_on_with_the_same_tasks_rows_and_bits(tmp_path):
    changes = {"tasks": tasks(tmp_path), "reward__smoothing": {"decay": 0.5}}
    whole = run_of(tmp_path, name="whole", **changes)
    loop(whole)
    run_of(tmp_path, name="killed", **changes)
    root = tmp_path / "runs"
    shutil.copytree(root / "whole", root / "killed", dirs_exist_ok=True, symlinks=True)
    for step in range(6, 13):
        shutil.rmtree(root / "killed/checkpoints" / step_name(step))
    resumed = run_of(tmp_path, name="killed", **changes)
    _, rows = loop(resumed, resumes=True)
    assert [row["step"] for row in rows] == [*range(1, 13)]
    assert of_steps(rows) == of_steps(lines(whole))
    last = "checkpoints", step_name(12)
    assert differing(root.joinpath("whole", *last), root.joinpath("killed", *last)) == []
    state = Step(root.joinpath("killed", *last)).state
    counts = Counter(map(task_of, rows))
    assert {name: task.num_steps for name, task in state.tasks.items()} == counts
    assert state.tasks["longer"].kl_coefficient != ADAPTIVE["coefficient"]
    assert state.numbers["tasks.longer.reward.smoothing.weight"] > 0


def test_a_rollback_to_the_start_skips_the_rows_of_each_task(tmp_path):
    always = {"metric": "task/longer/weight", "above": 0.1, "action": "rollback"}
    run = run_of(tmp_path, guards={"always": always | {"max_rollbacks": 1}})
    run.session.watchdog.errands = []
    with pytest.raises(TrainingError, match="after 1 rollbacks"):
        take_steps(run, recipe_of(run), None, None, None)
    (line,) = read_violations(run.config.run_directory)
    assert (line["to"], sum(task["offset"] for task in line["tasks"].values())) == (0, 2)
    progress = resume(run)
    assert {name: vars(task.position) for name, task in progress.tasks.items()} == line["tasks"]
    coefficient = progress.tasks["longer"].kl_coefficient
    assert coefficient == run.tasks["longer"].kl.coefficient == ADAPTIVE["coefficient"]


def test_scores_move_the_shares(tmp_path):
    (tmp_path / "always.py").write_text("def score(response, ground_truth):\n    return 1.0\n")
    both = {"easy": {"reward": {"function": f"{tmp_path}/always.py:score"}}, "hard": {}}
    run = run_of(tmp_path, tasks=both, mix={"by": "success", "min_weight": 0.2}, steps=24)
    _, rows = loop(run)
    assert rows[0]["task/easy/weight"] == 0.5
    assert rows[-1]["task/easy/weight"] == pytest.approx(0.2)
    assert all(row["task/easy/weight"] >= 0.2 - 1e-12 for row in rows)
    later = Counter(map(task_of, rows[8:]))
    assert later["hard"] > later["easy"] > 0


def test_an_evaluation_and_smoothing_of_one_task(tmp_path):
    chosen = {
        "plain": {},
        "smooth": {"reward": {"function": f"{tmp_path}/reward.py:score", "smoothing": {}}},
    }
    run = small_run(tmp_path, steps=6, tasks=chosen, evaluation={"every": 3})
    _, rows = loop(run)
    assert [row["step"] for row in rows if "val/score/mean" in row] == [3, 6]
    assert {*run.numbers} == {f"tasks.smooth.reward.smoothing.{n}" for n in NUMBERS}
    assert run.numbers["tasks.smooth.reward.smoothing.weight"].value > 0
    smoothed = [row for row in rows if "reward/ema_mean" in row]
    assert smoothed and {*map(task_of, smoothed)} == {"smooth"}


def test_a_flow_of_the_first_task_does_not_evaluate_the_run(tmp_path):
    run = small_run(tmp_path, steps=2, tasks=tasks(tmp_path), evaluation={"every": 2})
    recipe = recipe_of(run)
    recipe.evaluation = recipe.of_tasks["better"]
    with open_records(run, None) as records:
        Loop(run, recipe, records).to_the_end(START)
    assert "val/score/mean" in lines(run)[-1]


def test_what_is_wrong_with_a_task_is_named_by_its_settings(tmp_path):
    loss = {"algorithm": {"loss": {"name": f"{tmp_path}/none.py:Loss"}}}
    with pytest.raises(ConfigError, match=r"tasks\.longer: algorithm\.loss\.name"):
        recipe_of(run_of(tmp_path, tasks={"longer": loss, "plain": {}}))
    task = {"recipe": "sft", "train": files(tmp_path, "held.jsonl", ["bb"])}
    with pytest.raises(DataError, match=r"occur in tasks\.copied\.train"):
        run_of(tmp_path, tasks={"plain": {}, "copied": task}, held_out=["bb"])
    with pytest.raises(DataError, match=r"every prompt of tasks\.long\.train was dropped"):
        long = {"recipe": "sft", "train": files(tmp_path, "long.jsonl", ["abcd"])}
        loop(run_of(tmp_path, tasks={"long": long, "plain": {}}, rollout__overlong_prompt="drop"))


def test_a_reward_of_a_task_that_is_not_there_is_named_by_its_setting(tmp_path):
    missing = {"reward": {"function": f"{tmp_path}/none.py:score"}}
    with pytest.raises(RewardError, match=r"tasks\.longer\.reward.*none\.py"):
        run_of(tmp_path, tasks={"longer": missing, "plain": {}})


def test_the_distribution_of_rewards_is_that_of_the_task(tmp_path):
    prometheus = {"textfile": f"{tmp_path}/run.prom"}
    loop(run_of(tmp_path, steps=4, checkpoint={}, metrics={"prometheus": prometheus}))
    lines = (tmp_path / "run.prom").read_text().splitlines()
    told = [line for line in lines if line.startswith("verl_reward_bucket")]
    assert told and all('task="longer"' in line for line in told)
