"""A run that must stop saves and leaves on all ranks together; nothing is lost or half-used."""

import os
import signal

import h5py
import pytest

from tests.jobs import launch
from tests.jobs.conftest import ppo
from tests.jobs.told_in_rollout import tell_rank_0
from verl_hpc.config.requests import Request, leave_request, read_requests

RESTART = 85
STEPS = 3


def start_run(config, **environment):
    return launch.start_training(2, config, **environment)


def on_a_node(local):
    """Variables of a job on a node with that directory of compile caches."""
    return {"VERL_HPC_CACHE": str(local), "VERL_HPC_KEPT_CACHES": str(local.parent / "kept")}


def steps_done(run):
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model):
    """The last step of a run that nobody disturbed."""
    directory = tmp_path_factory.mktemp("undisturbed")
    config = launch.write_config(directory / "config.yaml", grpo(model, directory))
    launch.trained(2, config)
    return directory / "run/checkpoints" / f"step_{STEPS:08d}"


def grpo(model, directory):
    rollout = {
        "tensor_parallel": 2,
        "num_samples": 2,
        "max_prompt_tokens": 120,
        # Long enough to be interrupted in.
        "max_response_tokens": 120,
        "kv_cache_gib": 0.05,
    }
    changes = {"recipe": "rl", "roles": {}, "algorithm": {}, "rollout": rollout}
    changes |= {"steps": STEPS, "checkpoint": {}, "runtime": {"late_after_s": 600}}
    return ppo(model, directory) | changes


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGUSR2, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_the_next_start_ends_as_if_nothing_had_been(
    model, tmp_path, undisturbed, number
):
    config = launch.write_config(tmp_path / "config.yaml", grpo(model, tmp_path))
    run, kernel = tmp_path / "run", "inductor/3g/c3g.so"
    (tmp_path / "first" / kernel).parent.mkdir(parents=True)
    (tmp_path / "first" / kernel).write_bytes(b"machine code")
    job = start_run(config, **on_a_node(tmp_path / "first"))
    assert launch.wait_until(lambda: steps_done(run) >= 1, job)
    for rank in launch.ranks_of(job):
        os.kill(rank, number)
    status, output = launch.finish(job)
    done = steps_done(run)
    assert status == RESTART, output
    assert 1 <= done < STEPS
    assert f"left after step {done}, which is saved: signal {number.name}" in output
    assert (run / f"checkpoints/step_{done:08d}").is_dir()
    output = launch.succeeds(start_run(config, **on_a_node(tmp_path / "second")))
    assert (tmp_path / "second" / kernel).read_bytes() == b"machine code"
    asked = list(tmp_path.rglob("modelinfos"))
    assert asked == [], "vLLM asked about its model in a process of its own"
    assert launch.differing(undisturbed, run / "checkpoints" / undisturbed.name) == []


def test_responses_that_were_finished_are_kept_and_the_rest_is_generated(model, tmp_path):
    """Two sequences at a time, so that an interruption finds some finished and some not begun."""
    sizes = {"max_response_tokens": 32, "max_num_seqs": 2, "num_samples": 4}
    configs = {}
    for name in ("undisturbed", "run"):
        tree = grpo(model, tmp_path) | {"name": name, "steps": 2}
        tree["rollout"] |= sizes | {"on_interrupt": "keep"}
        configs[name] = launch.write_config(tmp_path / f"{name}.yaml", tree)
    output = launch.trained(2, configs["undisturbed"])
    run = tmp_path / "run"
    job = launch.start_training(2, configs["run"], before=tell_rank_0)
    status, output = launch.finish(job)
    assert status == RESTART, output
    (file,) = (run / "checkpoints/step_00000001/rollout").iterdir()
    with h5py.File(file) as stored:
        num_kept = len(stored["slots"])
    assert 0 < num_kept < 4 * 4
    output = launch.succeeds(start_run(configs["run"]))
    assert f"{num_kept} responses were finished before the interruption" in output
    expected = tmp_path / "undisturbed/checkpoints/step_00000002"
    assert launch.differing(expected, run / "checkpoints/step_00000002") == []


@pytest.fixture
def short_steps(tree, tmp_path):
    """The configuration of a run whose steps take no time to speak of."""
    changes = {"steps": 30, "checkpoint": {"every": 0}}
    return launch.write_config(tmp_path / "config.yaml", tree | changes)


def test_one_ranks_signal_is_enough(short_steps, tmp_path):
    job = start_run(short_steps)
    assert launch.wait_until(lambda: steps_done(tmp_path / "run") >= 1, job)
    os.kill(launch.ranks_of(job)[1], signal.SIGTERM)
    status, output = launch.finish(job)
    assert status == RESTART, output
    assert "another rank was asked to stop" in output


def test_requests_save_and_stop_for_good(short_steps, tmp_path):
    run = tmp_path / "run"
    job = start_run(short_steps)
    assert launch.wait_until(lambda: (run / "config.yaml").exists(), job)
    leave_request(run, Request(kind="save", by="ann"))
    assert launch.wait_until(lambda: (run / "checkpoints/latest").is_symlink(), job)
    assert launch.wait_until(lambda: not read_requests(run), job)
    leave_request(run, Request(kind="stop", after_step=20, by="ann"))
    output = launch.succeeds(job)
    assert steps_done(run) == 20
    assert "left after step 20, which is saved: asked to stop by ann" in output
    assert not read_requests(run)
