"""What rank 0 tells Prometheus, and the ranks that trace, where roles are on ranks of their own."""

import gzip
import json
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.mpi.placed_runs import configure, run
from tests.mpi.recipe_runs import ROLLOUT

pytestmark = pytest.mark.world(4)


def test_rewards_and_traces_of_a_split_run(here, tiny_model, shared_directory):
    """Responses are scored on ranks 2 and 3; rank 0 trains, and knows all scores."""
    file = shared_directory / "run.prom"
    config = configure(
        shared_directory,
        tiny_model(),
        "watched",
        "grpo",
        steps=1,
        rollout=ROLLOUT | {"max_prompt_tokens": 160},  # drops no prompt
        placement={"train": "0-1", "rollout": "2-3"},
        metrics={"terminal": "off", "report": False, "prometheus": {"textfile": str(file)}},
        runtime={"profile": {"steps": [1], "ranks": [0, 2]}},
    )
    (row,) = run(here, config)
    samples = {
        (s.name, *(value for name, value in s.labels.items() if name != "run")): s.value
        for family in text_string_to_metric_families(file.read_text())
        for s in family.samples
    }
    responses = config.batch.size * config.rollout.num_samples
    assert samples["verl_reward_count",] == responses
    ends = ["0.0", "0.3", "0.5", "0.8", "1.0"]  # the reward function gives quarters
    below = [0, *(samples["verl_reward_bucket", end] for end in ends)]
    total = sum((b - a) * i / 4 for i, (a, b) in enumerate(pairwise(below)))
    assert total == pytest.approx(responses * row["critic/score/mean"])
    for name in ("rollout", "update_actor"):
        assert samples["verl_operator_latency_seconds_count", name] == 1

    for rank, operator, other in ((0, "update_actor", "rollout"), (2, "rollout", "update_actor")):
        trace = config.run_directory / "profiles" / f"step_000001_rank_{rank}.json.gz"
        with gzip.open(trace) as text:
            names = {event["name"] for event in json.load(text)["traceEvents"]}
        assert operator in names
        assert other not in names
    assert len(list((config.run_directory / "profiles").iterdir())) == 2
