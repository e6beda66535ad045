"""A step's values as metrics."""

import pytest

from verl_hpc.trainer.batch import Sample, Samples
from verl_hpc.trainer.measure import num_dropped, step_metrics
from verl_hpc.trainer.operators.infer import Mismatch


@pytest.mark.parametrize(("num_prompts", "dropped"), [(2, 0), (5, 3)])
def test_prompts_that_were_dropped_are_counted(num_prompts, dropped):
    samples = Samples(tuple(Sample(i, i // 2, 3, 4, False) for i in range(4)), {})
    assert num_dropped({"samples": samples}, num_prompts) == dropped


def test_no_metric_is_written_twice():
    values = {"mismatch": Mismatch(0.01, 0.02, 1.5), "actor_metrics": {"actor/lr": 1e-6}}
    assert step_metrics(values) == {
        "training/rollout_log_probs_diff_mean": 0.01,
        "training/rollout_log_probs_diff_max": 0.02,
        "actor/entropy": 1.5,
        "actor/lr": 1e-6,
    }
    values["actor_metrics"] = {"actor/entropy": 1.4}
    with pytest.raises(AssertionError, match="written twice"):
        step_metrics(values)
