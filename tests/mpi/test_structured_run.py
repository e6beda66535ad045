"""A run on two ranks whose tasks' responses are constrained, each otherwise, in vLLM's engine."""

import pytest

from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.recipe_runs import BATCH, ROLLOUT, run
from verl_hpc.errors import ConfigError

pytestmark = pytest.mark.world(2)

REWARD = """
import re

def digits(response, ground_truth):
    return float(re.fullmatch("[0-9]{2,4}", response) is not None)

def word(response, ground_truth):
    return float(response in ("yes", "no"))
"""
TASKS = {
    "digits": {"structured": {"regex": "[0-9]{2,4}"}},
    "word": {"structured": {"choice": ["yes", "no"]}},
}


def settings(here, directory, regex):
    if here.world.rank == 0:
        (directory / "constrained.py").write_text(REWARD)
    here.control.barrier()
    tasks = {
        name: task | {"reward": {"function": f"{directory}/constrained.py:{name}"}}
        for name, task in TASKS.items()
    }
    tasks["digits"]["structured"] = {"regex": regex}
    return {
        "recipe": "rl",
        "steps": 6,
        "tasks": tasks,
        "batch": BATCH | {"mini_batches": 1},
        "rollout": ROLLOUT | {"engine": "vllm", "kv_cache_gib": 0.05, "verify": {"probe": False}},
    }


def test_every_response_of_a_task_is_what_its_constraint_says(here, tiny_model, shared_directory):
    model = tiny_model("qwen2", True, **VLLM_HEADS)
    changes = settings(here, shared_directory, "[0-9]{2,4}")
    rows = run(here, "constrained", model, shared_directory, **changes)
    for name in TASKS:
        metric = f"task/{name}/critic/score/min"
        assert {row[metric] for row in rows if metric in row} == {1.0}
    # The trainer's log-probs are of all tokens, vLLM's of the allowed ones.
    assert min(row["training/rollout_log_probs_diff_mean"] for row in rows) > 0.1


def test_a_constraint_of_a_task_is_compiled_before_the_first_step(
    here, tiny_model, shared_directory
):
    model = tiny_model("qwen2", True, **VLLM_HEADS)
    changes = settings(here, shared_directory, "(")
    with pytest.raises(ConfigError, match=r"^tasks\.digits\.structured\.regex: vLLM refuses it: "):
        run(here, "uncompiled", model, shared_directory, **changes)
    # As a job reads them, with the nulls; and of another compiler than the first task's.
    nulls = {"regex": None, "choice": None, "grammar": None}
    schema = {"type": "integer", "multipleOf": 3}
    changes = settings(here, shared_directory, "[0-9]")
    changes["tasks"]["word"]["structured"] = nulls | {"json_schema": schema}
    with pytest.raises(ConfigError, match=r"^tasks\.word\.structured\.json_schema: vLLM would"):
        run(here, "other-compiler", model, shared_directory, **changes)
