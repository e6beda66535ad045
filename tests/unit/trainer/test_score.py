"""Scores of all ranks, and how much of what failed is told to all of them."""

import json
from types import SimpleNamespace

from verl_hpc.config.data import RewardConfig
from verl_hpc.data.problem import Problem
from verl_hpc.trainer.operators.score import score

NUM = 2000


class Control:
    """One rank, which remembers what it would have sent."""

    def together(self, run):
        return run()

    def allgather(self, item):
        self.sent = item
        return [item]


def workers(reward):
    return SimpleNamespace(
        layouts=SimpleNamespace(replicas=((0,),)),
        group_index=lambda _: 0,
        rank=0,
        reward=reward,
        config=SimpleNamespace(reward=RewardConfig(on_error="zero")),
        session=SimpleNamespace(control=Control()),
        tokenizer=SimpleNamespace(decode=lambda tokens, **_: f"{tokens[0]} " * 500),
    )


def generated(count):
    problem = Problem(0, "?", data_source="x", ground_truth="y")
    return SimpleNamespace(
        samples=range(count),
        problems=dict.fromkeys(range(count), problem),
        responses={i: SimpleNamespace(tokens=(i,)) for i in range(count)},
    )


def test_failures_are_counted_and_some_reasons_told(caplog):
    def reward(solution_str, **_):
        if solution_str.startswith("7 "):
            return {"score": 1, "length": 3}
        raise ValueError(f"no answer in {solution_str}")

    here = workers(reward)
    found = score(here, generated(NUM))
    assert found.num_failed == NUM - 1
    assert list(found.values) == [float(i == 7) for i in range(NUM)]
    assert found.extra == {"length": 3.0}
    assert len(json.dumps(here.session.control.sent)) < 30 * NUM, "not the thousands of reasons"
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"{NUM - 1} of {NUM} rewards failed and are 0: ValueError: no answer in 0 0 0"
    )
    assert len(record.getMessage()) < 1100


def test_nothing_is_said_where_nothing_failed(caplog):
    found = score(workers(lambda **_: 0.5), generated(3))
    assert (found.num_failed, list(found.values)) == (0, [0.5] * 3)
    assert not caplog.records
