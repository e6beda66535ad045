"""What a checkpoint's state is taken from."""

from types import SimpleNamespace

from verl_hpc.algorithms.kl import KlController
from verl_hpc.trainer.saves import _kl_coefficient


def test_the_coefficient_is_that_of_the_ranks_that_update_it():
    """Wherever a recipe computes the penalty; elsewhere it is what it was at the start."""
    there = KlController(0.5, target=0.1, horizon=10)
    there.update(1.0, 5)
    here = KlController(0.5, target=0.1, horizon=10)
    control = SimpleNamespace(
        allgather=lambda mine: [mine, (there.num_updates, there.coefficient), mine]
    )
    run = SimpleNamespace(kl=here, session=SimpleNamespace(control=control))
    assert _kl_coefficient(run) == there.coefficient != here.coefficient
