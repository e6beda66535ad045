"""What whole runs do between their steps: evaluate, save, reshard, and resume."""

import json
from contextlib import ExitStack

import pytest

from tests.mpi.recipe_runs import run_tree, write_reward
from verl_hpc.config.load import parse_config
from verl_hpc.errors import ConfigError
from verl_hpc.runs.lock import RunLock
from verl_hpc.trainer.sync import WeightSync
from verl_hpc.trainer.train import train
from verl_hpc.transfer.files import SafetensorsReader

pytestmark = pytest.mark.world(2)


@pytest.fixture
def tree(here, tiny_model, shared_directory, request):
    task = {"kind": "reasoning_gym", "task": "chain_sum", "size": 20}
    limits = {"num_samples": 2, "max_prompt_tokens": 200, "max_response_tokens": 4}
    return run_tree(
        request.node.name,
        tiny_model(),
        shared_directory,
        recipe="rl",
        steps=3,
        batch={"size": 2},
        rollout=limits | {"engine": "hf"},
        data={"train": task, "evaluation": task | {"size": 4, "seed": 1000}},
        reward={"function": write_reward(here, shared_directory)},
        checkpoint={},
    )


@pytest.fixture
def reshards(monkeypatch):
    """One entry for every time that weights went to the rollout engine."""
    calls, original = [], WeightSync.to_generation

    def counted(self):
        calls.append(1)
        return original(self)

    monkeypatch.setattr(WeightSync, "to_generation", counted)
    return calls


@pytest.fixture
def tensors_read(monkeypatch):
    """Names and boxes of tensors that this rank reads from Hugging Face files, in order."""
    names, original = [], SafetensorsReader.read

    def noted(self, file, tensor, box):
        names.append((tensor, box))
        return original(self, file, tensor, box)

    monkeypatch.setattr(SafetensorsReader, "read", noted)
    return names


def run(here, tree):
    """Rows of metrics.jsonl that a run leaves."""
    config = parse_config(tree)
    result = train(here, config)
    here.control.barrier()
    rows = (config.run_directory / "metrics.jsonl").read_text().splitlines()
    return result, [json.loads(row) for row in rows]


def evaluated(rows):
    return [row["step"] for row in rows if "val/score/mean" in row]


@pytest.mark.parametrize("every", [0, 2])
def test_an_evaluation_shares_the_weights_with_the_step_after_it(here, tree, reshards, every):
    """Four versions of the weights generate: three for steps, the last for the last evaluation."""
    changes = {"checkpoint": {"every": every}, "evaluation": {"every": 2, "at_start": True}}
    _, rows = run(here, tree | changes)
    assert evaluated(rows) == [0, 2, 3]
    assert len(reshards) == 4


def test_sft_is_evaluated_before_and_after(here, tree, reshards):
    changes = {"recipe": "sft"}
    _, rows = run(here, tree | changes | {"evaluation": {"at_start": True}})
    assert evaluated(rows) == [0, 3]
    assert len(reshards) == 2


def test_sft_goes_on_after_an_evaluation_that_had_its_memory(here, tree):
    offload = dict.fromkeys(("parameters", "gradients", "optimizer"), True)
    changes = {"recipe": "sft", "offload": offload, "evaluation": {"every": 1}}
    _, lent = run(here, tree | changes)
    assert evaluated(lent) == [1, 2, 3]
    _, kept = run(here, tree | {"recipe": "sft", "name": "kept"})
    assert [row["sft/loss"] for row in lent] == [row["sft/loss"] for row in kept]


@pytest.mark.parametrize("placement", ["none", "loss"])
def test_a_resume_reads_first_weights_only_for_the_reference(here, tree, tensors_read, placement):
    tree |= {"steps": 1, "algorithm": {"kl": {"placement": placement}}}
    run(here, tree)
    everything = set().union(*here.control.allgather(set(tensors_read)))
    assert len(everything) > 20
    tensors_read.clear()
    result, rows = run(here, tree | {"steps": 2})
    assert result.progress.step == 2
    assert [row["step"] for row in rows] == [1, 2]
    assert len(tensors_read) == len(set(tensors_read)), "something is read twice"
    resumed = set().union(*here.control.allgather(set(tensors_read)))
    assert resumed == (everything if placement == "loss" else set())


def test_a_fixed_kl_coefficient_is_the_configurations_after_a_resume(here, tree):
    _, rows = run(here, tree | {"steps": 1})
    for steps, coefficient in ((2, 5.0), (3, 0.5)):
        kl = {"placement": "reward", "coefficient": coefficient}
        _, rows = run(here, tree | {"steps": steps, "algorithm": {"kl": kl}})
    assert [row.get("actor/reward_kl_penalty_coeff") for row in rows] == [None, 5.0, 0.5]


def test_an_evaluation_that_a_run_did_not_live_to_see_is_made_up_for(here, tree):
    tree |= {"steps": 2, "evaluation": {"every": 1}}
    run(here, tree)
    log = parse_config(tree).run_directory / "metrics.jsonl"
    if here.world.rank == 0:  # as if the last step had been saved, and then the run killed
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    here.control.barrier()
    result, rows = run(here, tree)
    assert result.outcome == "finished"
    assert evaluated(rows) == [1, 2]


def test_a_directory_that_another_run_has_is_refused_on_all_ranks(here, tree):
    config = parse_config(tree)
    with ExitStack() as held:
        if here.world.rank == 0:
            config.run_directory.mkdir(parents=True)
            held.enter_context(RunLock(config.run_directory))
        here.control.barrier()
        with pytest.raises(ConfigError, match="in use by process"):
            train(here, config)
    assert not (config.run_directory / "metrics.jsonl").exists()
    run(here, tree | {"steps": 1})
