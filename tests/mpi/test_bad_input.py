"""What a user can get wrong is refused on every rank alike, before any work is done."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch

from tests.mpi.engines_for_tests import same
from tests.mpi.sft_for_tests import encode, update
from verl_hpc.config.load import parse_config
from verl_hpc.data.order import Position
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
from verl_hpc.trainer.evaluate import evaluate

pytestmark = pytest.mark.world(2)

LIMITS = {"max_prompt_tokens": 128, "max_response_tokens": 16}
GYM = {"kind": "reasoning_gym", "task": "chain_sum", "size": 16}


@pytest.fixture
def configure(tiny_model, shared_directory):
    def make(**changes):
        tree = {
            "name": "bad",
            "recipe": "sft",
            "steps": 2,
            "directory": str(shared_directory / "runs"),
            "model": {"path": str(tiny_model()), "dtype": "float32"},
            "rollout": LIMITS,
            "batch": {"size": 4},
            "data": {"train": GYM},
        }
        tree |= changes
        # vLLM takes no heads as small as these models'.
        return parse_config(tree | {"rollout": {"engine": "hf"} | tree["rollout"]})

    return make


def refused(here, config, kind, message):
    """Every rank raises the same error, so that nobody waits for anybody."""
    with pytest.raises(kind, match=message) as error:
        build_run(here, config)
    assert error.value.agreed
    # The rank that met it first says so; apart from that the words are the same.
    texts = [t.split(" (on rank")[0] for t in here.control.allgather(str(error.value))]
    assert len(set(texts)) == 1


def test_a_directory_without_weights(here, configure, shared_directory, tiny_model):
    empty = shared_directory / "no-weights"
    empty.mkdir(exist_ok=True)
    (empty / "config.json").write_text((tiny_model() / "config.json").read_text())
    refused(here, configure(model={"path": str(empty)}), ModelError, r"no \*\.safetensors in")


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
        (rollout_map, "hf_shard_map", "rollout.engine = hf has other"),
    ],
)
def test_an_engine_with_other_parameters_than_its_map(
    here, configure, monkeypatch, room, name, message
):
    monkeypatch.setattr(room, name, other_names(getattr(room, name)))
    config = configure(recipe="rl", rollout=LIMITS | {"num_samples": 2})
    refused(here, config, ModelError, message + r" .*(.|\n)*mlp.w2.weight: in the map")


def test_a_family_that_is_not_mapped(here, configure, shared_directory):
    other = shared_directory / "gpt2"
    other.mkdir(exist_ok=True)
    (other / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    message = "model_type = 'gpt2' is not mapped: it needs learned positions.*mapped are llama"
    refused(here, configure(model={"path": str(other)}), ModelError, message)


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


TWO = {"num_samples": 2}
ODD = {"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 3}


@pytest.mark.parametrize(
    "kind, message, changes",
    [
        (
            ConfigError,
            "tensor_parallel 3 x pipeline_parallel 1 = 3 does not divide the 2 ranks; start a",
            {"parallel": {"tensor_parallel": 3}},
        ),
        (
            ConfigError,
            "data_parallel = 4, but 2 ranks / 2 ranks of a replica give 1; start 8 ranks",
            {"parallel": {"tensor_parallel": 2, "data_parallel": 4}},
        ),
        (
            ConfigError,
            "rollout tensor_parallel = 4 does not divide the 2 ranks 0-1 .*; choose a divisor of 2",
            {"rollout": {"tensor_parallel": 4}},
        ),
        (
            ConfigError,
            "zero-redundancy grouping needs the training tensor_parallel .1. to be a multiple",
            {"rollout": {"tensor_parallel": 2, "grouping": "zero_redundancy"}},
        ),
        (
            ConfigError,
            "max_prompt_tokens 500 .* 100 = 600 is above the 512 positions of the actor's model",
            {"rollout": {"max_prompt_tokens": 500, "max_response_tokens": 100}},
        ),
        (
            ConfigError,
            "4 layers cannot be split over pipeline_parallel = 2 x virtual_pipeline = 4 stages",
            {"parallel": {"pipeline_parallel": 2, "virtual_pipeline": 4}},
        ),
        (
            ConfigError,
            "tensor_parallel = 2 does not divide the model's 3 attention heads; choose a divisor",
            {"sizes": ODD, "parallel": {"tensor_parallel": 2}},
        ),
        (
            ModelError,
            "model.path = nowhere: no such directory; give a Hugging Face",
            {"model": {"path": "nowhere"}},
        ),
        (
            ClusterError,
            "model.fp8: FP8 needs a GPU, and this rank has none",
            {"model": {"fp8": {"recipe": "delayed"}}},
        ),
        (
            RewardError,
            "no file gone.py",
            {"recipe": "rl", "reward": {"function": "gone.py:score"}, "rollout": TWO},
        ),
    ],
)
def test_settings_that_do_not_fit_the_world_or_the_model(
    here, configure, tiny_model, kind, message, changes
):
    directory = tiny_model("llama", False, **changes.get("sizes", {}))
    bases = {"model": {"path": str(directory)}, "rollout": LIMITS}
    changes = changes | {name: base | changes.get(name, {}) for name, base in bases.items()}
    changes.pop("sizes", None)
    refused(here, configure(**changes), kind, message)


def test_an_empty_data_set(here, configure, shared_directory):
    file = shared_directory / "empty.jsonl"
    file.write_text("")
    data = {"train": {"kind": "files", "paths": [str(file)]}}
    refused(here, configure(data=data), DataError, "empty.jsonl|no rows")


def test_a_bad_last_row_is_found_before_engines_are_built(here, configure, shared_directory):
    file = shared_directory / "last.jsonl"
    file.write_text('{"prompt": "1?", "answer": "2"}\n' * 950 + '{"prompt": 5}\n')
    data = {"train": {"kind": "files", "paths": [str(file)]}}
    refused(here, configure(data=data), DataError, r"last\.jsonl line 951: the prompt is int 5")
    build_run(here, configure(data=data | {"check": "drawn"}))


def test_evaluation_on_prompts_of_training(here, configure, shared_directory):
    rows = [json.dumps({"prompt": f"{i}?", "answer": "2"}) + "\n" for i in range(20)]
    train, test = (shared_directory / f"{name}.jsonl" for name in ("train", "test"))
    train.write_text("".join(rows))
    test.write_text("".join(rows[17:]))
    paths = {"train": train, "evaluation": test}
    data = {name: {"kind": "files", "paths": [str(path)]} for name, path in paths.items()}
    message = "3 of the 3 different prompts of data.evaluation .* in 3 of its 20 rows; the first is"
    refused(here, configure(data=data), DataError, message)
    run = build_run(here, configure(data=data | {"overlap": "drop"}))
    assert [problem.prompt for problem in run.problems.train] == [f"{i}?" for i in range(17)]
    assert sorted(run.order.take(Position(), 17)[0]) == list(range(17))
    assert run.problems.facts["rows dropped from training"] == 3
    facts = build_run(here, configure(data=data | {"overlap": "warn"})).problems.facts
    assert (facts["prompts found in training"], facts["rows dropped from training"]) == (3, 0)


def test_a_prompt_that_is_longer_than_allowed(here, configure):
    limits = {"max_prompt_tokens": 20, "max_response_tokens": 16}
    run = build_run(here, configure(rollout=limits))
    message = "chain_sum row 0: the prompt has .* tokens, rollout.max_prompt_tokens = 20; raise it"
    with pytest.raises(DataError, match=message):
        encode(run, 1, range(4))
    dropping = build_run(here, configure(rollout=limits | {"overlong_prompt": "drop"}))
    message = "step 1: every prompt of data.train was dropped for being longer than"
    with pytest.raises(DataError, match=message):
        encode(dropping, 1, range(4))


def test_an_evaluation_of_prompts_that_are_longer_than_allowed(here, configure):
    """It is refused before there is work to lose; where they are dropped, it is named."""
    task = GYM | {"task": "spell_backward", "template": "Spell this word backward: {question}"}
    changes = {
        "data": {"train": task | {"split": "train"}, "evaluation": task | {"split": "evaluation"}},
        "evaluation": {"at_start": True},
    }
    limits = {"engine": "hf", "max_prompt_tokens": 20, "max_response_tokens": 4}
    message = "16 rows cannot be used.*\n.*spell_backward row 0: the prompt has"
    refused(here, configure(rollout=limits, **changes), DataError, message)
    limits["overlong_prompt"] = "drop"
    run = build_run(here, configure(rollout=limits, **changes))
    run.sync.to_generation()
    with pytest.raises(DataError, match="step 2: every prompt of data.evaluation was dropped"):
        evaluate(run, 2)


@pytest.mark.parametrize("engine_notices", [True, False])
def test_logits_that_are_not_finite_on_one_rank(here, configure, monkeypatch, engine_notices):
    limits = LIMITS | {"max_response_tokens": 4, "num_samples": 2}
    run = build_run(here, configure(recipe="rl", rollout=limits))
    if here.world.rank == 1 and engine_notices:
        for weight in run.rollout.engine.weights.values():
            weight.fill_(math.nan)
    elif here.world.rank == 1:
        broken = Response((1,), (math.nan,), "stop")
        monkeypatch.setattr(
            run.rollout.engine, "generate", lambda prompts, *_, **__: [broken] * len(prompts)
        )
    with pytest.raises(TrainingError, match="the model's logits are infinite or NaN") as error:
        generate(run.rollout.place, run.rollout, run.settings.generate, StepRows(1, range(4)))
    assert error.value.agreed


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_leaves_the_weights_alone(here, configure, poison):
    run = build_run(here, configure())
    weights = run.roles["actor"].training.weights
    samples, columns = encode(run, 1, range(4))
    update(run, samples, columns)
    next(iter(weights.values())).view(-1)[0] = poison
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
