"""The loop on tiny models: what comes after what, what is saved, what a restart continues with."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from tests.unit.config.trees import GAE
from tests.unit.ranks import on_ranks
from tests.unit.trainer.runs import PROMPTS, loop, small_run
from verl_hpc.checkpoint.schema import step_name
from verl_hpc.runtime.cache_archive import unpack
from verl_hpc.runtime.stop import MARGIN_S, Signals, StopFlag, StopRequest
from verl_hpc.testing.local import LocalControl
from verl_hpc.testing.local_run import engine_of
from verl_hpc.trainer.facts import run_facts
from verl_hpc.trainer.kept_caches import open_caches
from verl_hpc.trainer.loop import Loop, combined

OPERATORS = [*("rollout", "assign", "reward", "rollout to train"), *("advantages", "update_actor")]


def stages(run):
    """What the rank did: (step, stage)."""
    text = (run.config.run_directory / "timeline" / "rank_00000.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    return [(row["step"], row["operator"]) for row in rows if "operator" in row]


def saved(run):
    root = run.config.run_directory / "checkpoints"
    return sorted(p.name for p in root.glob("step_*")) if root.exists() else []


def named(*steps):
    return [step_name(step) for step in steps]


def told_run(directory, stop_request, stage, step=2, **changes):
    """A run of four steps whose rank gets a signal while it is in a stage of a step."""
    signals, entered = Signals(), []
    run = small_run(directory, signals, **{"steps": 4} | changes)

    def enter(name):
        entered.append(name)
        if name == stage and entered.count(name) == step:
            signals.stop_request, signals.reason = stop_request, "signal SIGTERM"

    run.session.watchdog.enter = enter
    return run


def weights(run, role="actor"):
    return {name: weight.clone() for name, weight in engine_of(run, role).weights.items()}


def equal(one, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


# What comes after what


def test_a_step_is_saved_before_its_weights_generate(tmp_path):
    run = small_run(
        tmp_path, steps=2, checkpoint__every=1, evaluation={"every": 1, "at_start": True}
    )
    result, lines = loop(run)
    assert stages(run) == [
        *((0, "reshard"), (0, "testing")),
        *((1, name) for name in OPERATORS),
        *((1, "save_checkpoint"), (1, "reshard"), (1, "testing")),
        *((2, name) for name in OPERATORS),
        *((2, "save_checkpoint"), (2, "reshard"), (2, "testing"), (2, "end")),
    ]
    assert (result.outcome, result.progress.step) == ("finished", 2)
    assert (saved(run), [line["step"] for line in lines]) == (named(1, 2), [0, 1, 2])
    assert all("val/score/mean" in line for line in lines)
    assert "actor/loss" in lines[1] and "actor/loss" not in lines[0]


@pytest.fixture
def kept_caches(tmp_path, monkeypatch):
    """Give a run compile caches of a node with one kernel; the folder where they are kept."""
    monkeypatch.setenv("VERL_HPC_CACHE", str(tmp_path / "node"))
    monkeypatch.setenv("VERL_HPC_KEPT_CACHES", str(tmp_path / "kept"))
    (tmp_path / "node/triton").mkdir(parents=True)
    (tmp_path / "node/triton/kernel.cubin").write_bytes(b"machine code")

    def give(run):
        run.caches = open_caches(run.session, run.arch, run.layouts)
        return tmp_path / "kept"

    return give


def test_compile_caches_are_kept_after_fewer_and_fewer_steps(tmp_path, kept_caches):
    run = small_run(tmp_path, steps=5)
    kept = kept_caches(run)
    loop(run)
    writes = [stage for stage in stages(run) if stage[1] in ("keep_caches", "save_checkpoint")]
    assert writes == [*[(step, "keep_caches") for step in (1, 2, 4)], (5, "save_checkpoint")]
    (archive,) = kept.glob("*/*")
    assert unpack(archive, tmp_path / "other") == {"triton/kernel.cubin"}


def test_a_run_that_is_told_to_leave_keeps_no_caches(tmp_path, kept_caches):
    """Slurm may kill it before it has left."""
    run = told_run(tmp_path, StopRequest.RESTART, "rollout", step=1)
    kept_caches(run)
    loop(run)
    assert (1, "save_checkpoint") in stages(run)
    assert "keep_caches" not in [name for _, name in stages(run)]


def test_without_an_evaluation_weights_go_out_before_each_step(tmp_path):
    run = small_run(tmp_path, steps=2)
    _, lines = loop(run)
    assert stages(run) == [
        *((1, name) for name in ["reshard", *OPERATORS]),
        *((2, name) for name in ["reshard", *OPERATORS]),
        *((2, "save_checkpoint"), (2, "end")),
    ]
    assert saved(run) == named(2)
    assert not any(name.startswith("val/") for line in lines for name in line)


@pytest.mark.parametrize(
    ("every", "steps", "expected"), [(2, 5, [2, 4, 5]), (3, 3, [3]), (0, 3, [3]), (1, 2, [1, 2])]
)
def test_evaluations_and_saves_come_every_so_often_and_last(tmp_path, every, steps, expected):
    changes = {"evaluation__every": every} if every else {}
    run = small_run(tmp_path, steps=steps, checkpoint={"every": every, "keep": 9}, **changes)
    _, lines = loop(run)
    assert saved(run) == named(*expected)
    evaluated = [line["step"] for line in lines if "val/score/mean" in line]
    assert evaluated == (expected if every else [])


def test_a_goal_that_is_reached_ends_the_run(tmp_path):
    run = small_run(tmp_path, steps=9, evaluation={"every": 2, "stop_at": 0.01})
    result, lines = loop(run)
    assert (result.outcome, result.progress.step) == ("goal reached", 2)
    assert (saved(run), len(lines)) == (named(2), 2)


# Learning


def test_the_actor_learns_to_write_more(tmp_path):
    run = small_run(tmp_path, steps=16, batch__size=4, rollout__num_samples=4, optimizer__lr=5e-2)
    before = weights(run)
    _, lines = loop(run)
    scores = [line["critic/score/mean"] for line in lines]
    assert sum(scores[-3:]) / 3 > sum(scores[:3]) / 3 + 0.05
    assert max(line["training/rollout_log_probs_diff_max"] for line in lines) < 1e-5
    assert not equal(before, weights(run))


def test_ppo_trains_its_critic_first(tmp_path):
    run = small_run(tmp_path, **GAE, steps=1, critic__warmup_steps=1, held_out=None)
    actor, critic = weights(run), weights(run, "critic")
    _, lines = loop(run)
    assert equal(actor, weights(run)) and not equal(critic, weights(run, "critic"))
    assert "critic/vf_loss" in lines[0] and "actor/loss" not in lines[0]
    run = small_run(tmp_path, **GAE, name="two", steps=2, critic__warmup_steps=1)
    _, lines = loop(run)
    assert not equal(actor, weights(run)) and "actor/loss" in lines[1]


def test_ppo_with_kl_in_the_reward_and_a_reward_model(tmp_path):
    run = small_run(
        tmp_path,
        **GAE,
        steps=3,
        algorithm__kl={"placement": "reward", "controller": "adaptive", "coefficient": 0.1},
        roles={"reward": {"path": "models/reward"}},
    )
    _, lines = loop(run)
    assert [line["actor/reward_kl_penalty"] for line in lines[:1]] == [pytest.approx(0, abs=1e-6)]
    assert lines[2]["actor/reward_kl_penalty"] != 0
    beta = [line["actor/reward_kl_penalty_coeff"] for line in lines]
    assert beta[0] == 0.1 and len(set(beta)) == 3
    assert run.kl.coefficient not in beta


def test_sft_learns_the_answers(tmp_path):
    run = small_run(tmp_path, recipe="sft", steps=30, held_out=None, optimizer__lr=5e-2)
    assert run.rollout is None
    _, lines = loop(run)
    assert lines[-1]["sft/loss"] < 0.5 * lines[0]["sft/loss"]
    assert stages(run)[:2] == [(1, "examples"), (1, "update_actor")]


# Going on


@pytest.mark.parametrize("kind", ["grpo", "gae", "sft"])
def test_a_run_that_is_interrupted_goes_on_as_if_it_had_not_been(tmp_path, kind):
    changes = {"held_out": None, "checkpoint__every": 2}
    if kind == "sft":
        changes |= {"recipe": "sft"}
    else:
        kl = {"placement": "reward", "controller": "adaptive"}
        changes |= {"algorithm": {"advantage": {"name": kind}, "kl": kl}}
    whole = small_run(tmp_path, steps=5, name="whole", **changes)
    loop(whole)
    loop(small_run(tmp_path, steps=3, **changes))
    again = small_run(tmp_path, steps=5, **changes)
    result, lines = loop(again, resumes=True)
    assert (result.progress.step, [line["step"] for line in lines]) == (5, [1, 2, 3, 4, 5])
    for role in again.roles:
        if again.roles[role].settings.trainable:
            assert equal(weights(whole, role), weights(again, role))
    assert again.kl.coefficient == whole.kl.coefficient


@pytest.mark.parametrize("stage", ["rollout", "assign", "reward", "advantages"])
def test_a_step_that_has_changed_nothing_is_dropped(tmp_path, stage):
    run = told_run(tmp_path, StopRequest.RESTART_NOW, stage, evaluation__every=1)
    result, lines = loop(run)
    assert (result.outcome, result.progress.step) == ("restart", 1)
    assert (result.reason, saved(run)) == ("signal SIGTERM", named(1))
    assert [line["step"] for line in lines] == [1]
    done = [name for step, name in stages(run) if step == 2]
    assert done == [*OPERATORS[: OPERATORS.index(stage) + 1], "save_checkpoint", "end"]
    whole = small_run(tmp_path, steps=4, name="whole")
    loop(whole)
    again = small_run(tmp_path, steps=4, evaluation__every=1)
    loop(again, resumes=True)
    assert equal(weights(again), weights(whole))


KL_IN_REWARD = {"algorithm__kl": {"placement": "reward"}}


@pytest.mark.parametrize(
    ("stage", "changes"),
    [("update_actor", {}), ("kl_penalty", KL_IN_REWARD), ("advantages", KL_IN_REWARD)],
)
def test_a_step_that_has_changed_something_is_finished(tmp_path, stage, changes):
    changes = {"evaluation__every": 1} | changes
    run = told_run(tmp_path, StopRequest.RESTART_NOW, stage, **changes)
    result, lines = loop(run)
    assert ((result.outcome, result.progress.step), saved(run)) == (("restart", 2), named(2))
    assert [line["step"] for line in lines] == [1, 2]
    assert "actor/loss" in lines[1]
    assert "val/score/mean" not in lines[1], "its evaluation is owed"
    _, lines = loop(small_run(tmp_path, steps=4, **changes), resumes=True)
    assert [line["step"] for line in lines if "val/score/mean" in line] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("stop_request", "outcome"), [(StopRequest.RESTART, "restart"), (StopRequest.STOP, "stopped")]
)
def test_a_step_is_finished_for_who_has_time(tmp_path, stop_request, outcome):
    run = told_run(tmp_path, stop_request, "assign", evaluation__every=1)
    result, lines = loop(run)
    assert ((result.outcome, result.progress.step), saved(run)) == ((outcome, 2), named(2))
    assert [line["step"] for line in lines if "val/score/mean" in line] == [1, 2]


@pytest.mark.parametrize(
    ("part", "left_s", "last", "changes"),
    [("step", 250, 2, {}), ("evaluation", 350, 3, {"evaluation__every": 1})],
)
def test_a_run_saves_and_stops_before_it_passes_its_hours(
    tmp_path, clock, part, left_s, last, changes
):
    """One part of a step takes 100 s, and the others no time."""
    ceiling = clock.now + MARGIN_S + left_s

    def limited_run():
        run = small_run(tmp_path, steps=9, **changes)
        run.stop = StopFlag(run.session.control, tmp_path, Signals(), clock, ceiling)
        return run

    run = limited_run()
    took = run.stop.took

    def took_100_s(**seconds):
        if part in seconds:
            clock.now += 100
            took(**{part: 100.0})

    run.stop.took = took_100_s
    result, _ = loop(run)
    assert (result.outcome, result.progress.step, saved(run)) == ("stopped", last, named(last))
    assert "would pass runtime.max_gpu_hours" in result.reason
    assert clock.now <= ceiling
    clock.now = ceiling
    result, _ = loop(limited_run(), resumes=True)
    assert (result.outcome, result.progress.step) == ("stopped", last)


def test_finished_responses_are_kept_beside_the_step(tmp_path):
    changes = {"steps": 3, "rollout__on_interrupt": "keep", "checkpoint__every": 1}
    run = told_run(tmp_path, StopRequest.RESTART_NOW, "assign", **changes)
    loop(run)
    assert len(run.rollout.kept.by_slot) == 4
    again, count = small_run(tmp_path, **changes), []
    generate = again.rollout.engine.generate
    again.rollout.engine.generate = lambda f, s: count.append(len(f.requests)) or generate(f, s)
    loop(again, resumes=True)
    assert count == [0, 4]
    whole = small_run(tmp_path, name="whole", **changes)
    loop(whole)
    assert equal(weights(again), weights(whole))


# Epochs


@pytest.mark.parametrize(("overlap", "num_rows", "num_steps"), [("warn", 6, 3), ("drop", 4, 2)])
def test_epochs_are_steps_of_the_rows_that_are_left(tmp_path, overlap, num_rows, num_steps):
    """Two of the six rows are held out as well; two epochs of batches of four."""
    epochs = {"steps": None, "epochs": 2, "batch__size": 4, "data__overlap": overlap}
    held_out = [*PROMPTS[:2], "bb"]
    run = small_run(tmp_path, held_out=held_out, evaluation={"every": 5}, **epochs)
    read, taken = run.settings.problems.read, []
    run.settings.problems.read = lambda rows: taken.append(list(rows)) or read(rows)
    assert (len(run.problems.train), run.num_steps) == (num_rows, num_steps)
    result, lines = loop(run)
    assert (result.outcome, result.progress.step) == ("finished", num_steps)
    assert "val/score/mean" in lines[-1], "the last step has an evaluation"
    of_steps = [rows for i, rows in enumerate(taken) if i == 0 or rows != taken[i - 1]]
    counts = Counter(row for rows in of_steps for row in rows)
    assert set(counts) == set(range(num_rows)) and min(counts.values()) >= 2
    assert run_facts(run, result)["total_steps"] == num_steps


def test_seconds_and_memory_are_the_largest_of_all_ranks_and_joules_their_sum():
    def rank(control):
        mine = {"timing_s/step": 2.0 + control.rank, "perf/cpu_memory_used_gb": 3.0 - control.rank}
        return combined(control.gather(mine | {"energy_j/nvml/reward": 1.5}))

    expected = {"timing_s/step": 4.0, "perf/cpu_memory_used_gb": 3.0, "energy_j/nvml/reward": 4.5}
    assert on_ranks(3, rank)[0] == expected


def test_throughput_is_of_a_rank():
    told = []
    loop = SimpleNamespace(
        _saves=SimpleNamespace(writer=SimpleNamespace(seconds=0.0)),
        run=SimpleNamespace(
            session=SimpleNamespace(
                world=SimpleNamespace(size=4), control=LocalControl(), freed_memory=None
            )
        ),
        records=SimpleNamespace(
            pause=lambda: None,
            meters=SimpleNamespace(drain=lambda: {"timing_s/step": 2.0}),
            write=lambda step, metrics: told.append((step, metrics)),
        ),
    )
    Loop._record(loop, 1, {"perf/total_num_tokens": 80.0})
    ((step, metrics),) = told
    assert (step, metrics["perf/time_per_step"], metrics["perf/throughput"]) == (1, 2.0, 10.0)
