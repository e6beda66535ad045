"""Roles on ranks of their own, in layouts of their own, compute what roles on all ranks do."""

import re
from pathlib import Path

import pytest

from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.placed_runs import assert_close, configure, run, run_ppo
from tests.mpi.recipe_runs import assert_same
from verl_hpc.metrics.timeline import read_timeline

pytestmark = pytest.mark.world(4)

PAGE = (Path(__file__).parents[2] / "docs/placements.md").read_text()
METRICS = ("actor/", "critic/", "response", "prompt", "training/")


def test_ppo_split_equals_all_together(here, tiny_model, shared_directory):
    """One run is placed like examples/ppo_split.yaml of configs/run, the other not at all. Samples
    of vLLM do not depend on the rank that draws them."""
    runs, limits = [], {"num_samples": 2, "max_prompt_tokens": 160, "max_response_tokens": 12}
    limits["kv_cache_gib"] = 0.05
    for name, placement in (("whole", {}), ("split", {"actor": "0-1", "critic": 2, "reward": 3})):
        config = configure(
            shared_directory,
            tiny_model(**VLLM_HEADS, head_dim=32),
            name,
            "ppo",
            parallel={"tensor_parallel": 2},
            roles={"critic": {"optimizer": {"lr": 1e-4}, "parallel": {}}},
            placement=placement,
            steps=2,
            rollout=limits,
        )
        runs.append(run_ppo(here, config))
    (rows, weights), (split_rows, split_weights) = runs
    assert len(rows) == 2
    assert_same(split_rows, rows, METRICS)
    assert_close(split_weights, weights)
    (drawn,) = re.findall(r"^```\n(rl\(rows\)\n.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert drawn in (config.run_directory / "flow.txt").read_text()


MEETING = """
import os
import time
from pathlib import Path
from verl_hpc.step.operators.assign import assign
from verl_hpc.generation.generate import generate
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.step.operator import operator


met = []


def meet_all_four():
    folder = Path(__file__).parent
    met.append(None)
    (folder / f"{len(met)}-{os.getpid()}").touch()
    ends = time.monotonic() + 60
    while len([*folder.glob(f"{len(met)}-*")]) < 4:
        assert time.monotonic() < ends, "the others were told to wait"
        time.sleep(0.005)


@operator("one")
def meet_here(place, samples):
    meet_all_four()
    return place.rank, {"met/here": 1.0}


@operator("two")
def meet_there(place, samples):
    meet_all_four()
    return place.rank, {"met/there": 1.0}


@operator(changes_state=True)
def use(place, role, samples):
    return (), {}


def meeting(run):
    recipe = Recipe("meeting", run)
    recipe.operator(generate, roles=["rollout"], settings=run.settings.generate, name="rollout")
    recipe.operator(assign, settings=run.settings.assign, place="rollout")
    recipe.operator(meet_here, place="actor")
    # A change on the actor's ranks is none of the others' business.
    recipe.operator(use, roles=["actor"], name="change", inputs={"samples": "one"})
    recipe.operator(meet_there, place="critic")
    recipe.operator(use, roles=["actor"], name="use_actor")
    recipe.operator(use, roles=["critic"], name="use_critic")
    return recipe
"""


def test_operators_on_ranks_of_their_own_overlap(here, tiny_model, shared_directory):
    """Each waits in its step for the other, and for nothing else."""
    file = shared_directory / "meeting" / "meeting.py"
    if here.world.rank == 0:
        file.parent.mkdir()
        file.write_text(MEETING)
    here.control.barrier()
    config = configure(
        shared_directory,
        tiny_model(),
        "meeting",
        f"{file}:meeting",
        steps=3,
        batch={"size": 2},
        roles={"actor": {}, "critic": {}},
        placement={"actor": "0-1", "critic": "2-3", "rollout": 0},
        reward={"function": f"{shared_directory}/reward.py:compute_score"},
    )
    rows = run(here, config)
    assert all(row["met/here"] == row["met/there"] == 1.0 for row in rows)
    intervals = [i for i in read_timeline(config.run_directory, None) if "meet" in i.operator]
    for step in (1, 2, 3):
        mine = [i for i in intervals if i.step == step and i.operator == "meet_here"]
        theirs = [i for i in intervals if i.step == step and i.operator == "meet_there"]
        assert {i.rank for i in mine} == {0, 1} and {i.rank for i in theirs} == {2, 3}
        overlap = min(i.stop for i in mine + theirs) - max(i.start for i in mine + theirs)
        assert overlap > 0, "seconds that all four were there at once"
