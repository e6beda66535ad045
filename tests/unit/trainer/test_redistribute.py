"""A column that crosses placements arrives, or says why it cannot."""

from types import SimpleNamespace

import pytest
import torch

from verl_hpc.errors import FlowError
from verl_hpc.testing.local import LocalControl
from verl_hpc.trainer import batch
from verl_hpc.trainer import column_bytes as module
from verl_hpc.trainer.batch import COLUMNS, Columns, Sample, Samples
from verl_hpc.trainer.redistribute import redistribute

SAMPLES = Samples((Sample(0, 0, 2, 3, False),), {"here": [0], "there": [0]})


def move(values, widths=None):
    world = SimpleNamespace(rank=0, node_of=(0,))
    cpu = torch.device("cpu")
    groups = ((0,),)
    return redistribute(
        world,
        LocalControl(),
        SAMPLES,
        Columns([0], values, widths or {}),
        ("here", groups),
        ("there", groups),
        cpu,
    )


LENGTHS = {"sequence": 5, "token": 3, "sample": 1}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_there_is_arrives(name):
    column = torch.arange(LENGTHS[COLUMNS[name].per]).to(COLUMNS[name].dtype)
    moved = move({name: [column]})
    assert torch.equal(moved[name][0], column)
    assert moved[name][0].dtype == COLUMNS[name].dtype


@pytest.mark.parametrize("per", LENGTHS)
def test_a_column_of_the_users_arrives_once_it_is_known(monkeypatch, per):
    monkeypatch.setattr(batch, "COLUMNS", COLUMNS.copy())
    monkeypatch.setattr(module, "COLUMNS", batch.COLUMNS)
    assert batch.add_column("lengths", torch.int32, per) == "lengths"
    batch.add_column("lengths", torch.int32, per)
    column = torch.arange(LENGTHS[per], dtype=torch.int32)
    assert torch.equal(move({"lengths": [column]})["lengths"][0], column)
    with pytest.raises(FlowError, match="column 'lengths' is .*int32.* already; choose another"):
        batch.add_column("lengths", torch.int64, per)


def test_rows_of_several_numbers_arrive_as_rows():
    rows = torch.arange(12, dtype=torch.int32).view(3, 4)
    moved = move({"versions": [rows], "values": [torch.ones(3)]}, {"versions": 4})
    assert torch.equal(moved["versions"][0], rows) and moved["values"][0].shape == (3,)
    assert moved.widths == {"versions": 4}


@pytest.mark.parametrize("shape, widths", [((3, 4), {}), ((3, 4), {"values": 5}), ((2,), {})])
def test_a_column_of_another_shape_is_refused(shape, widths):
    with pytest.raises(FlowError, match=r"column 'values' of sample 0 has shape .*, expected \(3,"):
        move({"values": [torch.zeros(shape)]}, widths)


def test_a_column_without_a_type_is_refused():
    """It would vanish."""
    with pytest.raises(
        FlowError, match=r"column 'old_log_prob' has no type.*batch.add_column.*mean old_log_probs"
    ):
        move({"old_log_prob": [torch.zeros(3)]})
