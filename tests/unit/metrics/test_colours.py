"""Colours of operators on a page."""

from verl_hpc.metrics.sections import OPERATOR_COLOURS, operator_colours


def test_usual_operators_keep_their_colours():
    seconds = {f"operator {i}": 10.0 - i for i in range(4)} | dict.fromkeys(("rollout", "values"))
    found = operator_colours(seconds)
    assert found.pop("other") == "c7"
    assert len(set(found.values())) == len(found) == 6
    assert all(found[name] == OPERATOR_COLOURS[name] for name in ("rollout", "values"))


def test_waiting_is_grey():
    assert "wait" not in operator_colours({"wait": 5.0, "update_actor": 1.0})
