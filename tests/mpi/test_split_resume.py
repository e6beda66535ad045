"""A checkpoint of one placement is taken up by another, to the last bit."""

from dataclasses import replace

import pytest

from tests.jobs.launch import differing, tensors_of
from tests.mpi.placed_runs import configure, run, run_again
from tests.mpi.recipe_runs import ROLLOUT
from tests.slow import all_slow
from verl_hpc.checkpoint.schema import step_name
from verl_hpc.trainer.build import build_run
from verl_hpc.trainer.saves import save
from verl_hpc.trainer.state import restore

pytestmark = pytest.mark.world(4)


def critic(**parallel):
    return {"critic": {"parallel": parallel, "optimizer": {"lr": 1e-4}}}


SPLIT = {
    "parallel": {"tensor_parallel": 2},
    "roles": critic(),
    "placement": {"actor": "0-1", "critic": 2, "reward": 3, "rollout": "0-1"},
}
TOGETHER = {
    "parallel": {"tensor_parallel": 2, "pipeline_parallel": 2},
    "roles": critic(tensor_parallel=4),
    "placement": {},
}
OTHER_SPLIT = {
    "parallel": {"pipeline_parallel": 2},
    "roles": critic(),
    "placement": {"critic": "0-1", "actor": "2-3", "rollout": "2-3"},
}


AHEAD = {
    "parallel": {"tensor_parallel": 2},
    "placement": {"train": "0-1", "rollout": "2-3"},
    "rollout": ROLLOUT | {"staleness": 1},
}
REWARD_APART = {
    "parallel": {"pipeline_parallel": 2},
    "placement": {"actor": "2-3", "reward": "0-1"},
}
WITHOUT_CRITIC = {"roles": {}, "rollout": ROLLOUT}


@pytest.mark.parametrize(
    ("recipe", "first", "others"),
    [
        ("ppo", SPLIT, (TOGETHER, OTHER_SPLIT, SPLIT)),
        ("grpo", AHEAD, (TOGETHER | WITHOUT_CRITIC, REWARD_APART, AHEAD)),
    ],
    ids=["split", "ahead"],
)
def test_then_on_other_placements(here, tiny_model, shared_directory, recipe, first, others):
    """What one placement saves another reads, and saves again to the last bit."""

    def settings(**changes):
        changes |= {"checkpoint": {"keep": 9}}
        return configure(shared_directory, tiny_model(), f"resume-{recipe}", recipe, **changes)

    config = settings(steps=1, **first)
    run(here, config)
    root = config.run_directory / "checkpoints"
    for done, placed in enumerate(others, start=1):
        context = build_run(here, settings(**placed), resumes=True)
        progress = restore(context)
        assert progress is not None and progress.step == done
        save(context, replace(progress, step=done + 1))
        here.control.barrier()
        trained, untouched = (root / step_name(step) for step in (1, done + 1))
        if here.world.rank == 0:
            trained_role = "critic" if recipe == "ppo" else "actor"
            assert any(f"{trained_role}.optimizer" in n for n in tensors_of(trained))
            assert differing(trained, untouched) == [], placed["placement"]
        here.control.barrier()


# Greedy responses, and two steps ahead, in one case.
@pytest.mark.parametrize(
    ("advantage", "staleness"), [("remax", 2), *all_slow(("remax", 1), ("grpo", 2))]
)
def test_what_was_made_ahead_is_taken_up(here, tiny_model, shared_directory, advantage, staleness):
    """A run that loses all behind its second step ends as it did, to the last bit."""
    placed = AHEAD | {"rollout": ROLLOUT | {"staleness": staleness, "max_num_seqs": 3}}
    placed |= {"algorithm": {"advantage": {"name": advantage}}}
    placed |= {"steps": 4, "checkpoint": {"every": 1, "keep": 9}}
    config = configure(shared_directory, tiny_model(), f"ahead-{advantage}", "rl", **placed)
    rows = run(here, config)
    assert [row["rollout/lag/max"] for row in rows] == [0.0, 1.0, *[float(staleness)] * 2]
    again, differences = run_again(here, config, (3, 4), shared_directory)
    assert differences == []
    for name in ("rollout/lag/mean", "response_length/mean", "critic/score/mean"):
        assert [row[name] for row in again] == [row[name] for row in rows], name
    if here.world.rank == 0:
        steps = config.run_directory / "checkpoints"
        (steps / step_name(4)).rename(steps / "lost")
        for file in (steps / step_name(3)).glob("ahead_*.h5"):
            data = file.read_bytes()
            file.write_bytes(data[:4096] + bytes(len(data) - 4096))
    here.control.barrier()
    progress = restore(build_run(here, config, resumes=True))
    assert progress is not None and progress.step == 2, "a file of step 3 is damaged"
