"""A step's values as metrics."""

import pytest

from verl_hpc.trainer.batch import Sample, Samples
from verl_hpc.trainer.measure import num_dropped


@pytest.mark.parametrize(("num_prompts", "dropped"), [(2, 0), (5, 3)])
def test_prompts_that_were_dropped_are_counted(num_prompts, dropped):
    samples = Samples(tuple(Sample(i, i // 2, 3, 4, False) for i in range(4)), {})
    assert num_dropped({"samples": samples}, num_prompts) == dropped
