"""A run whose responses are scored in processes while it generates ends with the weights of one
that scores them itself, also where one of these processes is killed."""

import json

import pytest

from tests.mpi.recipe_runs import BATCH, configure
from tests.slow import all_slow
from verl_hpc.runtime.session import Session
from verl_hpc.trainer.train import train

pytestmark = pytest.mark.world(2, 4, often=2)

REWARD = """
import os, signal
from pathlib import Path


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if DIES and os.getppid() != DIES:
        died = Path(__file__).with_suffix(f".{os.getsid(os.getppid())}")
        if not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return (sum(map(ord, solution_str)) % 5) / 4
"""
TIMES = ("time", "timing", "cpu_s/", "perf/", "memory", "reshard/seconds")


@pytest.fixture
def metrics(here: Session, tiny_model, shared_directory):
    """`metrics(name, processes, **rollout)`: of the two steps of a run."""
    model = tiny_model("qwen2", True, hidden_size=64, num_attention_heads=2, num_key_value_heads=2)

    def run(name, processes, dies=False, **rollout):
        file = shared_directory / f"{name}.py"
        if here.world.rank == 0:
            file.write_text(REWARD.replace("DIES", "1" if dies else "0"))
        here.control.barrier()
        sizes = {"max_prompt_tokens": 96, "overlong_prompt": "drop", "max_response_tokens": 24}
        config = configure(
            f"scored-{name}",  # tests of one session share a directory
            model,
            shared_directory,
            recipe="rl",
            batch=BATCH,
            rollout=sizes | {"num_samples": 4, "kv_cache_gib": 0.05} | rollout,
            reward={"function": f"{file}:compute_score", "timeout_s": 20},
            runtime={"reward_processes": processes},
        )
        train(here, config)
        here.control.barrier()
        rows = map(json.loads, (config.run_directory / "metrics.jsonl").read_text().splitlines())
        return [{k: v for k, v in row.items() if not k.startswith(TIMES)} for row in rows]

    return run


@pytest.mark.parametrize(
    "rollout",
    [
        {"tensor_parallel": 2},
        *all_slow({"engine": "hf", "max_num_seqs": 3}, {"tensor_parallel": 1}),
    ],
    ids=["engines-of-two", "hf", "engines-of-one"],
)
def test_the_weights_are_the_same(metrics, request, rollout):
    name = request.node.callspec.id
    alone = metrics(f"alone-{name}", 0, **rollout)
    beside = metrics(f"beside-{name}", 2, **rollout)
    assert beside == alone
    assert {"actor/grad_norm", "critic/score/mean"} <= alone[-1].keys()
    assert 0 < alone[-1]["critic/score/mean"] < 1


def test_processes_that_are_killed_change_nothing(metrics, shared_directory, here):
    alone = metrics("alone", 0, engine="hf")
    killed = metrics("killed", 2, dies=True, engine="hf")
    assert killed == alone
    assert len([*shared_directory.glob("killed.*[0-9]")]) == here.world.size
