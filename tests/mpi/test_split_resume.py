"""A checkpoint of one placement is taken up by another, to the last bit."""

from dataclasses import replace

import pytest

from tests.jobs.launch import differing, tensors_of
from tests.mpi.placed_runs import configure, run
from verl_hpc.checkpoint.schema import step_name
from verl_hpc.trainer.build import build_run
from verl_hpc.trainer.state import restore, save

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


def test_split_then_together_then_split_in_another_way(here, tiny_model, shared_directory):
    def settings(**changes):
        changes |= {"checkpoint": {"keep": 9}}
        return configure(shared_directory, tiny_model(), "resume", "ppo", **changes)

    config = settings(steps=1, **SPLIT)
    run(here, config)
    root = config.run_directory / "checkpoints"
    for done, placed in enumerate((TOGETHER, OTHER_SPLIT, SPLIT), start=1):
        context = build_run(here, settings(**placed), resumes=True)
        progress = restore(context)
        assert progress is not None and progress.step == done
        save(context, replace(progress, step=done + 1))
        here.control.barrier()
        trained, untouched = (root / step_name(step) for step in (1, done + 1))
        names = tensors_of(trained)
        assert any("critic.optimizer" in n for n in names)
        assert differing(trained, untouched) == [], placed["placement"]
        here.control.barrier()
