"""Saves that are written while their run trains: what they hold, and how they end."""

import threading
from types import SimpleNamespace

import pytest
import torch

from tests.unit.ranks import on_ranks
from verl_hpc.checkpoint import index, tensor_file, write
from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.step_files import Component, StepContents
from verl_hpc.checkpoint.store import complete_steps
from verl_hpc.checkpoint.write import StepWriter
from verl_hpc.errors import CheckpointError
from verl_hpc.layout.shard_map import ShardMap, TensorSpec, whole

SHAPE = (300, 500)


class Rank:
    """One of the ranks, with a tensor of its own."""

    def __init__(self, control, root, **settings):
        self.control = control
        self.tensor = torch.full(SHAPE, float(control.rank))
        self.writer = StepWriter(control, root, settings.pop("background", True), **settings)

    def begin(self, number, stays=False):
        names = [f"t{rank}" for rank in range(self.control.size)]
        regions = [whole(n, n, SHAPE, (rank,)) for rank, n in enumerate(names)]
        shard_map = ShardMap({n: TensorSpec(SHAPE, "float32") for n in names}, regions)
        mine = {f"t{self.control.rank}": self.tensor}
        part = Component("actor", shard_map, mine, shard_map.held_by(self.control.rank))
        self.writer.begin(number, [part], StepContents(), stays)


def values(step):
    """What each rank's tensor was when it was saved, if it was the same everywhere."""
    opened = Step(step)
    regions = opened.component("actor").regions
    tensors = [opened.reader().read(str(r.holders[0]), r.view.name, r.box) for r in regions]
    assert all(tensor.eq(tensor[0, 0]).all() for tensor in tensors)
    return [tensor[0, 0].item() for tensor in tensors]


@pytest.fixture
def gate(monkeypatch):
    """Files are not written until it is opened; `failing` ranks cannot write theirs."""
    gate = SimpleNamespace(opened=threading.Event(), failing=set())
    real = tensor_file.TensorFile.write

    def wait(self, path, parts):
        first = next(parts)
        assert gate.opened.wait(10)
        if path.name in gate.failing:
            raise OSError(28, "No space left on device")
        real(self, path, iter([first, *parts]))

    monkeypatch.setattr(tensor_file.TensorFile, "write", wait)
    yield gate
    gate.opened.set()


@pytest.mark.parametrize("stays", [False, True])
def test_a_step_holds_what_was_there_when_it_began(tmp_path, gate, stays):
    def work(control):
        rank = Rank(control, tmp_path)
        rank.begin(1, stays)
        rank.writer.let_change()
        rank.tensor += 10
        rank.writer.look()
        assert (complete_steps(tmp_path), rank.writer.newest) == ([], 1)
        control.barrier()
        gate.opened.set()
        rank.begin(2, stays)
        assert [p.name for p in complete_steps(tmp_path)] == ["step_00000001"]
        rank.writer.let_change()
        rank.tensor += 10
        rank.writer.finish()

    on_ranks(2, work)
    assert values(tmp_path / "step_00000001") == [0.0, 1.0]
    assert values(tmp_path / "step_00000002") == [10.0, 11.0]


def test_the_copy_has_every_byte_once(tmp_path):
    def work(control):
        rank = Rank(control, tmp_path)
        for number in (1, 2, 3):
            rank.begin(number)
        rank.writer.finish()
        waits = Rank(control, tmp_path / "waits", background=False)
        waits.begin(1)
        return rank.writer.copy_bytes, waits.writer.copy_bytes

    aligned = 64  # the save's id takes 16 bytes of its 64
    assert on_ranks(2, work) == [(aligned + 300 * 500 * 4, 0)] * 2


def test_looking_gives_a_step_its_name_without_waiting(tmp_path):
    def work(control):
        rank = Rank(control, tmp_path)
        rank.begin(1)
        looks = 0
        while rank.writer._now is not None:
            rank.writer.look()
            looks += 1
        assert (tmp_path / "step_00000001/manifest.json").is_file()
        assert rank.writer.seconds > 0
        return looks

    assert min(on_ranks(2, work)) >= 2


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_is_told_on_every_rank_and_the_next_save_succeeds(tmp_path, gate, failing):
    gate.opened.set()

    def work(control):
        rank = Rank(control, tmp_path)
        rank.begin(1)
        rank.writer.finish()
        control.barrier()
        gate.failing = {f"rank_0000{failing}.h5"}
        rank.begin(2)
        with pytest.raises(CheckpointError, match=f"step_00000002 .*rank {failing}: No space"):
            while True:
                rank.writer.look()
        assert rank.writer.newest == 1
        control.barrier()
        gate.failing = set()
        assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []
        rank.begin(3)
        rank.writer.finish()

    on_ranks(2, work)
    assert [p.name for p in complete_steps(tmp_path)] == ["step_00000003", "step_00000001"]


def test_nothing_is_reported_while_a_rank_still_writes(tmp_path, gate):
    """Its files could come after those of the step are deleted."""
    gate.failing = {"rank_00000.h5"}

    def work(control):
        rank = Rank(control, tmp_path)
        rank.begin(1)
        rank.writer.look()
        control.barrier()
        gate.opened.set()
        with pytest.raises(CheckpointError, match="rank 0: No space"):
            rank.writer.finish()

    on_ranks(2, work)
    assert list(tmp_path.iterdir()) == []


def test_layout_and_index_are_made_once(tmp_path, monkeypatch):
    made = []
    layouts, tables = tensor_file.TensorFile._layout.func, index._write_table
    counted = tensor_file.cached_property(lambda self: made.append("layout") or layouts(self))
    counted.__set_name__(tensor_file.TensorFile, "_layout")
    monkeypatch.setattr(tensor_file.TensorFile, "_layout", counted)
    monkeypatch.setattr(index, "_write_table", lambda *a: made.append("index") or tables(*a))

    def work(control):
        rank = Rank(control, tmp_path)
        for number in range(1, 5):
            rank.begin(number)
        rank.writer.finish()

    on_ranks(2, work)
    assert sorted(made) == ["index", "layout", "layout"]
    assert values(tmp_path / "step_00000004") == [0.0, 1.0]


def test_the_owner_is_asked_before_a_step_gets_its_name(tmp_path, monkeypatch):
    order = []
    real = write.make_real
    monkeypatch.setattr(write, "make_real", lambda *a: order.append("named") or real(*a))

    def work(control):
        asked = {"check_owner": lambda: order.append("asked"), "published": order.append}
        rank = Rank(control, tmp_path, **asked)
        rank.begin(7)
        rank.writer.finish()

    on_ranks(2, work)
    assert order == ["asked", "named", 7]
