"""What the comparison of the two engines' log-probs says and does."""

import logging

import pytest

from tests.unit.config.trees import parse
from verl_hpc.errors import TrainingError
from verl_hpc.step.operators.mismatch import check, default_tolerance, mismatch_text
from verl_hpc.testing.local_run import local_place

PLACE = local_place()


def differs(mean, largest):
    name = "training/rollout_log_probs_diff_"
    return {f"{name}mean": mean, f"{name}max": largest}


APART = differs(0.5, 2.0)


TOLERANCES = [
    ({"dtype": "float32"}, None, 1e-4),
    ({"dtype": "float32"}, "bfloat16", 0.1),
    ({"dtype": "bfloat16"}, "float32", 0.1),
    ({"dtype": "bfloat16"}, None, 0.1),
    ({"dtype": "bfloat16", "fp8": {}}, "bfloat16", 0.3),
]


@pytest.mark.parametrize("model, rollout, tolerance", TOLERANCES)
def test_the_coarser_engine_decides_the_tolerance(model, rollout, tolerance):
    config = parse(model={"path": "m"} | model, rollout__dtype=rollout)
    assert default_tolerance(config) == tolerance


def settings(**verify):
    return parse(model__dtype="float32", rollout__verify=verify)


def test_a_mismatch_stops_the_run_by_default():
    with pytest.raises(TrainingError, match=r"differ by 0.5 on average.*Nothing was trained") as e:
        check(PLACE, settings(), APART)
    assert e.value.agreed
    with pytest.raises(TrainingError):
        check(PLACE, settings(), differs(float("nan"), 0.0))
    check(PLACE, settings(), differs(1e-5, 1e-3))
    check(PLACE, settings(probe=False), APART)
    check(PLACE, settings(probe_tolerance=0.6), APART)


def test_a_mismatch_may_be_told_and_no_more(caplog):
    with caplog.at_level(logging.WARNING):
        check(PLACE, settings(on_mismatch="warn"), APART)
    assert "differ by 0.5 on average" in caplog.text


def test_weights_are_not_accused_where_checksums_cleared_them():
    cleared = mismatch_text(0.5, 2.0, 1e-4, checksums=True)
    assert "are those that were sent, by their checksums" in cleared
    assert "rollout.verify.on_mismatch: warn" in cleared
    unknown = mismatch_text(0.5, 2.0, 1e-4, checksums=False)
    assert "rollout.verify.checksums is false" in unknown and "not ruled out" in unknown
