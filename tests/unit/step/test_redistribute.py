"""A column that crosses placements arrives, or says why it cannot."""

from types import SimpleNamespace

import pytest
import torch

from tests.unit.ranks import on_ranks
from verl_hpc.errors import FlowError
from verl_hpc.flow import Move
from verl_hpc.placement.layouts import Pool
from verl_hpc.step import batch
from verl_hpc.step import redistribute as module
from verl_hpc.step.batch import COLUMNS, TOKENS, Columns, Sample, Samples
from verl_hpc.step.exchange import Communicators, Exchange
from verl_hpc.step.placement import Placement
from verl_hpc.step.redistribute import ColumnBytes, redistribute
from verl_hpc.testing.local import LocalControl
from verl_hpc.testing.local_run import local_session

SAMPLES = Samples((Sample(0, 0, 2, 3, False, 6),), {"here": [0], "there": [0]})
SIDES = ("here", ((0,),)), ("there", ((0,),))
CPU = torch.device("cpu")


def moved_in_place(values, widths=None, name="columns"):
    """One rank has all of a column; columns may also be something else."""
    control = LocalControl()
    places = {side: Placement(Pool(side, groups), 0, control, CPU) for side, groups in SIDES}
    exchange = Exchange(local_session().world, places, Communicators(control))
    given = Columns([0], values, widths or {}) if name == "columns" else values
    return exchange.move(
        Move((name,), "here", "there", False, "samples"), {name: given, "samples": SAMPLES}
    )[name]


def moved_as_bytes(values, widths=None):
    """The way of several ranks."""
    columns, world = Columns([0], values, widths or {}), SimpleNamespace(rank=0, node_of=(0,))
    return redistribute(world, LocalControl(), SAMPLES, columns, *SIDES, CPU)


@pytest.fixture(params=[moved_in_place, moved_as_bytes])
def move(request):
    return request.param


LENGTHS = {"sequence": 5, "read": 4, "token": 3, "sample": 1, "image_byte": 6}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_there_is_arrives(move, name):
    column = torch.arange(LENGTHS[COLUMNS[name].per]).to(COLUMNS[name].dtype)
    moved = move({name: [column]})
    assert torch.equal(moved[name][0], column)
    assert moved[name][0].dtype == COLUMNS[name].dtype


@pytest.mark.parametrize("per", LENGTHS)
def test_a_column_of_the_users_arrives_once_it_is_known(move, monkeypatch, per):
    monkeypatch.setattr(batch, "COLUMNS", COLUMNS.copy())
    monkeypatch.setattr(module, "COLUMNS", batch.COLUMNS)
    assert batch.add_column("lengths", torch.int32, per) == "lengths"
    batch.add_column("lengths", torch.int32, per)
    column = torch.arange(LENGTHS[per], dtype=torch.int32)
    assert torch.equal(move({"lengths": [column]})["lengths"][0], column)
    with pytest.raises(FlowError, match="column 'lengths' is .*int32.* already; choose another"):
        batch.add_column("lengths", torch.int64, per)


def test_rows_of_several_numbers_arrive_as_rows(move):
    rows = torch.arange(12, dtype=torch.int32).view(3, 4)
    moved = move({"versions": [rows], "values": [torch.ones(3)]}, {"versions": 4})
    assert torch.equal(moved["versions"][0], rows) and moved["values"][0].shape == (3,)
    assert moved.widths == {"versions": 4}


def test_columns_that_are_in_place_are_copied_and_not_packed(monkeypatch):
    monkeypatch.setattr(ColumnBytes, "pack", None)
    column = torch.ones(3, dtype=torch.float64)
    moved = moved_in_place({"values": [column]})
    assert moved["values"][0].dtype == torch.float32
    column.zero_()
    assert moved["values"][0].sum() == 3, "a later change of the column it came from"


@pytest.mark.parametrize("shape, widths", [((3, 4), {}), ((3, 4), {"values": 5}), ((2,), {})])
def test_a_column_of_another_shape_is_refused(shape, widths):
    with pytest.raises(FlowError, match=r"column 'values' of sample 0 has shape .*, expected \(3,"):
        moved_in_place({"values": [torch.zeros(shape)]}, widths)


def test_a_column_without_a_type_is_refused():
    """It would vanish."""
    with pytest.raises(
        FlowError, match=r"column 'old_log_prob' has no type.*batch.add_column.*mean old_log_probs"
    ):
        moved_in_place({"old_log_prob": [torch.zeros(3)]})


def test_a_value_of_another_kind_is_named():
    with pytest.raises(FlowError, match="value 'penalty': a dict cannot move from here to there"):
        moved_in_place({}, name="penalty")


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
