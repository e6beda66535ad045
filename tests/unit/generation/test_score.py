"""Scores of all ranks, and how much of what failed all of them learn."""

import pickle
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import torch

from tests.unit.ranks import on_ranks
from verl_hpc.config.reward import RewardConfig
from verl_hpc.data.problem import Problem
from verl_hpc.generation.score import ScoreSettings, score
from verl_hpc.placement.layouts import Pool
from verl_hpc.rewards.scorer import FunctionScorer
from verl_hpc.step.batch import MASK, TOKENS, Columns, Sample, Samples, StepRows
from verl_hpc.step.placement import Placement
from verl_hpc.testing.local import LocalControl
from verl_hpc.testing.local_run import CPU

NUM = 2000


class Remembers(LocalControl):
    """The control plane of one rank; counts the bytes that it would have sent."""

    sent = 0

    def allgather_array(self, rows):
        self.sent += rows.nbytes
        return super().allgather_array(rows)

    def merge(self, value, combine):
        # What goes to the next rank.
        self.sent += len(pickle.dumps(combine(value, value)))
        return super().merge(value, combine)

    def gather(self, value):
        self.sent += len(pickle.dumps(value))
        return super().gather(value)


class Problems:
    """Row i asks for i."""

    def read(self, rows):
        self.asked = list(rows)
        return [
            Problem(row, "?", "x", ground_truth=row, columns=partial(dict, level=row))
            for row in rows
        ]


def place(groups=((0,),), control=None):
    return Placement(Pool("rollout", groups), 0, control or LocalControl(), CPU)


def of_two_ranks(control):
    """The other rank has nothing to score."""
    placement = place(((0, 1),), control)
    placement.group = (0,)
    return placement


def settings(reward, **changes):
    tokenizer = SimpleNamespace(decode=lambda tokens, **_: f"{tokens[0]} " * 500)
    return ScoreSettings(FunctionScorer(reward, RewardConfig(**changes)), tokenizer, Problems())


def generated(count, per_prompt=1):
    """Sample i answers row 10 + its group with the one token i, behind a prompt of two."""
    rows = StepRows(1, range(10, 10 + count))
    samples = tuple(Sample(i, i // per_prompt, 2, 1, False) for i in range(count))
    tokens = [torch.tensor([7, 7, i]) for i in range(count)]
    masks = [torch.ones(1, dtype=torch.uint8)] * count
    sequences = Columns(list(range(count)), {TOKENS: tokens, MASK: masks})
    return rows, Samples(samples, {"rollout": [0] * count}), sequences


def test_failures_are_counted_and_some_reasons_told(caplog):
    def reward(solution_str, **_):
        if solution_str.startswith("7 "):
            return {"score": 1, "length": 3}
        raise ValueError(f"no answer in {solution_str}")

    control = Remembers()
    scores, metrics = score(
        of_two_ranks(control), settings(reward, on_error="zero"), *generated(NUM)
    )
    assert scores.num_failed == NUM - 1
    assert list(scores.values) == [float(i == 7) for i in range(NUM)]
    assert [i for i, own in enumerate(scores.details) if own] == [7], "others lack that number"
    assert metrics == {
        "critic/score/mean": 1 / NUM,
        "critic/score/max": 1.0,
        "critic/score/min": 0.0,
        "reward/length": 3.0,
        "reward/num_failed": NUM - 1,
    }
    row = 4 + 8 + 3 + 8  # position, score, whether it failed, is a list, has a length; length
    assert NUM * row < control.sent < NUM * row + 2000, "not the thousands of reasons"
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"{NUM - 1} of {NUM} rewards failed and are 0: ValueError: no answer in 0 0 0"
    )
    assert len(record.getMessage()) < 1100


def test_nothing_is_said_where_nothing_failed(caplog):
    found, metrics = score(place(), settings(lambda **_: 0.5), *generated(3))
    assert (found.num_failed, list(found.values)) == (0, [0.5] * 3)
    assert not caplog.records
    assert "reward/num_failed" not in metrics


def test_a_response_is_scored_with_its_tokens_and_the_row_that_it_answers():
    calls = []

    def reward(solution_str, ground_truth, response_ids, truncated, row, prompt):
        calls.append((response_ids, truncated, row, prompt))
        return float(solution_str.split()[0]) + 100 * ground_truth

    rows, samples, sequences = generated(5, per_prompt=2)
    cut = tuple(replace(sample, truncated=sample.index == 1) for sample in samples)
    scores, _ = score(place(), settings(reward), rows, replace(samples, samples=cut), sequences)
    assert list(scores.values) == [1000, 1001, 1102, 1103, 1204]
    assert calls[:2] == [([0], False, {"level": 10}, "?"), ([1], True, {"level": 10}, "?")]


def test_a_function_is_told_the_runs_name():
    known = replace(
        settings(lambda extra_info, **_: extra_info["experiment_name"] == "8b"), run="8b"
    )
    assert score(place(), known, *generated(1))[0].values[0] == 1.0


def test_ranks_of_a_group_divide_its_samples():
    """Each of two scores every other one."""

    def work(control):
        known = settings(lambda **_: {"score": 0.5 - 0.25 * control.rank, "rank": control.rank})
        here = Placement(Pool("rollout", ((0, 1),)), control.rank, control, CPU)
        scores, _ = score(here, known, *generated(5))
        return scores.values, scores.details, known.problems.asked

    values = [0.5, 0.25, 0.5, 0.25, 0.5]
    details = [{"rank": float(i % 2)} for i in range(5)]
    asked = [[10, 12, 14], [11, 13]]
    assert on_ranks(2, work) == [(values, details, rows) for rows in asked]


def test_every_rank_knows_what_each_token_earns():
    """Three ranks score, and one of them has no list."""

    def work(control):
        lists = [{"score": [0.5 + control.rank]}, 1.0, {"score": [-0.25]}]
        known = settings(lambda **_: lists[control.rank])
        here = Placement(Pool("rollout", ((0, 1, 2),)), control.rank, control, CPU)
        scores, metrics = score(here, known, *generated(5))
        return list(scores.values), scores.per_token, metrics["critic/score/mean"]

    values = [0.5, 1.0, -0.25, 0.5, 1.0]
    per_token = {0: {0: 0.5}, 2: {0: -0.25}, 3: {0: 0.5}}
    assert on_ranks(3, work) == [(values, per_token, sum(values) / 5)] * 3


def test_nothing_more_is_sent_where_no_function_gives_a_list():
    sent = []
    for reward in (lambda **_: 0.5, lambda **_: [0.0], lambda **_: [0.5]):
        control = Remembers()
        found, _ = score(of_two_ranks(control), settings(reward), *generated(NUM))
        sent.append(control.sent)
    assert sent[1] == sent[0], "zeros are no news"
    assert sent[2] == sent[0] + NUM * (4 + 4 + 8)
    assert found.per_token == {i: {0: 0.5} for i in range(NUM)}
