"""What models and ranks settings are for."""

from dataclasses import replace

import pytest

from tests.unit.layout.models import architecture, deepseek, moe
from verl_hpc.errors import ConfigError
from verl_hpc.placement.model_checks import check_batch_invariant


def test_kernels_that_do_not_depend_on_the_batch_are_for_dense_models_on_cpus():
    dense = architecture()
    check_batch_invariant(dense, "cpu")
    for arch, device, problem in (
        (dense, "cuda", "on cuda ranks"),
        (moe(), "cpu", "with a mixture of experts"),
        (deepseek(), "cpu", "with a mixture of experts"),
        (replace(dense, window=32), "cpu", "with attention in windows"),
    ):
        with pytest.raises(ConfigError, match=f"rollout.batch_invariant {problem}: .*; leave it"):
            check_batch_invariant(arch, device)
