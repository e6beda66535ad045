"""`python -m verl_hpc plan --budget --until`: what fits into an allocation."""

import argparse
import json
from fractions import Fraction

import pytest

from tests.unit.budget.queue_simulator import HOUR, Partition
from tests.unit.cli.status_runs import fake_slurm, submit_run, work
from tests.unit.cluster.requests import ROOT
from verl_hpc.cli.plan import add_arguments
from verl_hpc.cli.plan_budget import run_budget
from verl_hpc.runs.lives import LifeRecord

SIZES = ROOT / "configs/model"
PPO = [
    *("--config", ROOT / "configs/run/ppo_70b.yaml"),
    *("--cluster", ROOT / "slurm/h100_infiniband_pyxis.yaml"),
    *("--model-config", SIZES / "Llama-3.1-70B-Instruct.json"),
]


def printed(lives):
    """What sacct prints of jobs."""
    return "\n".join(
        f"{one.job_id}|COMPLETED|{one.submitted:.0f}|{one.eligible:.0f}|{one.started:.0f}|"
        f"{one.elapsed_s:.0f}|{one.nodes}|gres/gpu=8||None|{one.limit_s / 60:.0f}"
        for one in lives
    )


@pytest.fixture
def plan(monkeypatch, tmp_path, called):
    """Run the verb, a month after the beginning of a queue; (status, stdout, stderr)."""

    def run(*words, history=()):
        (tmp_path / "history").write_text(printed(history))
        sacct = f"cat {tmp_path}/history" if history else "exit 1"
        fake_slurm(tmp_path, monkeypatch, sacct=sacct)
        return called("plan", *words)

    return run


def history():
    queue = Partition(64, 0.9, 0)
    queue.advance(10 * 24 * HOUR)
    return queue.history()


def test_what_a_user_reads(plan):
    status, out, err = plan(*PPO, "--max-nodes", 16, "--budget", 1750, "--until", "2090-01-31")
    assert (status, err) == (0, "")
    assert out.startswith("ppo_70b: 500 steps, 1,750 GPU-hours and until 2090-01-31, in jobs of ")
    words = "--nodes 8 --time 24:00:00 --resume-by chain --max-restarts 0 steps=500 runtime.max"
    assert f"submit with: {words}_gpu_hours=1750\n" in out
    assert "Nothing is known of the queue (" in out


def test_the_range_of_steps_is_that_of_a_steps_seconds(plan):
    """GPU-hours are steps times their seconds, a start of 600 s aside."""
    words = [*PPO, "--nodes", 8, "--budget", 500, "--time", "7-00:00:00"]
    (one,) = json.loads(plan(*words, "--json")[1])["choices"]
    slow, quick = one["steps_band"]
    assert slow < one["chain"]["steps"] < quick
    step_s = json.loads(plan(*PPO, "--nodes", 8, "--json")[1])["step_seconds_band"]
    usable_s = 500 * 3600 / 64 - 600
    assert (slow, quick) == (int(usable_s / step_s[1]), int(usable_s / step_s[0]))
    assert f"{slow:,} to {quick:,}" in plan(*words)[1]


def test_the_layout_with_the_most_steps_is_taken_and_a_lack_is_told(plan):
    words = [*PPO, "--max-nodes", 16, "--budget", 500]
    status, out, _ = plan(*words, "--json", history=history())
    assert status == 1
    told = json.loads(out)
    assert told["unit"] == "GPU-hours"
    best = told["choices"][told["best"]]
    assert best["chain"]["steps"] == max(one["chain"]["steps"] for one in told["choices"])
    for one in told["choices"]:
        assert one["chain"]["hours"] <= 500
        more = 500 - one["chain"]["hours"]
        assert more < one["links"]["devices"] * (one["links"]["step_s"] + 600) / 3600
    assert f"not all steps fit: {best['chain']['steps']} of 500 do" in plan(*words)[1]


def test_shorter_jobs_make_a_longer_chain_that_waits_for_the_queue(plan):
    words = [*PPO, "--nodes", 8, "--budget", 5000, "--time", "4:00:00", "--json"]
    told = json.loads(plan(*words, history=history())[1])
    chain = told["choices"][0]["chain"]
    assert chain["links"] == 6
    early, middle, late = chain["waits_s"]
    assert 0 <= early < middle < late
    assert any("The chain was replayed from 100 moments" in note for note in told["notes"])


def test_nodes_on_which_a_job_has_no_time_for_a_step_are_left_out(plan):
    """A step takes 153 s on 8 nodes and 109 s on 16; a job has 740 s and starts in 600."""
    words = [*PPO, "--max-nodes", 16, "--budget", 500, "--time", "0:18:30"]
    status, out, err = plan(*words, "--json")
    assert (status, err) == (1, "")
    told = json.loads(out)
    assert [one["nodes"] for one in told["choices"]] == [12, 16]
    (note,) = [note for note in told["notes"] if "8 nodes" in note]
    assert note.startswith("8 nodes are left out: --time 0:18:30: a job has 740 s until it is")


@pytest.mark.parametrize("hours", ["1234567", "1e16", "999999.9999"])
def test_the_ceiling_that_is_proposed_is_the_budget(plan, hours):
    _, out, _ = plan(*PPO, "--nodes", 8, "--budget", hours, "steps=1", "--time", "3:00:00")
    (ceiling,) = [word for word in out.split() if word.startswith("runtime.max_gpu_hours=")]
    figures = ceiling.partition("=")[2]
    assert Fraction(figures) == Fraction(hours)
    assert "e" not in figures


def test_as_a_run_went(plan, tmp_path):
    run = submit_run(tmp_path, "4711")
    now = 1000.0
    life = LifeRecord(run, 8, on_gpus=True, clock=lambda: now)
    now += 120
    life.resume(0, 0.0)
    life.end("restart")
    submitted = run / "job/submitted.jsonl"
    job = json.loads(submitted.read_text()) | {"ranks": 8, "nodes": 2}
    submitted.write_text(json.dumps(job) + "\n")
    work(run, 9)
    words = ["--like", run, "--budget", 100, "steps=1000", "--time", "1:00:00"]
    status, out, err = plan(*words, "--json")
    assert (status, err) == (0, "")
    (one,) = json.loads(out)["choices"]
    assert (one["links"]["step_s"], one["links"]["start_s"]) == (10.0, 120.0)
    assert one["chain"]["links"] == 4, "2,580 s of an hour, at 10 s a step"
    assert one["chain"]["hours"] == pytest.approx(8 * (4 * 120 + 10_000) / 3600)


@pytest.mark.parametrize(
    "words, problem",
    [
        (["--budget", -1], "--budget -1: a number of hours above 0"),
        (["--until", "2020-01-31"], "--until 2020-01-31: that day is over"),
        (["--until", "soon"], "--until soon: expected a date"),
        (["--budget", 9, "--time", "0:10:00"], "--time 0:10:00: a job has 400 s until"),
        (["--budget", 9, "--time", "0"], "--time '0': expected minutes"),
        (["--time", "1:00:00"], "--time: it belongs to --budget and --until"),
        (
            ["--until", "2027-01-31", "--explain"],
            "--explain: it shows one plan, and --budget and --until compare",
        ),
    ],
)
def test_what_cannot_be(refuses, words, problem):
    assert problem in refuses("plan", *PPO, "--nodes", 8, *words)


def test_the_day_that_is_told_is_that_on_which_a_chain_of_the_queue_ends(tmp_path, capsys):
    """All of it but the clock and sacct: 40 days from history to plan, then the queue goes on."""
    queue = Partition(256, 0.9, 3)
    queue.advance(40 * 24 * HOUR)
    now = queue.now
    text, asked = printed(queue.history()), []

    def sacct(words):
        asked.extend(words)
        return text

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = [*PPO, "--nodes", 8, "--budget", 12000, "--time", "12:00:00", "steps=4000", "--json"]
    assert run_budget(parser.parse_intermixed_args([*map(str, words)]), now, sacct) == 0
    (one,) = json.loads(capsys.readouterr().out)["choices"]
    assert "--allusers" in asked
    chain = one["chain"]
    assert (chain["steps"], chain["links"]) == (4000, 15)
    truth = queue.run_chain(chain["links"], 8, chain["busy_s"] / chain["links"])
    assert one["ends"][1] - now == pytest.approx(truth - now, rel=0.15)
