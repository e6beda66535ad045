"""Colours of operators on pages of split runs, where rank 0 does not run all of them."""

from verl_hpc.metrics.sections import OPERATOR_COLOURS, operator_colours
from verl_hpc.metrics.timeline import Timeline
from verl_hpc.metrics.timeline_view import operators_elsewhere


def test_operators_of_other_ranks_keep_their_colours():
    seconds = {f"operator {i}": 10.0 - i for i in range(9)}
    found = operator_colours(seconds, ["rollout", "values", "mine"])
    assert found.pop("other") == "c7"
    assert len(set(found.values())) == len(found) == 5
    assert not {OPERATOR_COLOURS["rollout"], OPERATOR_COLOURS["values"]} & set(found.values())


def test_waiting_is_grey():
    assert "wait" not in operator_colours({"wait": 5.0, "update_actor": 1.0})


def test_operators_that_rank_0_does_not_run(tmp_path):
    for rank, name in enumerate(("update_actor", "rollout")):
        with Timeline(tmp_path, rank, None) as timeline:
            timeline.begin(1, name, "any")
    assert operators_elsewhere(tmp_path, {"update_actor": 1.0}) == ["rollout"]
    assert operators_elsewhere(tmp_path / "none", {}) == []
