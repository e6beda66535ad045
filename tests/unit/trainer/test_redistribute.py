"""A column that crosses placements arrives, or says why it cannot."""

from types import SimpleNamespace

import pytest
import torch

from verl_hpc.errors import FlowError
from verl_hpc.trainer.batch import DTYPES, TOKENS, Columns, Sample, Samples
from verl_hpc.trainer.redistribute import redistribute

SAMPLES = Samples((Sample(0, 0, 2, 3, False),), {"here": [0], "there": [0]})


def move(values):
    world = SimpleNamespace(rank=0, node_of=(0,))
    cpu = torch.device("cpu")
    groups = ((0,),)
    return redistribute(
        world, SAMPLES, Columns([0], values), ("here", groups), ("there", groups), cpu
    )


@pytest.mark.parametrize("name", DTYPES)
def test_every_column_there_is_arrives(name):
    column = torch.arange(5 if name == TOKENS else 3, dtype=DTYPES[name])
    moved = move({name: [column]})
    assert torch.equal(moved[name][0], column)
    assert moved[name][0].dtype == DTYPES[name]


def test_a_column_without_a_type_is_refused():
    """It would vanish."""
    with pytest.raises(FlowError, match=r"column 'old_log_prob' has no type.*mean old_log_probs"):
        move({"old_log_prob": [torch.zeros(3)]})
