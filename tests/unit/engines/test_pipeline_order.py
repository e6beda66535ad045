"""Megatron-core's pipelines, as we set them up, complete in NCCL's order of sends and receives.

Its own schedules run here, each stage in a thread, with tiny tensors. Messages between them wait in
mailboxes, so that every schedule goes to its end, and what each stage launches is written down. The
oracle then runs that without mailboxes.
"""

import queue
import random
import threading
from collections import Counter, defaultdict
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from tests.slow import mostly_slow
from tests.unit import shipped
from tests.unit.layout.models import architecture
from tests.unit.ranks import in_threads
from tests.unit.transfer.blocking import Launch, Wait, faults
from verl_hpc.config.model import ParallelConfig
from verl_hpc.engines.megatron.build import transformer_config
from verl_hpc.engines.megatron.stages import StageMessages
from verl_hpc.engines.shared.micro_batches import Planner
from verl_hpc.layout.megatron import TrainLayout

from megatron.core.enums import ModelType  # isort: skip  # after the engine, which fits it to CPUs
from megatron.core.pipeline_parallel import get_forward_backward_func  # isort: skip
from megatron.core.process_groups_config import ProcessGroupCollection  # isort: skip

HIDDEN = 32


class Group:
    """What schedules ask of a process group."""

    def __init__(self, rank, size):
        self._rank, self._size = rank, size

    def rank(self):
        return self._rank

    def size(self):
        return self._size


class Recorder:
    """torch.distributed among the stages of a pipeline: delivers messages, and writes down what
    stages launch and what they wait for."""

    def __init__(self):
        self.programs = defaultdict(list)
        self._mail = defaultdict(queue.Queue)
        self._posted, self._lock = Counter(), threading.Lock()
        self.has_failed = False
        self._here = threading.local()

    def begin(self, stage):
        self._here.stage, self._here.launches = stage, 0

    def batch(self, operations):
        return [self._launch(operations)]

    def isend(self, tensor, dst, group):
        return self._launch([(self.isend, tensor, dst, group)])

    def irecv(self, tensor, src, group):
        return self._launch([(self.irecv, tensor, src, group)])

    def synchronize(self, *_):
        self.programs[self._here.stage].append(Wait())

    def _launch(self, operations):
        stage, number = self._here.stage, self._here.launches
        self._here.launches += 1
        (communicator,) = {"all" if group == "all" else "stages" for *_, group in operations}
        sent, wanted = (
            [(peer, tensor) for kind, tensor, peer, _ in operations if kind == which]
            for which in (self.isend, self.irecv)
        )
        sizes = ([(peer, tensor.nbytes) for peer, tensor in side] for side in (sent, wanted))
        self.programs[stage].append(Launch(*sizes, communicator))
        for peer, tensor in sent:
            self._next("sent", communicator, stage, peer).put(tensor.detach().clone())
        expected = [
            (self._next("received", communicator, peer, stage), tensor) for peer, tensor in wanted
        ]

        def wait():
            self.programs[stage].append(Wait(number))
            while expected:
                mail, tensor = expected.pop(0)
                with torch.no_grad():
                    tensor.copy_(self._from(mail))

        return SimpleNamespace(wait=wait)

    def _from(self, mail):
        while True:
            try:
                return mail.get(timeout=0.1)
            except queue.Empty:
                if self.has_failed:
                    raise

    def _next(self, end, *way):
        """Where the next message on this way is put, or found: in the order in which they are
        launched."""
        with self._lock:
            self._posted[end, *way] += 1
            return self._mail[*way, self._posted[end, *way]]


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()
    instead = {
        "P2POp": lambda *operation: operation,
        "batch_isend_irecv": recorder.batch,
        "isend": recorder.isend,
        "irecv": recorder.irecv,
        "get_global_rank": lambda group, rank: rank,
        "get_backend": lambda group: "nccl",
        "group": SimpleNamespace(WORLD="all"),
        "is_initialized": lambda: True,
    }
    for name, value in instead.items():
        monkeypatch.setattr(torch.distributed, name, value)
    for device in (torch.cpu, torch.cuda):
        monkeypatch.setattr(device, "synchronize", recorder.synchronize)
    return recorder


class Chunk(torch.nn.Module):
    """Layers of a stage: one number."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self, config, is_first):
        super().__init__()
        self.config, self.is_first = config, is_first
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.given = None

    def set_input_tensor(self, tensors):
        (self.given,) = tensors

    def forward(self, tokens):
        if self.is_first:
            return self.weight * torch.ones(tokens, 1, HIDDEN)
        assert len(self.given) == tokens, "a stage was given another micro-batch"
        return self.weight * self.given


def run_stage(stage, recorder, layout, tokens, trains):
    """One stage's pass over micro-batches of so many tokens each."""
    recorder.begin(stage)
    arch = architecture(hidden_size=HIDDEN, head_size=4, num_layers=layout.pp * layout.vpp)
    config = transformer_config(
        arch, layout, dtype=torch.float32, parallel=ParallelConfig(), fp8=None, backend="local"
    )
    chunks = [Chunk(config, (stage, chunk) == (0, 0)) for chunk in range(layout.vpp)]
    alone, groups = Group(0, 1), ProcessGroupCollection()
    groups.tp = groups.cp = groups.dp_cp = alone
    groups.embd = groups.pos_embd = None
    groups.pp = Group(stage, layout.pp)

    def loss(output, non_loss_data=False):
        value = output.sum()
        return value if non_loss_data else (value, torch.tensor(0), {})

    with nullcontext() if trains else torch.no_grad():
        get_forward_backward_func(layout.pp, layout.vpp if layout.vpp > 1 else None)(
            forward_step_func=lambda batches, chunk: (chunk(next(batches)), loss),
            data_iterator=[iter(tokens) for _ in chunks],
            model=chunks,
            num_microbatches=len(tokens),
            seq_length=1,
            micro_batch_size=1,
            forward_only=not trains,
            collect_non_loss_data=not trains,
            p2p_communicator=StageMessages(groups.pp, config, tokens),
            pg_collection=groups,
        )


def launched(recorder, layout, tokens, trains):
    """The program of every stage; raises what the first stage that failed has raised."""
    failed = []

    def stage(number):
        try:
            run_stage(number, recorder, layout, tokens, trains)
        except Exception as error:
            failed.append(error)
            recorder.has_failed = True  # the others would wait for its messages

    in_threads(layout.pp, stage)
    for error in failed:
        raise error
    everywhere = [step for program in recorder.programs.values() for step in program]
    assert Wait() not in everywhere, "the host waits for the device"
    return recorder.programs


SPLIT = [name for name in shipped.FILES if shipped.laid_out(name)[0].parallel.pipeline_parallel > 1]


@pytest.mark.parametrize("trains", [True, False], ids=["update", "forward"])
@pytest.mark.parametrize("name", SPLIT)
def test_shipped_configurations(recorder, name, trains):
    _, arch, layouts, _ = shipped.laid_out(name)
    layout = layouts.train["actor"]
    dice = random.Random(0)
    sequences = [torch.zeros(dice.randint(1, 400)) for _ in range(64)]
    plan = Planner(layout, arch.hidden_size, 4096, False, lambda *needs: needs).plan(sequences)
    tokens = [sum(len(sequences[i]) for i in micro_batch) for micro_batch in plan.bins]
    assert faults(launched(recorder, layout, tokens, trains)) == []


NUMBERS, OFTEN = range(200), 20


@pytest.mark.parametrize("number", mostly_slow(NUMBERS, OFTEN))
def test_random_pipelines(recorder, number):
    """Interleaved ones have a multiple of as many micro-batches as there are stages."""
    dice = random.Random(number)
    layout = TrainLayout(pp=dice.choice([2, 2, 3, 4, 8, 16]), vpp=dice.choice([1, 2, 3, 4]))
    count = layout.pp * dice.randint(1, 4) if layout.vpp > 1 else dice.randint(1, 4 * layout.pp)
    tokens = [dice.randint(1, 1000) for _ in range(count)]
    trains = dice.random() < 0.7
    assert faults(launched(recorder, layout, tokens, trains)) == [], (layout, count, trains)


def test_batched_messages_of_two_interleaved_stages_are_mixed_up(recorder, monkeypatch):
    """Messages of interleaved stages are not batched, as otherwise (`batch_p2p_comm`) a stage is
    given another micro-batch's. The test shows that the tests above could fail."""
    batched = transformer_config

    def settings(*args, **kwargs):
        config = batched(*args, **kwargs)
        config.batch_p2p_comm, config.overlap_p2p_comm = True, False
        return config

    monkeypatch.setitem(globals(), "transformer_config", settings)
    with pytest.raises((AssertionError, RuntimeError), match="another micro-batch|size of tensor"):
        launched(recorder, TrainLayout(pp=2, vpp=2), [3, 5, 7, 9], True)


def test_a_stage_that_sends_before_it_receives_deadlocks(recorder):
    """Shows that the tests above could fail."""
    good = launched(recorder, TrainLayout(pp=4), [3, 5, 7, 9, 11, 2], True)
    assert faults(good) == []
    first, *rest = (step for step in good[1] if isinstance(step, Launch))
    assert first.receives and faults({**good, 1: [*rest, first]}) != []
