"""Killed, resumed, repeated: the same weights to the last bit."""

import os
import random
import shutil
import signal
import time

import pytest

from tests.jobs import launch
from tests.jobs.conftest import ppo
from tests.slow import mostly_slow
from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.schema import step_name, step_number
from verl_hpc.checkpoint.store import complete_steps
from verl_hpc.metrics.log import read_metrics

STEPS = 10


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model):
    """The run nothing happened to; a test that continues it takes a copy."""
    directory = tmp_path_factory.mktemp("undisturbed")
    tree = ppo(model, directory) | {"steps": STEPS}
    launch.trained(2, launch.write_config(directory / "config.yaml", tree))
    return directory / "run"


@pytest.mark.parametrize(
    ("num_kills", "steps"),
    [(2, STEPS), pytest.param(20, 100, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_kill_9_of_any_rank_at_any_time_then_resume(tree, tmp_path, undisturbed, num_kills, steps):
    """Every other kill is aimed at the writing of a save; the rest fall where they may."""
    calm = undisturbed
    if steps != STEPS:
        calm = tmp_path / "calm"
        longer = tree | {"name": calm.name, "steps": steps}
        launch.trained(2, launch.write_config(tmp_path / "calm.yaml", longer))
    chance = random.Random(20)
    config = launch.write_config(
        tmp_path / "config.yaml", tree | {"name": "killed", "steps": steps}
    )
    root = tmp_path / "killed/checkpoints"
    hits_of = [
        kill_once(config, root, chance, aimed=bool(number % 2)) for number in range(num_kills)
    ]
    under_way, torn = (sum(hits) for hits in zip(*hits_of, strict=True))
    print(f"{under_way} of {num_kills} kills hit a save under way, {torn} a file half written")
    assert under_way >= max(num_kills // 4, 1)
    assert newest(root) < steps, "nothing was left to do"
    launch.trained(2, config)
    assert launch.differing(calm / "checkpoints/latest", root / "latest") == []
    assert launch.differing(calm / "checkpoints" / step_name(steps - 1), root / "latest") != []
    assert [row["step"] for row in read_metrics(tmp_path / "killed")] == list(range(1, steps + 1))


def kill_once(config, root, chance, aimed):
    """Kill a rank of a job that has made a step; whether a save was under way, and not all of its
    ranks' files were written."""
    job = launch.start_training(2, config)
    before = newest(root)
    assert launch.wait_until(lambda: newest(root) > before, job), "the run is over"
    victim = chance.choice(launch.ranks_of(job))
    if aimed:
        seen = partials(root)
        while partials(root) <= seen and job.poll() is None:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.005))
    else:
        time.sleep(chance.uniform(0, 0.4))
    os.kill(victim, signal.SIGKILL)
    status, _ = launch.finish(job, timeout=60)
    assert status != 0, "a job that lost a rank must not look well"
    left = [sizes(path) for path in partials(root)]
    return bool(left), any(files != sizes(complete_steps(root)[0]) for files in left)


def newest(root):
    return max((step_number(path) for path in complete_steps(root)), default=0)


def sizes(step):
    """Bytes of each rank's file."""
    return {path.name: path.stat().st_size for path in step.glob("rank_*.h5")}


def partials(root):
    """Steps that are being written, or that a kill has left so."""
    return set(root.glob(".step_*.partial"))


def flip(name, share):
    """A bit of a file, so far from its start."""

    def damage(step):
        data = bytearray((step / name).read_bytes())
        data[int(len(data) * share)] ^= 4
        (step / name).write_bytes(data)

    return damage


def retell(old, new):
    def damage(step):
        text = (step / "state.json").read_text()
        assert old in text
        (step / "state.json").write_text(text.replace(old, new, 1))

    return damage


DAMAGES = {"another offset": retell('"offset": 40', '"offset": 48'), "index": flip("index.h5", 0.5)}
"""All kinds of damage: tests/unit/checkpoint/test_damage.py."""


@pytest.mark.parametrize("damage", mostly_slow(DAMAGES.values(), every=2), ids=DAMAGES)
def test_a_damaged_step_costs_that_step_and_nothing_else(tree, tmp_path, undisturbed, damage):
    config = launch.write_config(tmp_path / "config.yaml", tree | {"steps": STEPS})
    root, last = tmp_path / "run/checkpoints", step_name(STEPS)
    shutil.copytree(undisturbed, tmp_path / "run", symlinks=True)
    damage(root / last)
    output = launch.trained(2, config)
    assert f"{last} cannot be used, trying the step before" in output
    assert launch.differing(undisturbed / "checkpoints" / last, root / last) == []
    assert Step(root / last).state == Step(undisturbed / "checkpoints" / last).state


def test_training_goes_on_from_a_checkpoint_on_another_layout(tree, tmp_path, undisturbed):
    config = launch.write_config(tmp_path / "config.yaml", tree)
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run, symlinks=True)
    launch.trained(1, config, "parallel.tensor_parallel=1", f"steps={STEPS + 1}")
    assert [row["step"] for row in read_metrics(run)] == list(range(1, STEPS + 2))
    newest = launch.tensors_of(run / "checkpoints/latest")
    assert (run / "checkpoints/latest").resolve().name == step_name(STEPS + 1)
    assert all((abs(t) < 1e6).all() for t in newest.values())
