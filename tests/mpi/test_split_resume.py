"""A checkpoint of one placement is taken up by another, to the last bit."""

import shutil
from dataclasses import replace

import pytest

from tests.jobs.launch import differing, tensors_of
from tests.mpi.placed_runs import assert_close, configure, run, run_ppo
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


def test_training_continues_on_another_placement(here, tiny_model, shared_directory):
    """A step on ranks apart; then one more there, and in layouts of their own on all ranks.
    Responses are drawn on rank 0, whatever trains."""
    few = {"batch": {"size": 4, "mini_batches": 2, "max_tokens_per_micro_batch": 2000}}
    apart = few | SPLIT | {"placement": SPLIT["placement"] | {"rollout": 0}}
    all_ranks = few | TOGETHER | {"placement": {"rollout": 0}}
    first = configure(shared_directory, tiny_model(), "there", "ppo", steps=1, **apart)
    run(here, first)
    if here.world.rank == 0:
        directory = first.run_directory
        shutil.copytree(directory, directory.with_name("elsewhere"), symlinks=True)
    here.control.barrier()
    runs = []
    for name, placed in (("there", apart), ("elsewhere", all_ranks)):
        config = configure(shared_directory, tiny_model(), name, "ppo", steps=2, **placed)
        runs.append(run_ppo(here, config))
    (rows, there), (rows_elsewhere, elsewhere) = runs
    assert [row["step"] for row in rows_elsewhere] == [1, 2]
    for name in ("actor/loss", "actor/grad_norm", "critic/vf_loss"):
        assert rows_elsewhere[-1][name] == pytest.approx(rows[-1][name], rel=1e-5, abs=1e-5)
    assert_close(elsewhere, there)


@pytest.mark.parametrize("placed", all_slow(TOGETHER | WITHOUT_CRITIC, AHEAD))
def test_a_run_that_generates_ahead_continues_on_other_placements(
    here, tiny_model, shared_directory, placed
):
    """The first run was over after its second step, with nothing ahead of it. On every push what
    placements read is in test_then_on_other_placements, and a resume in the next test."""
    name = f"continues-{bool(placed['placement'])}"
    for steps, where in ((2, AHEAD), (4, placed)):
        config = configure(shared_directory, tiny_model(), name, "grpo", steps=steps, **where)
        rows = run(here, config)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    lags = [row.get("rollout/lag/max") for row in rows]
    assert lags == [0.0, 1.0, *([0.0, 1.0] if placed["placement"] else [None, None])]
    assert all(row["actor/grad_norm"] > 0 for row in rows)


# Greedy responses, and two steps ahead, in one case.
@pytest.mark.parametrize(
    ("advantage", "staleness"), [("remax", 2), *all_slow(("remax", 1), ("grpo", 2))]
)
def test_what_was_made_ahead_is_taken_up(here, tiny_model, shared_directory, advantage, staleness):
    """A run that loses all behind its second step ends as it did, to the last bit; with other
    engines it trains on the same responses."""

    def settings(**changes):
        placed = AHEAD | {"rollout": ROLLOUT | {"staleness": staleness, "max_num_seqs": 3}}
        placed |= {"steps": 4, "checkpoint": {"every": 1, "keep": 9}, **changes}
        placed["algorithm"] = {"advantage": {"name": advantage}}
        return configure(shared_directory, tiny_model(), f"ahead-{advantage}", "rl", **placed)

    def back_to_step_2(config):
        """What was saved later, elsewhere."""
        here.control.barrier()
        lost = shared_directory / f"lost-{advantage}"
        if here.world.rank == 0:
            shutil.rmtree(lost, ignore_errors=True)
            lost.mkdir()
            root = config.run_directory / "checkpoints"
            for step in (3, 4):
                (root / step_name(step)).rename(lost / step_name(step))
        here.control.barrier()
        return lost

    config = settings()
    rows = run(here, config)
    assert [row["rollout/lag/max"] for row in rows] == [0.0, 1.0, *[float(staleness)] * 2]
    lost = back_to_step_2(config)
    again = run(here, config)
    last = config.run_directory / "checkpoints" / step_name(4)
    assert differing(lost / last.name, last) == []
    back_to_step_2(config)
    others = run(here, settings(parallel={}, placement={"train": 0, "rollout": "1-3"}))
    names = ("rollout/lag/mean", "response_length/mean", "critic/score/mean")
    for name in names:
        assert [row[name] for row in again] == [row[name] for row in rows], name
        assert others[2][name] == rows[2][name], name
    if here.world.rank == 0:
        last.rename(last.with_name("lost"))
        for file in last.with_name(step_name(3)).glob("ahead_*.h5"):
            data = file.read_bytes()
            file.write_bytes(data[:4096] + bytes(len(data) - 4096))
    here.control.barrier()
    progress = restore(build_run(here, config, resumes=True))
    assert progress is not None and progress.step == 2, "a file of step 3 is damaged"
