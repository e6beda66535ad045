"""What a user can get wrong is refused on every rank alike, before any work is done."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch

from tests.mpi.engines_for_tests import same
from tests.mpi.recipe_runs import run_tree
from tests.mpi.sft_for_tests import encode, update
from verl_hpc.config.load import parse_config
from verl_hpc.engines.guarded_step import MOST_SKIPPED
from verl_hpc.engines.megatron import build
from verl_hpc.errors import (
    ClusterError,
    ConfigError,
    DataError,
    ModelError,
    RewardError,
    TrainingError,
)
from verl_hpc.generation.generate import generate
from verl_hpc.layout import rollout as rollout_map
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.rollout.protocol import Response
from verl_hpc.step.batch import StepRows
from verl_hpc.trainer.build import build_run

pytestmark = pytest.mark.world(2)

LIMITS = {"max_prompt_tokens": 128, "max_response_tokens": 16}
GYM = {"kind": "reasoning_gym", "task": "chain_sum", "size": 16}


@pytest.fixture
def configure(tiny_model, shared_directory):
    def make(**changes):
        # vLLM takes no heads as small as these models'.
        settings = {"recipe": "sft", "batch": {"size": 4}, "rollout": LIMITS | {"engine": "hf"}}
        settings |= {"data": {"train": GYM}, "checkpoint": {}}
        tree = run_tree("bad", tiny_model(num_hidden_layers=4), shared_directory, **settings)
        for section in ("model", "rollout"):
            tree[section] |= changes.pop(section, {})
        return parse_config(tree | changes)

    return make


def refused(here, config, kind, message):
    """Every rank raises the same error, so that nobody waits for anybody."""
    with pytest.raises(kind, match=message) as error:
        build_run(here, config)
    assert error.value.agreed
    # The rank that met it first says so; apart from that the words are the same.
    texts = [t.split(" (on rank")[0] for t in here.control.allgather(str(error.value))]
    assert len(set(texts)) == 1


def other_names(make_map):
    """A shard map with another name for the down projection, as of another version."""

    def renamed(region):
        name = region.view.name.replace("down_proj", "w2").replace("linear_fc2", "w2")
        return replace(region, view=replace(region.view, name=name))

    def make(*arguments, **settings):
        shard_map = make_map(*arguments, **settings)
        return ShardMap(shard_map.tensors, [renamed(region) for region in shard_map.regions])

    return make


@pytest.mark.parametrize(
    "room, name, message",
    [
        (build, "megatron_shard_map", "Megatron-core has other"),
        (rollout_map, "whole_shard_map", "rollout.engine = hf has other"),
    ],
)
def test_an_engine_with_other_parameters_than_its_map(
    here, configure, monkeypatch, room, name, message
):
    monkeypatch.setattr(room, name, other_names(getattr(room, name)))
    config = configure(recipe="rl", rollout=LIMITS | {"num_samples": 2})
    refused(here, config, ModelError, message + r" .*(.|\n)*mlp.w2.weight: in the map")


def test_a_role_that_reads_token_ids_as_other_texts(here, configure, shared_directory, tiny_model):
    actor, critic = tiny_model(), shared_directory / "other-tokenizer"
    if here.world.rank == 0:
        shutil.copytree(actor, critic)
        tree = json.loads((actor / "tokenizer.json").read_text())
        vocab = tree["model"]["vocab"]
        vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
        (critic / "tokenizer.json").write_text(json.dumps(tree))
    here.control.barrier()
    config = configure(
        recipe="rl",
        algorithm={"advantage": {"name": "gae"}},
        roles={"critic": {"path": str(critic)}},
    )
    message = r"roles.critic: its tokenizer has another token of id \d+, 'B', than the run's \('A'"
    refused(here, config, ConfigError, message)


@pytest.fixture
def place(here, shared_directory):
    """A directory with models and data that are not what they should be."""
    place = shared_directory / "bad"
    if here.world.rank == 0:
        for name, text in {
            "images/config.json": json.dumps({"model_type": "qwen2_vl"}),
            "empty.jsonl": "",
            "last.jsonl": '{"prompt": "1?", "answer": "2"}\n' * 950 + '{"prompt": 5}\n',
        }.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
    here.control.barrier()
    return place


def wrong(place, odd):
    """(what is raised, what it says, what is set): settings that do not fit the world or the model,
    and what is not there. `odd` is a model of three attention heads."""
    gone = {"recipe": "rl", "reward": {"function": "gone.py:score"}, "rollout": {"num_samples": 2}}
    empty, last = (
        {"train": {"kind": "files", "paths": [f"{place}/{name}.jsonl"]}}
        for name in ("empty", "last")
    )
    for message, changes in {
        "tensor_parallel 3 x pipeline_parallel 1 = 3 does not divide the 2 ranks; start a": {
            "parallel": {"tensor_parallel": 3}
        },
        "tensor_parallel = 2 does not divide the model's 3 attention heads; choose a divisor": {
            "model": {"path": str(odd)},
            "parallel": {"tensor_parallel": 2},
        },
    }.items():
        yield ConfigError, message, changes
    for message, path in {
        "model.path = nowhere: no such directory; give a Hugging Face": "nowhere",
        "model_type = 'qwen2_vl' is not supported: it needs images in prompts": f"{place}/images",
    }.items():
        yield ModelError, message, {"model": {"path": path}}
    message = "model.fp8: FP8 needs a GPU, and this rank has none"
    yield ClusterError, message, {"model": {"fp8": {"recipe": "delayed"}}}
    yield RewardError, "no file gone.py", gone
    yield DataError, "empty.jsonl|no rows", {"data": empty}
    yield DataError, r"last\.jsonl line 951: the prompt is int 5", {"data": last}


def test_what_does_not_fit_or_is_not_there(here, configure, tiny_model, place):
    odd = tiny_model(hidden_size=24, num_attention_heads=3, num_key_value_heads=3)
    for kind, message, changes in wrong(place, odd):
        refused(here, configure(**changes), kind, message)
    drawn = {"kind": "files", "paths": [f"{place}/last.jsonl"]}
    build_run(here, configure(data={"train": drawn, "check": "drawn"}))


@pytest.mark.parametrize("engine_notices", [True, False])
def test_logits_that_are_not_finite_on_one_rank(here, configure, monkeypatch, engine_notices):
    limits = LIMITS | {"max_response_tokens": 4, "num_samples": 2}
    run = build_run(here, configure(recipe="rl", rollout=limits))
    if here.world.rank == 1 and engine_notices:
        for weight in run.rollout.engine.weights.values():
            weight.fill_(math.nan)
    elif here.world.rank == 1:

        def generate_nan(feed, sampling):
            for index, _ in feed.next(0):
                feed.ended(index, Response((1,), (math.nan,), "stop"))

        monkeypatch.setattr(run.rollout.engine, "generate", generate_nan)
    with pytest.raises(TrainingError, match="the model's logits are infinite or NaN") as error:
        generate(run.rollout.place, run.rollout, run.settings.generate, StepRows(1, range(4)))
    assert error.value.agreed


def test_a_loss_that_is_not_finite_leaves_the_weights_alone(here, configure):
    run = build_run(here, configure())
    weights = run.roles["actor"].training.weights
    samples, columns = encode(run, 1, range(4))
    update(run, samples, columns)
    next(iter(weights.values())).view(-1)[0] = float("inf")
    before = {n: t.clone() for n, t in weights.items()}
    with pytest.raises(TrainingError, match=r"the actor's loss is (nan|inf)|gradient norm is"):
        update(run, samples, columns)
    torch.testing.assert_close(weights, before, rtol=0, atol=0, equal_nan=True)


def test_an_update_that_is_not_finite_can_be_skipped(here, configure):
    """It is counted, no schedule moves, and the next one is made as if it had never been tried.
    A run of nothing else ends."""
    run = build_run(here, configure(optimizer={"lr": 1e-3, "on_nonfinite": "skip"}))
    engine = run.roles["actor"].training
    samples, columns = encode(run, 1, range(4))
    assert update(run, samples, columns)["actor/num_skipped"] == 0
    tensor = next(iter(engine.weights.values())).view(-1)
    before = {n: t.clone() for n, t in engine.weights.items()}
    good = float(tensor[0])
    if here.world.rank == 1:  # met on one rank, skipped on all
        tensor[0] = float("nan")
    metrics = update(run, samples, columns)
    assert metrics["actor/num_skipped"] == 1
    assert not math.isfinite(metrics["actor/grad_norm"])
    tensor[0] = good
    same(engine.weights, before)
    assert engine.optimizer.num_steps == 1
    assert update(run, samples, columns)["actor/num_skipped"] == 0
    assert engine.optimizer.num_steps == 2
    tensor[0] = float("nan")
    for _ in range(MOST_SKIPPED):
        assert update(run, samples, columns)["actor/num_skipped"] == 1
    with pytest.raises(TrainingError, match="10 updates in a row were skipped"):
        update(run, samples, columns)
