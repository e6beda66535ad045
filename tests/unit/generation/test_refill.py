"""Dynamic sampling: other prompts are asked until enough have responses of different scores."""

import pytest

from tests.unit.trainer.runs import files, loop, recipe_of, small_run
from verl_hpc.data.order import Position
from verl_hpc.errors import ConfigError
from verl_hpc.trainer.steps import Steps

PROMPTS = [a + b for a in "abcdefgh" for b in "abc"]
"""24 of two letters."""
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    # Prompts that begin with a to d, whose answers end with that letter, are all alike.
    if ground_truth[-1] in "abcd":
        return 1.0
    return sum(map(ord, solution_str)) % 7 / 7
"""
SETTINGS = {
    "held_out": None,
    "batch__size": 4,
    "rollout__num_samples": 3,
    "algorithm__drop_equal_groups": True,
}


def run_of(directory, **changes):
    (directory / "alike.py").write_text(REWARD)
    given = SETTINGS | {
        "reward__function": f"{directory}/alike.py:compute_score",
        "data__train": files(directory, "prompts.jsonl", PROMPTS),
        "batch__refill_rounds": 8,
    }
    return small_run(directory, **given | changes)


def noted(monkeypatch):
    """For each step: the rows that were trained on, and the position behind it."""
    steps = []
    collect = Steps._collect

    def note(self, progress, metrics, mine, values):
        asked, samples = values.made["asked"], values.made["samples"]
        steps.append((asked, samples, values.made["scores"], progress.position))
        return collect(self, progress, metrics, mine, values)

    monkeypatch.setattr(Steps, "_collect", note)
    return steps


def test_a_step_trains_on_as_many_mixed_prompts_as_it_asks_for(tmp_path, monkeypatch):
    steps = noted(monkeypatch)
    run = run_of(tmp_path, steps=3)
    _, lines = loop(run)
    problems = run.settings.problems
    begin = Position(0, 0)
    for line, (asked, samples, scores, behind) in zip(lines, steps, strict=True):
        assert len(asked.rows) == 4 and len(samples) == 12
        assert [s.group for s in samples] == [i // 3 for i in range(12)]
        assert [s.index for s in samples] == list(range(12))
        for group, problem in enumerate(problems.read(asked.rows)):
            assert problem.ground_truth[-1] not in "abcd"
            assert len(set(scores.values[3 * group : 3 * group + 3])) > 1
        assert line["batch/mixed_prompts"] == 4 and line["batch/equal_groups"] == 0
        # Scores are of all responses, also to prompts that are not trained on.
        assert max(scores.values) < 1 == line["critic/score/max"]
        assert line["critic/rewards/max"] < 1
        # In the order of the data.
        rows, after = run.order.take(begin, int(line["batch/prompts_asked"]))
        assert after == behind
        remaining = iter(rows)
        assert all(row in remaining for row in asked.rows)
        begin = behind
    assert max(line["batch/rounds"] for line in lines) > 1
    assert all(line["batch/prompts_asked"] > 4 for line in lines)


LISTS = """
from alike import compute_score

def score(data_source, solution_str, ground_truth, extra_info, response_ids):
    found = compute_score(data_source, solution_str, ground_truth)
    return [found] + [0.0] * (len(response_ids) - 1)
"""


def test_what_tokens_earn_goes_with_the_responses(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lists.py").write_text(LISTS)
    found = noted(monkeypatch)
    loop(run_of(tmp_path, steps=1, reward__function=f"{tmp_path}/lists.py:score"))
    ((_, _, scores, _),) = found
    assert scores.per_token == {i: {0: value} for i, value in enumerate(scores.values) if value}
    assert len(scores.per_token) > 6


ALIKE = "def score(response, ground_truth):\n    return 1.0\n"


def test_rounds_are_bounded_where_no_prompt_is_mixed(tmp_path, monkeypatch, caplog):
    (tmp_path / "same.py").write_text(ALIKE)
    found = noted(monkeypatch)
    result, lines = loop(run_of(tmp_path, steps=2, reward__function=f"{tmp_path}/same.py:score"))
    assert result.outcome == "finished"
    for line, (asked, *_) in zip(lines, found, strict=True):
        assert len(asked.rows) == 4
        assert line["batch/rounds"] == 9 and line["batch/mixed_prompts"] == 0
        assert line["batch/prompts_asked"] == 4 + 8 * 16, "four times the missing ones a round"
        assert line["actor/num_empty"] == 1
    assert "0 of 4 prompts have responses of different scores after 9 rounds" in caplog.text


def test_prompts_that_are_trained_on_are_counted_by_their_sets(tmp_path):
    halves = {"alike": PROMPTS[:12], "mixed": PROMPTS[12:]}
    sets = {n: {"source": files(tmp_path, f"{n}.jsonl", half)} for n, half in halves.items()}
    _, lines = loop(run_of(tmp_path, steps=2, data__train={"kind": "mix", "sets": sets}))
    for line in lines:
        counts = {name: n for name, n in line.items() if name.startswith("set/")}
        assert counts.pop("set/mixed/critic/score/mean") < 1
        assert counts == {"set/mixed/prompts": 4}


def test_what_is_missing_is_filled_up_and_not_trained_on(tmp_path, monkeypatch):
    found = noted(monkeypatch)
    _, lines = loop(run_of(tmp_path, steps=1, batch__refill_rounds=1, data__shuffle=False))
    # Unshuffled, 8 of the first 4 + 16 prompts begin with e to g.
    assert (len(found[0][0].rows), lines[0]["batch/mixed_prompts"]) == (4, 4)
    _, lines = loop(run_of(tmp_path, name="few", steps=1, batch__size=12, batch__refill_rounds=1))
    mixed = lines[0]["batch/mixed_prompts"]
    assert 0 < mixed <= 12
    assert lines[0]["batch/equal_groups"] == pytest.approx((12 - mixed) / 12)


def test_a_run_that_is_resumed_asks_the_prompts_that_come_next(tmp_path):
    changes = {"checkpoint__every": 1}
    _, whole = loop(run_of(tmp_path, name="whole", steps=4, **changes))
    loop(run_of(tmp_path, steps=2, **changes))
    _, lines = loop(run_of(tmp_path, steps=4, **changes), resumes=True)
    names = ("batch/prompts_asked", "critic/score/mean", "actor/pg_loss", "response_length/mean")
    for mine, other in zip(lines[-2:], whole[-2:], strict=True):
        assert [mine[name] for name in names] == [other[name] for name in names]


ALONE = {"algorithm__advantage": {"name": "gae"}, "rollout__num_samples": 1}
UNFIT_SETTINGS = [
    ({"algorithm__drop_equal_groups": False}, "drop_equal_groups = false"),
    ({"rollout__on_interrupt": "keep"}, "rollout.on_interrupt = keep"),
    ({"roles": {"reward": {"path": "models/r"}}}, "roles.reward, a model"),
    ({"placement": {"train": 0, "reward": 1}}, "placement.reward"),
    ({"algorithm__advantage": {"name": "remax"}}, "advantage.name = remax"),
    (ALONE, "rollout.num_samples = 1"),
    ({"placement": {"train": 0, "rollout": 1}, "rollout__staleness": 1}, "rollout.staleness = 1"),
]


@pytest.mark.parametrize(("changes", "words"), UNFIT_SETTINGS)
def test_what_does_not_go_with_rounds(tmp_path, changes, words):
    with pytest.raises(ConfigError, match=f"batch.refill_rounds = 8 with .*{words}"):
        run_of(tmp_path, **changes)


def test_an_advantage_of_the_users_that_needs_greedy_answers(tmp_path):
    (tmp_path / "own.py").write_text(
        "from verl_hpc.algorithms.advantage import Advantage\n"
        "class Greedy(Advantage):\n    needs = frozenset({'greedy'})\n"
    )
    run = run_of(tmp_path, algorithm__advantage={"name": f"{tmp_path}/own.py:Greedy"})
    with pytest.raises(ConfigError, match="needs greedy answers, and batch.refill_rounds"):
        recipe_of(run)
