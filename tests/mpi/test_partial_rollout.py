"""Responses that are interrupted and continued, by both engines."""

from collections import deque
from contextlib import closing

import pytest
import torch
from transformers import AutoTokenizer

from tests.generated import generated
from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import load_rollout, loaded_rollout
from tests.slow import all_slow
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.rollout.protocol import NOT_BEGUN, Response, Sampling

pytestmark = pytest.mark.world(2)
LIMITS = {"max_prompt_tokens": 32, "max_response_tokens": 48, "kv_cache_gib": 0.03}
PROMPTS = [list(range(40 + n, 40 + 2 * n)) for n in (3, 9, 4, 12)]
SEEDS, OTHER_SEEDS = [1, 2, 3, 4], [11, 12, 13, 14]
GREEDY = Sampling(max_tokens=40, temperature=0.0)


@pytest.fixture(scope="module")
def directory(tiny_model):
    return tiny_model("qwen2", True, num_hidden_layers=4, **VLLM_HEADS)


@pytest.fixture(scope="module")
def build(here, directory):
    def build(engine, replicas, **changes):
        config = RolloutConfig(engine=engine, **LIMITS, **changes)
        return loaded_rollout(here, directory, replicas, config)

    return build


@pytest.fixture(scope="module", params=["tp1", *all_slow("tp2")])
def vllm(request, build):
    replicas = ((0,), (1,)) if request.param == "tp1" else ((0, 1),)
    with closing(build("vllm", replicas)) as engine:
        yield engine


@pytest.fixture
def hf(build):
    return build("hf", ((0,), (1,)))


def after(num_steps):
    """For `until`: True once so many steps are made."""
    asked = iter(range(1, num_steps + 1))
    return lambda _: next(asked) == num_steps


def close(a, b):
    torch.testing.assert_close(torch.tensor(a), torch.tensor(b), atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_steps", [1, 33])
def test_greedy_responses_in_two_parts_are_those_in_one(vllm, num_steps):
    whole = generated(vllm, PROMPTS, GREEDY, SEEDS)
    first = generated(vllm, PROMPTS, GREEDY, SEEDS, until=after(num_steps))
    begun = [r if r.finish_reason == "unfinished" else None for r in first]
    assert any(begun)
    for part, response in zip(first, whole, strict=True):
        assert part.tokens == response.tokens[: len(part.tokens)]
        assert len(part.tokens) == len(part.log_probs) <= num_steps
    again = generated(vllm, PROMPTS, GREEDY, OTHER_SEEDS, prefixes=begun)
    for response, part, prefix in zip(whole, again, begun, strict=True):
        assert (part.tokens, part.finish_reason) == (response.tokens, response.finish_reason)
        close(part.log_probs, response.log_probs)
        if prefix is not None:
            assert part.log_probs[: len(prefix.tokens)] == prefix.log_probs


def test_sampled_responses_are_continued_under_newer_weights(vllm, here, directory, reference):
    """Every token is kept, and scored by the weights that it was sampled with."""
    sampling = Sampling(max_tokens=40)
    first = generated(vllm, PROMPTS, sampling, SEEDS, until=after(20))
    first = [r if r.finish_reason == "unfinished" else NOT_BEGUN for r in first]
    assert any(r.tokens for r in first)
    vllm.begin_update()
    for weight in vllm.weights.values():
        weight *= 1.25
    vllm.finish_update()
    try:
        second = generated(vllm, PROMPTS, sampling, OTHER_SEEDS, prefixes=first)
        assert second == generated(vllm, PROMPTS, sampling, OTHER_SEEDS, prefixes=first)
    finally:
        load_rollout(here, vllm, directory)
    old = reference(directory)
    for prompt, prefix, response in zip(PROMPTS, first, second, strict=True):
        done = len(prefix.tokens)
        assert response.tokens[:done] == prefix.tokens and len(response.tokens) > done
        assert response.log_probs[:done] == prefix.log_probs
        assert len(response.tokens) <= 40
        assert response.finish_reason == ("length" if len(response.tokens) == 40 else "stop")
        with torch.no_grad():
            under_old = old.log_probs(torch.tensor([*prompt, *response.tokens]))
        under_old = under_old[len(prompt) - 1 :].tolist()
        close(response.log_probs[:done], under_old[:done])
        difference = torch.tensor(response.log_probs[done:]) - torch.tensor(under_old[done:])
        assert difference.abs().max() > 1e-3


def test_what_ends_a_call_may_be_which_responses_are_finished(vllm):
    prompts, seeds, sampling = [PROMPTS[0]] * 24, list(range(24)), Sampling(max_tokens=48)
    whole = generated(vllm, prompts, sampling, seeds)
    lengths = [len(r.tokens) for r in whole]
    wanted = set(sorted(range(24), key=lengths.__getitem__)[:5])
    longest = max(lengths[i] for i in wanted)
    assert longest < 48
    parts = generated(vllm, prompts, sampling, seeds, until=wanted.issubset)
    for part, response in zip(parts, whole, strict=True):
        ended = part.finish_reason != "unfinished"
        assert ended == (len(response.tokens) <= longest)
        assert part.tokens == response.tokens[:longest]
        assert not ended or part == response


def test_an_interruption_keeps_what_there_is(vllm):
    whole = generated(vllm, PROMPTS, GREEDY, SEEDS)
    part = generated(vllm, PROMPTS, GREEDY, SEEDS, lambda: True)
    assert any(p.finish_reason == "unfinished" for p in part)
    for p, w in zip(part, whole, strict=True):
        assert p.tokens == w.tokens[: len(p.tokens)] and len(p.tokens) >= min(31, len(w.tokens))


def test_more_requests_than_are_decoded_at_a_time(build):
    """Those that wait when a call ends have no tokens; all end as they would have."""
    with closing(build("vllm", ((0,), (1,)), max_num_seqs=2)) as engine:
        whole = generated(engine, PROMPTS, GREEDY, SEEDS)
        part = generated(engine, PROMPTS, GREEDY, SEEDS, until=after(2))
        assert NOT_BEGUN in part and any(p.tokens for p in part)
        calls = 0
        while open_ := [i for i, p in enumerate(part) if p.finish_reason == "unfinished"]:
            calls += 1
            prompts, prefixes = [PROMPTS[i] for i in open_], [part[i] for i in open_]
            new = generated(engine, prompts, GREEDY, open_, prefixes=prefixes, until=after(9))
            for i, response in zip(open_, new, strict=True):
                part[i] = response
        assert calls > 2
        assert [(p.tokens, p.finish_reason) for p in part] == [
            (w.tokens, w.finish_reason) for w in whole
        ]


def test_a_stop_string_may_begin_in_the_prefix(vllm, directory):
    tokenizer = AutoTokenizer.from_pretrained(directory)  # a token is a byte
    (long,) = generated(vllm, [PROMPTS[0]], GREEDY, [1])
    letters = [tokenizer.decode([t]) for t in long.tokens]
    plain = [len(x) == 1 and x.isascii() and x.isprintable() for x in letters]
    first = next(i for i in range(3, 39) if plain[i] and plain[i + 1])
    stop = letters[first] + letters[first + 1]
    ending = next(i for i in range(39) if letters[i : i + 2] == list(stop)) + 2
    sampling = Sampling(max_tokens=40, temperature=0.0, stop=(stop,))
    (short,) = generated(vllm, [PROMPTS[0]], sampling, [1])
    assert (short.tokens, short.finish_reason) == (long.tokens[:ending], "stop")
    for done in (1, ending - 1):
        prefix = Response(long.tokens[:done], long.log_probs[:done], "unfinished")
        (again,) = generated(vllm, [PROMPTS[0]], sampling, [1], prefixes=[prefix])
        assert (again.tokens, again.finish_reason) == (short.tokens, "stop"), done


def test_a_prefix_that_ends_within_a_character(vllm, directory):
    """Nothing of the prompt is searched for a stop string then."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    prompt = tokenizer("Answer, then say END.")["input_ids"]
    (half, _) = tokenizer("é")["input_ids"]
    prefix = Response((half,), (-1.0,), "unfinished")
    sampling = Sampling(max_tokens=6, temperature=0.0, stop=("say END",))
    (stopping,) = generated(vllm, [prompt], sampling, [1], prefixes=[prefix])
    plain = Sampling(max_tokens=6, temperature=0.0)
    (free,) = generated(vllm, [prompt], plain, [1], prefixes=[prefix])
    assert stopping == free
    assert stopping.tokens[0] == half and len(stopping.tokens) > 1


def test_transformers_continues_what_vllm_began(vllm, hf):
    whole = generated(vllm, PROMPTS, GREEDY, SEEDS)
    first = generated(vllm, PROMPTS, GREEDY, SEEDS, until=after(5))
    # Prefixes of different lengths in a batch, and one response that was not begun.
    cut = [Response(r.tokens[:n], r.log_probs[:n], "unfinished") for n, r in enumerate(first)]
    found = generated(hf, PROMPTS, GREEDY, SEEDS, prefixes=cut)
    for mine, theirs, prefix in zip(found, whole, cut, strict=True):
        assert (mine.tokens, mine.finish_reason) == (theirs.tokens, theirs.finish_reason)
        assert mine.log_probs[: len(prefix.tokens)] == prefix.log_probs
        close(mine.log_probs, theirs.log_probs)


def test_transformers_is_ended_between_batches(hf):
    hf.at_a_time = 2
    whole = generated(hf, PROMPTS, GREEDY, SEEDS)
    finished = []

    def until(indices):
        finished.append(set(indices))
        return len(finished) == 2

    prefix = Response(whole[3].tokens[:4], whole[3].log_probs[:4], "unfinished")
    prefixes = [None, None, None, prefix]
    part = generated(hf, PROMPTS, GREEDY, SEEDS, prefixes=prefixes, until=until)
    assert part == [*whole[:2], NOT_BEGUN, prefix]
    assert finished == [set(), {0, 1}]
    answers = iter([False, True])
    ended = generated(hf, PROMPTS, GREEDY, SEEDS, lambda: next(answers))
    assert ended == [*whole[:2], NOT_BEGUN, NOT_BEGUN]


def test_steps_that_were_started_ahead_do_not_reach_the_next_call(build):
    """On GPUs vLLM schedules a step ahead; on CPUs only a queue of its own makes it do so."""
    with closing(build("vllm", ((0,), (1,)), max_num_seqs=2)) as engine:
        whole = generated(engine, PROMPTS, GREEDY, SEEDS)
        core = engine._core
        core.batch_queue, core.batch_queue_size = deque(maxlen=2), 2
        core.step_fn = core.step_with_batch_queue
        for num_steps in (2, 4, 7):
            waiting = []

            def until(_, num_steps=num_steps, waiting=waiting):
                waiting.append(len(core.batch_queue))
                return len(waiting) == num_steps

            first = generated(engine, PROMPTS, GREEDY, SEEDS, until=until)
            assert waiting[-1] > 0 and not core.batch_queue
            engine.begin_update()
            engine.finish_update()
            again = generated(engine, PROMPTS, GREEDY, OTHER_SEEDS, prefixes=first)
            assert [r.tokens for r in again] == [w.tokens for w in whole]
