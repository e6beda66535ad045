"""Submitting: with the command, with a script of launch/, several runs at once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.slurm.runs import (
    PATIENCE_S,
    ROOT,
    STEPS,
    Run,
    job_of,
    set_pause,
    without_times,
    write_run,
)
from verl_hpc.config.load import load_config
from verl_hpc.planner.record import read_record
from verl_hpc.slurm.tools import job_details
from verl_hpc.testing.slurm_lab import Lab, LabSettings
from verl_hpc.testing.slurm_lab.processes import wait_for


def test_a_run_over_two_nodes(undisturbed):
    assert undisturbed.checkpoints == list(range(1, STEPS + 1))
    attempt = undisturbed.directory / "job/attempts/latest"
    assert {log.name for log in attempt.glob("*.log")} == {"n0.log", "n1.log"}
    assert f"0: step {STEPS}/{STEPS}" in without_times((attempt / "n0.log").read_text())
    assert f"attempt 0: job {undisturbed.job} on n[0-1]" in undisturbed.log
    assert not Path(f"/tmp/verl_hpc-{undisturbed.job}").exists()


def test_two_runs_on_the_same_nodes_do_not_meet(lab, model, tmp_path, undisturbed):
    """Ports, scratch directories, shared memory: nothing has a fixed name."""
    words = ["site.exclusive=false", "site.cores_per_node=4"]
    words.append('site.extra_directives=["--nodelist=n0,n1"]')
    runs = [Run(lab, write_run(tmp_path, model, name=name)) for name in ("one", "two")]
    set_pause(tmp_path, 20.0)  # they outlast what follows
    for run in runs:
        run.submit(*words, alone=False)
    for run in runs:
        run.wait(run.has_started, "started")
    assert [run.state for run in runs] == ["RUNNING"] * 2
    refused = runs[0].try_to_submit()
    assert refused.returncode == 1
    assert f"its job {runs[0].job} is RUNNING; wait for it" in refused.stderr
    # As a submission leaves it that is killed between sbatch and its record.
    (runs[0].directory / "job/submitted.jsonl").unlink()
    refused = runs[0].try_to_submit()
    assert f"its job {runs[0].job} is RUNNING (the submission that made it" in refused.stderr
    set_pause(tmp_path, 0.2)
    for run in runs:
        run.finish()
        assert run.nodes == "n[0-1]"
        run.assert_equals(undisturbed)


@pytest.fixture
def checkout(tmp_path):
    """The repository, as far as the script needs it; what a run leaves is not left in it."""
    for name in ("verl_hpc", "configs", "launch"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.timeout(1200)
def test_a_script_of_launch(lab, checkout):
    """sbatch, on one of the nodes of its header: PPO with vLLM, two ranks."""
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    sizes = '{"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}'
    model = ["-m", "verl_hpc.testing.tiny", "--out", "runs/lab_model", "--sizes", sizes]
    model += ["--prompts-of", "configs/run/examples/ppo_lab.yaml"]
    subprocess.run([sys.executable, *model], cwd=checkout, env=environ, check=True)
    sbatch = ["sbatch", "--parsable", "--nodes=1", "launch/ppo_lab.sbatch"]
    outside = environ | lab.environment
    job = subprocess.check_output(sbatch, cwd=checkout, env=outside, text=True).strip()
    state = lambda: job_details(job, lambda words: lab.run(*words))["JobState"]  # noqa: E731
    assert wait_for(lambda: state() not in ("PENDING", "CONFIGURING", "RUNNING"), PATIENCE_S, 0.5)
    log = checkout / f"ppo_lab-{job}.log"
    ranks = (checkout / "runs/ppo_lab/job/attempts/latest/n0.log").read_text()
    assert state() == "COMPLETED", log.read_text() + ranks
    assert "0: step 4/4" in without_times(ranks)
    assert (checkout / "runs/ppo_lab/checkpoints/latest").is_symlink()


@pytest.fixture(scope="module")
def big_lab(slurm, tmp_path_factory):
    """One node like those of the site profiles."""
    directory = tmp_path_factory.mktemp("lab")
    with Lab(LabSettings(directory=directory, nodes=1, cpus=256, gpus=8)) as running:
        yield running


@pytest.mark.parametrize("script", sorted((ROOT / "launch").glob("*.sbatch")), ids=lambda p: p.stem)
def test_slurm_accepts_the_scripts_of_launch(big_lab, script, tmp_path):
    shutil.copy(script, tmp_path)
    words = ["--test-only", "--nodes=1", "--partition=debug"]
    big_lab.run("sbatch", *words, tmp_path / script.name)


def submit_sweep(run, *words):
    """The array's job id, and its runs."""
    array = job_of(run.try_to_submit(*words, nodes=1))
    return array, sorted(run.directory.glob("[0-9]"))


def steps_of(directory):
    file = directory / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def test_a_run_of_a_sweep_is_requeued_like_others(lab, run):
    shared = "site.exclusive=false", "site.cores_per_node=4"
    set_pause(run.config.parent, 2.0)  # no run is over before the signal
    array, runs = submit_sweep(run, *shared, "--sweep", "seed=0,1", "steps=3")
    assert wait_for(lambda: steps_of(runs[1]) >= 1, PATIENCE_S)
    lab.run("scancel", "--signal=USR2", f"{array}_1")
    set_pause(run.config.parent, 0)
    assert wait_for(lambda: all(steps_of(one) == 3 for one in runs), PATIENCE_S)
    for index, one in enumerate(runs):
        ended = lambda i=index: run_state(lab, f"{array}_{i}") == "COMPLETED"  # noqa: E731
        assert wait_for(ended, 60)
        assert len(list((one / "job/attempts").glob("[0-9]"))) == 1 + index
        assert (one / f"job/slurm-{array}_{index}.log").exists()
        assert f'"job_id": "{array}_{index}"' in (one / "heartbeat.json").read_text()


def run_state(lab, job):
    return job_details(job, lambda words: lab.run(*words))["JobState"]


def test_a_layout_that_a_search_found_is_what_ranks_train_with(run):
    """One step by --auto, of a run whose own layout no search would choose for a tiny model."""
    own = yaml.safe_load(run.config.read_text()) | {"parallel": {"tensor_parallel": 2}}
    run.config.write_text(yaml.safe_dump(own))
    run.submit("--auto", "steps=1")
    run.finish()
    saved = run.directory / "job/config.yaml"
    record = read_record(saved)
    assert record is not None and record.covers("parallel.tensor_parallel")
    assert record.by.startswith("python -m verl_hpc.submit") and " --auto" in record.by
    planned, asked = load_config(saved), load_config(run.config)
    assert planned.parallel != asked.parallel
    assert load_config(run.directory / "config.yaml").model_dump() == planned.model_dump()
    assert run.steps_done == 1
    words = [sys.executable, "-m", "verl_hpc", "config", "--config", str(saved)]
    words += ["--explain", "parallel.tensor_parallel"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert f"tensor_parallel = {planned.parallel.tensor_parallel}   [plan]" in told
