"""Runs train on what black-box programs do with the model: rows, scores, and programs that fail."""

import pytest

from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.mixtures import mixture_for_vllm
from tests.mpi.recipe_runs import ROLLOUT, run
from tests.slow import all_slow
from verl_hpc.errors import EnvironmentStepError

pytestmark = pytest.mark.world(2)

AGENT = """
import json, os, sys, urllib.request

def say(said):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": said, "max_tokens": 6}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    return [*said, message]

row = json.load(open(os.environ["VERL_HPC_ROW"]))
if "fails" in sys.argv and row["index"] % 3 == 1:
    sys.exit("out of order")
first = say([{"role": "user", "content": "a"}])
say([*first, {"role": "user", "content": "b"}])
say([*first, {"role": "user", "content": "c"}])
turns = [0.0, 1.0, len(first[1]["content"] or "") % 3]
json.dump({"turns": turns}, open(os.environ["VERL_HPC_SCORE"], "w"))
"""


def recipe(here, model, directory, name, *words, on_error="stop", replay="none", **rollout):
    """Two steps with vLLM and a program of two conversations that share their first turn."""
    if here.world.rank == 0:
        (directory / f"{name}.py").write_text(AGENT)
    program = {"command": ["python", f"{name}.py", *words], "directory": str(directory)}
    program |= {"sandbox": "none", "network": "node", "on_error": on_error}
    limits = {"engine": "vllm", "kv_cache_gib": 0.03, "temperature": 1.0, "program": program}
    limits |= {"max_prompt_tokens": 96, "max_response_tokens": 60}
    return run(
        here,
        name,
        model,
        directory,
        recipe="rl",
        reward={"function": "program"},
        algorithm={"advantage": {"name": "reinforce_plus_plus"}, "router_replay": replay},
        rollout=ROLLOUT | limits | rollout,
    )


@pytest.mark.parametrize("tensor_parallel", [2, *all_slow(1)])
def test_a_recipe_trains_on_programs(here, tiny_model, shared_directory, tensor_parallel):
    model, name = tiny_model("qwen2", True, **VLLM_HEADS), f"programs-{tensor_parallel}"
    rows = recipe(here, model, shared_directory, name, tensor_parallel=tensor_parallel)
    assert len(rows) == 2
    for row in rows:
        # Two rows an episode, of which one trains on the turn that they share.
        assert row["rollout/turns/mean"] == 1.5
        assert row["training/rollout_log_probs_diff_max"] < 1e-3
        assert 1 <= row["critic/score/mean"] <= 3
        assert row["actor/grad_norm"] > 0


def test_experts_are_replayed_also_where_a_program_took_no_turn(here, tiny_model, shared_directory):
    model, _ = mixture_for_vllm(tiny_model, "normalised")
    given = here, model, shared_directory, "replayed", "fails"
    rows = recipe(*given, on_error="end", replay="rollout", tensor_parallel=2)
    assert sum(row["rollout/environment/num_failed"] for row in rows) > 0
    for row in rows:
        assert row["training/rollout_log_probs_diff_max"] < 1e-3
        assert 0 <= row["actor/router_disagreement"] < 1


def test_a_program_that_fails(here, tiny_model, shared_directory):
    model = tiny_model("qwen2", True, **VLLM_HEADS)
    with pytest.raises(EnvironmentStepError, match="exited with status 1: out of order"):
        recipe(here, model, shared_directory, "failing", "fails", tensor_parallel=2)
    rows = recipe(
        here, model, shared_directory, "counted", "fails", on_error="end", tensor_parallel=2
    )
    assert sum(row["rollout/environment/num_failed"] for row in rows) > 0
    assert all(row["critic/score/min"] == 0 for row in rows)
