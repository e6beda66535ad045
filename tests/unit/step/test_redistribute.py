"""A column that crosses placements arrives, or says why it cannot."""

from types import SimpleNamespace

import pytest
import torch

from tests.unit.ranks import on_ranks
from verl_hpc.errors import FlowError
from verl_hpc.step import batch
from verl_hpc.step import column_bytes as module
from verl_hpc.step import redistribute as redistribute_module
from verl_hpc.step.batch import COLUMNS, TOKENS, Columns, Sample, Samples
from verl_hpc.step.column_bytes import ColumnBytes
from verl_hpc.step.redistribute import redistribute
from verl_hpc.testing.local import LocalControl

SAMPLES = Samples((Sample(0, 0, 2, 3, False),), {"here": [0], "there": [0]})


@pytest.fixture(params=["as bytes", "in place"], autouse=True)
def way(request, monkeypatch):
    """One rank has all of a column; the way of several ranks is taken as well."""
    if request.param == "as bytes":
        monkeypatch.setattr(redistribute_module, "copied", packed)
    return request.param


def packed(columns, device):
    content, positions = ColumnBytes(SAMPLES, columns), columns.positions
    return content.unpack(positions, [(positions, content.pack(positions))], device)


def move(values, widths=None):
    world, groups = SimpleNamespace(rank=0, node_of=(0,)), ((0,),)
    columns, sides = Columns([0], values, widths or {}), (("here", groups), ("there", groups))
    cpu = torch.device("cpu")
    return redistribute(world, LocalControl(), SAMPLES, columns, *sides, cpu)


LENGTHS = {"sequence": 5, "read": 4, "token": 3, "sample": 1}


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


def test_columns_that_are_in_place_are_not_packed(monkeypatch, way):
    if way == "in place":
        monkeypatch.setattr(ColumnBytes, "pack", None)
    column = torch.ones(3, dtype=torch.float64)
    moved = move({"values": [column]})
    assert moved["values"][0].dtype == torch.float32
    column.zero_()
    assert moved["values"][0].sum() == 3, "a later change of the column it came from"


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


GROUPS = {"one": ((0, 1), (2, 3), (4, 5), (6, 7)), "other": ((0, 2, 4, 6), (1, 3, 5, 7))}
NODE_OF = (0, 0, 0, 0, 1, 1, 1, 1)


def test_a_rank_receives_what_it_lacks_and_a_node_receives_it_once():
    """Sample i has i + 1 tokens; those of group i % 4 go to group i % 2."""
    samples = Samples(
        tuple(Sample(i, i, 1, i, False) for i in range(8)),
        {"one": [i % 4 for i in range(8)], "other": [i % 2 for i in range(8)]},
    )

    def work(control):
        came = []
        exchange = control.exchange

        def counted(sends, receives):
            came.extend((source, data.nbytes) for source, data in receives)
            exchange(sends, receives)

        control.exchange = counted
        rank = control.rank
        positions = samples.owned_by("one", rank // 2)
        columns = Columns(positions, {TOKENS: [torch.full((i + 1,), i) for i in positions]})
        world = SimpleNamespace(rank=rank, node_of=NODE_OF)
        sides = [(name, GROUPS[name]) for name in ("one", "other")]
        rows = redistribute(world, control, samples, columns, *sides, torch.device("cpu"))
        assert [row.tolist() for row in rows[TOKENS]] == [[i] * (i + 1) for i in rows.positions]
        return came

    came = on_ranks(8, work)
    sizes = {group: 8 * (group + 1 + group + 5) for group in range(4)}
    for rank, messages in enumerate(came):
        lacks = [group for group in range(4) if group % 2 == rank % 2 and rank // 2 != group]
        assert sorted(size for _, size in messages) == [sizes[group] for group in lacks]
    entered = [
        (NODE_OF[rank], size)
        for rank, messages in enumerate(came)
        for source, size in messages
        if NODE_OF[source] != NODE_OF[rank]
    ]
    assert sorted(entered) == [(0, sizes[2]), (0, sizes[3]), (1, sizes[0]), (1, sizes[1])]
