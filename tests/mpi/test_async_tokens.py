"""What an asynchronous run trains on, token by token: one rank trains, one generates."""

import importlib

import pytest
import torch

from tests.mpi.conftest import Reference
from tests.mpi.placed_runs import configure, run, weights_of
from tests.pieces import note, take
from verl_hpc.data.order import Order, Position
from verl_hpc.step.operator import operator
from verl_hpc.step.operators.update import update_actor
from verl_hpc.trainer import loop as loops

pytestmark = pytest.mark.world(2)

STALENESS, STEPS = 2, 5
SIZES = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}


@pytest.fixture
def noted(here, monkeypatch):
    """`noted()`: what was trained on, and what each call of the engine gave, on every rank."""
    trained, pieces, init = [], {}, loops.Loop.__init__

    @operator(changes_state=True)
    def trains(place, actor, settings, rows, samples, sequences, advantages):
        trained.append((rows, samples, sequences))
        return update_actor(place, actor, settings, samples, sequences, advantages)

    def notes(self, context, *arguments):
        init(self, context, *arguments)
        pieces.clear()  # of the run before
        rollout = context.rollout
        if rollout.engine is not None:
            generate = rollout.engine.generate

            def wrapped(feed, sampling):
                generate(feed, sampling)
                note(pieces, rollout.version, feed)

            rollout.engine.generate = wrapped

    trains.__name__ = "update_actor"
    recipe = importlib.import_module("verl_hpc.trainer.recipes.rl")
    monkeypatch.setattr(recipe, "update_actor", trains)
    monkeypatch.setattr(loops.Loop, "__init__", notes)
    return lambda: (here.control.broadcast(trained, 0), here.control.broadcast(pieces, 1))


def log_probs_are_those_of_the_versions(trained, config, model):
    """The oracle: transformers, with the weights that each version's checkpoint has."""
    models = [Reference(model) for _ in trained]
    for version in range(1, len(trained)):
        weights = weights_of(config, version)
        missing = models[version].model.load_state_dict(weights, strict=False).missing_keys
        assert set(missing) <= {"lm_head.weight"}
    own, other = [], []
    for _, samples, sequences in trained:
        for i, sample in enumerate(samples):
            tokens, versions = sequences["tokens"][i], sequences["versions"][i].tolist()
            with torch.no_grad():
                by_version = [m.log_probs(tokens)[sample.prompt_length - 1 :] for m in models]
            given = sequences["rollout_log_probs"][i].tolist()
            for at in sequences["mask"][i].nonzero()[:, 0].tolist():
                of_token = [abs(float(of_version[at]) - given[at]) for of_version in by_version]
                own.append(of_token[versions[at]])
                other.append(of_token[(versions[at] + 1) % len(models)])
    assert max(own) < 1e-4
    assert sum(other) / len(other) > 1e-3, "versions that nobody could tell apart"


def test_every_token_is_trained_on_once_as_it_was_sampled(
    here, tiny_model, shared_directory, noted
):
    model = tiny_model(**SIZES)
    config = configure(
        shared_directory,
        model,
        "async-tokens",
        "grpo",
        steps=STEPS,
        batch={"size": 3, "max_tokens_per_micro_batch": 400},
        placement={"train": "0", "rollout": "1"},
        algorithm={"old_log_probs": "rollout"},
        optimizer={"lr": 1e-3},  # so that the log-probs of two versions are not alike
        checkpoint={"every": 1, "keep": STEPS},
        rollout={
            "engine": "vllm",
            "staleness": STALENESS,
            "num_samples": 3,
            "max_prompt_tokens": 160,
            "max_response_tokens": 40,
            "max_num_seqs": 5,
            "kv_cache_gib": 0.03,
        },
    )
    rows = run(here, config)
    trained, left = noted()
    if here.world.rank == 0:
        log_probs_are_those_of_the_versions(trained, config, model)
    order, position = Order(30, config.seed, True), Position()
    seen = set()
    for step, (asked, samples, sequences) in enumerate(trained, 1):
        wanted, position = order.take(position, 3)
        assert (asked.step, asked.rows) == (step, wanted)
        assert [s.index for s in samples] == list(range(9))
        lags = []
        for i, sample in enumerate(samples):
            tokens, log_probs, versions = take(left, config.seed, step, sample)
            assert sequences["tokens"][i][sample.prompt_length :].tolist() == tokens
            assert sequences["rollout_log_probs"][i].tolist() == log_probs
            assert sequences["versions"][i].tolist() == versions
            lags += [step - 1 - version for version in versions]
            seen.add(len(set(versions)))
        assert min(lags) >= 0 and max(lags) <= STALENESS
        assert rows[step - 1]["rollout/lag/max"] == max(lags)
        assert rows[step - 1]["rollout/lag/mean"] == pytest.approx(sum(lags) / len(lags))
    assert len(trained) == STEPS and not left, "tokens that nobody trained on"
    assert max(seen) > 1, "responses that continued under newer weights"
