"""Prompts that engines take from a queue: each once, the longest first, by whoever has room."""

import itertools
import time
from collections import defaultdict
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import feed_of
from tests.unit.generation.test_generate import rollout, settings
from tests.unit.ranks import on_ranks
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.generation.generate import generate
from verl_hpc.generation.prompt_queue import FromQueue, PromptQueue
from verl_hpc.placement.layouts import Pool
from verl_hpc.rollout.protocol import FeedAround, Sampling
from verl_hpc.step.batch import Sample, Samples, StepRows
from verl_hpc.step.placement import Placement
from verl_hpc.testing.local import LocalControl
from verl_hpc.testing.local_rollout import LocalRollout
from verl_hpc.testing.local_run import CPU

ROWS = StepRows(3, [0, 1, 3, 0, 1, 3, 0, 1])


def counter():
    counts = defaultdict(itertools.count)
    return lambda name: next(counts[name])


def engines(num_engines, count):
    """Places and queues of engines with one rank each."""
    groups = tuple((rank,) for rank in range(num_engines))
    places = [SimpleNamespace(index=i, groups=groups) for i in range(num_engines)]
    return [(place, PromptQueue("q", count, LocalControl())) for place in places]


@given(st.integers(1, 5), st.integers(0, 30), st.integers(1, 9), st.randoms(use_true_random=False))
def test_each_prompt_is_answered_once_whoever_is_fast(num_engines, num_prompts, at_a_time, random):
    pairs = engines(num_engines, counter())
    rows = StepRows(1, range(num_prompts))
    for _ in range(2):
        prompts = {group: [1] * random.randint(1, 9) for group in range(num_prompts)}
        supplies = [queue.deal(place, prompts, rows, at_a_time) for place, queue in pairs]
        taken = []
        while waiting := [supply for supply in supplies if not supply.is_empty]:
            taken += random.choice(waiting).more()
        assert sorted(taken) == list(range(num_prompts))
        assert sorted(itertools.chain(*(s.taken for s in supplies))) == sorted(taken)


def test_the_longest_of_the_last_time_come_first():
    rows = StepRows(1, [7, 8, 9, 5])
    ((place, queue),) = engines(1, counter())
    queue.learn(rows, [Sample(i, i // 2, 3, n, False) for i, n in enumerate((2, 4, 9, 9, 5, 6))])
    # Of row 5 nothing is known: the mean of the others, 5.8.
    supply = queue.deal(place, {0: [1], 1: [1], 2: [1], 3: [1]}, rows, 1)
    assert list(itertools.takewhile(bool, iter(supply.more, None))) == [[1], [3], [2], [0]]


def test_an_engine_takes_prompts_while_it_has_room():
    ((place, queue),) = engines(1, counter())
    prompts = queue.deal(place, dict.fromkeys(range(4), (1,)), StepRows(1, range(4)), 1)
    feed = FromQueue(feed_of([[1]] * 8, range(8)), prompts, [i // 2 for i in range(8)], at_a_time=3)
    taken = [[index for index, _ in feed.next(num_running)] for num_running in (0, 3, 2, 1, 0)]
    assert taken == [[0, 1, 2, 3], [], [4, 5], [6, 7], []]


class Late(FeedAround):
    def next(self, num_running):
        time.sleep(0.0 if num_running else 0.2)
        return super().next(num_running)


class Slow(LocalRollout):
    def generate(self, feed, sampling):
        super().generate(Late(feed), sampling)


STEALING = {"balance": "stealing"}


def test_a_slow_engine_answers_less_and_every_response_is_at_its_slot():
    groups = ((0,), (1,))
    count = counter()

    def work(control, steals):
        place = Placement(Pool("rollout", groups), control.rank, control, CPU)
        engine = Slow() if steals and control.rank == 0 else LocalRollout()
        some = rollout(engine, place, queue=PromptQueue("q", count, LocalControl()))
        (samples, columns), _ = generate(place, some, settings(STEALING if steals else None), ROWS)
        rows = [row.tolist() for row in columns["tokens"]]
        return samples, dict(zip(columns.positions, rows, strict=True))

    fixed = on_ranks(2, lambda control: work(control, False))
    (samples, slow), (_, fast) = on_ranks(2, lambda control: work(control, True))
    assert len(samples) == 2 * len(ROWS.rows) == len(slow) + len(fast)
    assert 0 < len(slow) < len(fast)
    assert slow | fast == fixed[0][1] | fixed[1][1]


ENGINE_SETTINGS = [
    ({"engine": "hf"}, "needs engine: vllm"),
    ({"staleness": 1}, "needs staleness: 0"),
    ({"on_interrupt": "keep"}, "on_interrupt: drop"),
]


@pytest.mark.parametrize("changes, words", ENGINE_SETTINGS)
def test_what_belongs_to_an_engine_is_not_taken_from_a_queue(changes, words):
    with pytest.raises(ValueError, match=words):
        RolloutConfig(balance="stealing", **changes)


def test_an_evaluation_has_shares_and_teaches_nothing():
    asks = settings(STEALING)
    asks = asks.answering(asks.problems, "val", Sampling(max_tokens=2), 1)
    some = rollout(queue=PromptQueue("q", counter(), LocalControl()))
    generate(some.place, some, asks, ROWS)
    assert not asks.steals
    assert some.queue._lengths == {}


def test_the_rows_of_each_task_have_lengths_of_their_own():
    queue, prompts = PromptQueue("q", counter(), LocalControl()), {0: [1, 1], 1: [1]}
    one = SimpleNamespace(groups=[[0]], index=0)
    sums, words = (StepRows(1, [7, 8], task=task) for task in ("sums", "words"))
    queue.learn(sums, Samples((Sample(0, 0, 2, 1, False), Sample(1, 1, 1, 9, False)), {}))
    assert [queue.deal(one, prompts, rows, 2).first for rows in (sums, words)] == [[1, 0], [0, 1]]
