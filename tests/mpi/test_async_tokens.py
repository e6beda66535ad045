"""What an asynchronous run trains on, token by token: one rank trains, one generates."""

import importlib

import pytest

from tests.mpi.placed_runs import configure, run
from tests.pieces import note, take
from verl_hpc.data.order import Order, Position
from verl_hpc.trainer import loop as loops
from verl_hpc.trainer.operators.update import update_actor
from verl_hpc.trainer.recipe import operator

pytestmark = pytest.mark.world(2)

STALENESS = 2
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


@pytest.fixture
def noted(here, monkeypatch):
    """`noted()`: what was trained on, and what each call of the engine gave, on every rank."""
    trained, pieces, init = [], {}, loops.Loop.__init__

    @operator(changes_state=True)
    def trains(place, actor, settings, rows, samples, sequences, old, advantages):
        trained.append((rows, samples, sequences))
        return update_actor(place, actor, settings, samples, sequences, old, advantages)

    def notes(self, context, *arguments):
        init(self, context, *arguments)
        rollout = context.rollout
        if rollout.engine is not None:
            generate = rollout.engine.generate

            def wrapped(prompts, sampling, seeds, interrupted, **options):
                found = generate(prompts, sampling, seeds, interrupted, **options)
                note(pieces, rollout.version, seeds, options.get("prefixes"), found)
                return found

            rollout.engine.generate = wrapped

    trains.__name__ = "update_actor"
    recipe = importlib.import_module("verl_hpc.trainer.recipes.grpo")
    monkeypatch.setattr(recipe, "update_actor", trains)
    monkeypatch.setattr(loops.Loop, "__init__", notes)
    return lambda: (here.control.broadcast(trained, 0), here.control.broadcast(pieces, 1))


def test_every_token_is_trained_on_once_as_it_was_sampled(
    here, tiny_model, shared_directory, noted
):
    config = configure(
        shared_directory,
        tiny_model(**SIZES),
        "async-tokens",
        "grpo",
        steps=5,
        batch={"size": 3, "max_tokens_per_micro_batch": 400},
        placement={"train": "0", "rollout": "1"},
        algorithm={"old_log_probs": "rollout"},
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
    assert len(trained) == 5 and not left, "tokens that nobody trained on"
    assert max(seen) > 1, "responses that continued under newer weights"
