"""vLLM engines that take prompts from a queue, of which one is slow."""

import time

import numpy as np
import pytest

from tests.mpi.recipe_runs import assert_same, configure, run
from verl_hpc.generation.generate import generate
from verl_hpc.generation.prompt_queue import EnginePrompts
from verl_hpc.runtime.session import Session
from verl_hpc.step.batch import StepRows
from verl_hpc.trainer.build import build_run

pytestmark = pytest.mark.world(4)
NUM = 12


@pytest.fixture
def answers(here: Session, tiny_model, shared_directory, monkeypatch):
    """`answers(name, **rollout)`: tokens and log-probs of one step by slot, of all engines, and
    how many each gave. Where they take from a queue the first engine asks no second time before the
    other has found it empty."""
    model = tiny_model("qwen2", True, hidden_size=64, num_attention_heads=2, num_key_value_heads=2)

    def ask(name, **rollout):
        sizes = {"max_prompt_tokens": 96, "overlong_prompt": "truncate_left", "num_samples": 2}
        sizes |= {"max_response_tokens": 24, "kv_cache_gib": 0.05, "max_num_seqs": 2}
        config = configure(
            name, model, shared_directory, recipe="rl", batch={"size": NUM}, rollout=sizes | rollout
        )
        built = build_run(here, config)
        assert built.rollout is not None and built.sync is not None
        built.sync.to_generation()
        engine, place = built.rollout.here, built.rollout.place
        empty, calls, more = shared_directory / f"{name}-is-empty", [], EnginePrompts.more

        def later(prompts):
            calls.append(None)
            ends = time.monotonic() + 120
            while place.index == 0 and len(calls) > 1 and not empty.exists():
                assert time.monotonic() < ends, "the other engine does not finish"
                time.sleep(0.01)
            taken = more(prompts)
            if place.index == 1 and not taken:
                empty.touch()
            return taken

        monkeypatch.setattr(EnginePrompts, "more", later)
        rows = StepRows(1, range(NUM))
        (samples, columns), _ = generate(place, built.rollout, built.settings.generate, rows)
        engine.close()
        assert [sample.index for sample in samples] == list(range(2 * NUM))
        mine = {
            position: (tokens.tolist(), log_probs.tolist())
            for position, tokens, log_probs in zip(
                columns.positions, columns["tokens"], columns["rollout_log_probs"], strict=True
            )
        }
        answered = here.control.allgather((place.index, mine))
        by_engine = dict(answered)
        # Ranks of an engine have the same.
        assert all(by_engine[index] == part for index, part in answered)
        whole = {slot: answer for part in by_engine.values() for slot, answer in part.items()}
        return [whole[slot] for slot in range(2 * NUM)], [len(by_engine[i]) for i in (0, 1)]

    return ask


def test_the_fast_engine_answers_more(answers):
    engines = {"tensor_parallel": 2}
    fixed, counts = answers("fixed", **engines)
    assert counts == [NUM, NUM]
    found, counts = answers("stealing", balance="stealing", **engines)
    assert sum(counts) == 2 * NUM
    assert 0 < counts[0] < counts[1]
    for (tokens, log_probs), (others, their) in zip(found, fixed, strict=True):
        assert tokens == others, "seeds belong to slots"
        # Neighbours in a batch change the last bits.
        np.testing.assert_allclose(log_probs, their, atol=1e-5)


@pytest.mark.world(2)
def test_a_run_trains_on_what_comes_from_a_queue(here, tiny_model, shared_directory):
    model = tiny_model("qwen2", True, hidden_size=64, num_attention_heads=2, num_key_value_heads=2)
    rollout = {"max_prompt_tokens": 96, "overlong_prompt": "truncate_left", "num_samples": 2}
    rollout |= {"max_response_tokens": 12, "kv_cache_gib": 0.05, "max_num_seqs": 2}
    fixed, stealing = (
        run(here, f"run-{way}", model, shared_directory, recipe="rl", batch={"size": 12},
            rollout=rollout | {"balance": way})
        for way in ("fixed", "stealing")
    )  # fmt: skip
    assert_same(stealing, fixed, ("actor/", "critic/", "response"), rel=1e-4)
