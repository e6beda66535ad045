"""The order of copies and computation on two streams. A GPU is the edge that is mocked: streams
write down what they are given, and tensors are in host memory."""

import gc
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from verl_hpc.engines.megatron.host_activations import HostActivations, Moved


@pytest.fixture
def log(monkeypatch):
    """What happens, in order."""
    log, empty, copy = [], torch.empty, torch.Tensor.copy_
    current = SimpleNamespace(wait_event=lambda event: log.append(("computation waits", event)))
    running = []

    @contextmanager
    def stream(name):
        running.append(name)
        yield
        running.pop()

    def copy_(to, frm, non_blocking=False):
        assert non_blocking and running
        log.append(("copy", float(frm.flatten()[0])))
        return copy(to, frm)

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory, **k: empty(*a, **k))
    monkeypatch.setattr(torch.Tensor, "copy_", copy_)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: log.append(("kept",)))
    return log


class Stream:
    def __init__(self, log):
        self._log, self._events = log, 0

    def wait_stream(self, other):
        self._log.append(("copies wait",))

    def record_event(self):
        self._events += 1
        self._log.append(("event", self._events))
        return self._events


def test_copies_wait_for_what_is_computed_and_computation_for_its_own_copy_alone(log):
    stream, moved = Stream(log), [None]
    for number in (1.0, 2.0, 3.0):
        moved.append(Moved(torch.full((2, 1, 4), number), stream, moved[-1]))
    away = log.copy()
    assert away == [
        step
        for number in (1, 2, 3)
        for step in (("copies wait",), ("copy", number), ("event", number), ("kept",))
    ]
    log.clear()
    third, second, first = (one.back() for one in reversed(moved[1:]))
    assert [float(t.flatten()[0]) for t in (first, second, third)] == [1, 2, 3]
    steps = [step for step in log if step[0] in ("copy", "event", "computation waits")]
    assert steps == [
        ("copy", 3), ("event", 4), ("computation waits", 4), ("copy", 2), ("event", 5),
        ("computation waits", 5), ("copy", 1), ("event", 6), ("computation waits", 6),
    ]  # fmt: skip


def test_a_tensor_that_is_used_twice_comes_back_twice(log):
    moved = Moved(torch.full((1, 1, 4), 7.0), Stream(log), None)
    assert torch.equal(moved.back(), moved.back())


def test_what_a_pass_moved_is_freed_with_it():
    activations = HostActivations([], 4)
    weight = torch.ones(4, requires_grad=True)
    for _ in range(2):
        with activations.saving():
            output = (torch.ones(3, 1, 4) * weight).square().sum()
        last = activations._last()
        assert last._before is not None
        seen = weakref.ref(last)
        del last
        output.backward()
        del output
        gc.collect()
        assert seen() is None
