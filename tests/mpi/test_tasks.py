"""Several tasks and a guard on four ranks: TP2 x DP2 on all, and generation on ranks apart."""

import json

import pytest

from tests.mpi.placed_runs import configure, run, run_again
from tests.mpi.recipe_runs import BATCH, ROLLOUT
from tests.slow import all_slow
from verl_hpc.errors import TrainingError

pytestmark = pytest.mark.world(4)

TOGETHER = {"parallel": {"tensor_parallel": 2}, "rollout": ROLLOUT}
APART = {
    "parallel": {"tensor_parallel": 2},
    "placement": {"train": "0-1", "rollout": "2-3"},
    "rollout": ROLLOUT | {"staleness": 1},
}


def files(here, directory):
    """Answers to imitate, and pairs of a better and a worse answer."""
    sums = [(f"{i}+{i + 1}=", str(2 * i + 1)) for i in range(8)]
    rows = {
        "answers": [{"prompt": p, "answer": a} for p, a in sums],
        "pairs": [{"prompt": p, "chosen": a, "rejected": a + "0"} for p, a in sums],
    }
    if here.world.rank == 0:
        for name, of_file in rows.items():
            (directory / f"{name}.jsonl").write_text("\n".join(map(json.dumps, of_file)))
    here.control.barrier()
    return {n: {"kind": "files", "paths": [f"{directory}/{n}.jsonl"]} for n in rows}


def settings(here, model, directory, name, placed, **changes):
    data = files(here, directory)
    tasks = {
        "score": {"weight": 0.4, "algorithm": {"kl": {"placement": "loss"}}},
        "answer": {"weight": 0.4, "recipe": "sft", "train": data["answers"]},
        "prefer": {"weight": 0.2, "recipe": "dpo", "train": data["pairs"]},
    }
    given = {
        "steps": 12,
        "tasks": tasks,
        "mix": {"min_weight": 0.2},
        "batch": BATCH | {"mini_batches": 1, "size": 4},
        "optimizer": {"lr": 1e-3},
        "checkpoint": {"every": 1, "keep": 99},
    }
    return configure(directory, model, name, "rl", **placed | given | changes)


def of_steps(rows):
    """Rows without times."""
    return [{n: v for n, v in row.items() if n.startswith(("task/", "actor/"))} for row in rows]


@pytest.mark.parametrize("placed", [APART, *all_slow(TOGETHER)], ids=["apart", "together"])
def test_three_tasks_learn_and_a_killed_run_ends_with_the_same_bits(
    here, tiny_model, shared_directory, placed
):
    name = f"tasks-{len(placed)}"
    config = settings(here, tiny_model(), shared_directory, name, placed)
    rows = run(here, config)
    by_task = {
        task: [row[metric] for row in rows if metric in row]
        for task, metric in {
            "score": "task/score/actor/grad_norm",
            "answer": "task/answer/sft/loss",
            "prefer": "task/prefer/preference/loss",
        }.items()
    }
    assert sum(map(len, by_task.values())) == 12
    assert all(norm > 0 for norm in by_task["score"])
    assert by_task["answer"][-1] < by_task["answer"][0]
    assert by_task["prefer"][-1] < by_task["prefer"][0]
    assert all(row[f"task/{task}/weight"] >= 0.2 for row in rows for task in by_task)
    again, differences = run_again(here, config, range(6, 13), shared_directory)
    assert of_steps(again) == of_steps(rows)
    assert differences == []


@pytest.mark.parametrize("placed", [APART, *all_slow(TOGETHER)], ids=["apart", "together"])
def test_a_guard_takes_all_ranks_back_to_the_step_before_the_fall(
    here, tiny_model, shared_directory, placed
):
    """Shares change at a step that the guard takes for a fall."""
    schedule = {
        "score": {"schedule": {4: 0.8, 5: 0.2}},
        "answer": {
            "schedule": {4: 0.2, 5: 0.8},
            "recipe": "sft",
            "train": files(here, shared_directory)["answers"],
        },
    }
    guards = {
        "shares": {
            "metric": "task/score/weight",
            "below": 0.5,
            "action": "rollback",
            "max_rollbacks": 1,
        }
    }
    config = settings(
        here,
        tiny_model(),
        shared_directory,
        f"guarded-{len(placed)}",
        placed,
        tasks=schedule,
        guards=guards,
        checkpoint={"every": 2, "keep": 9},
    )
    with pytest.raises(TrainingError, match=r"guards\.shares.*after 1 rollbacks"):
        run(here, config)
    here.control.barrier()
    (line,) = map(json.loads, (config.run_directory / "guards.jsonl").read_text().splitlines())
    assert (line["step"], line["good_until"], line["to"]) == (5, 4, 4)
    rows = sorted(line["tasks"])
    assert rows == ["answer", "score"]
