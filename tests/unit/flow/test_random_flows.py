"""Random flows on random placements: whatever the schedule, nobody waits for ever, and everybody
computes what one rank would."""

import inspect
import random
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.ranks import in_threads
from verl_hpc.flow import DataFlow, Mover, StepCancelled

NUM_RANKS = 4
SEEDS = st.integers(0, 2**32)
PLACES = ("a", "b", "c")


class Rooms(Mover):
    """A rank's side of moves: the ranks of both placements meet, and the first of the source
    gives. Values are `(name, place)`: at another placement they are other ones."""

    def __init__(self, rank, ranks, meetings):
        self.rank, self.ranks, self.meetings = rank, ranks, meetings

    def meet(self, move, mine):
        """What all ranks of a move bring to it."""
        return self.meetings.meet(
            self.rank, {*self.ranks[move.source], *self.ranks[move.target]}, mine
        )

    def move(self, move, values):
        source = self.ranks[move.source]
        mine = None
        if self.rank in source:
            # Whoever gives columns knows who has what, and so does whoever takes them.
            mine = {name: values[name] for name in move.values}
        brought = self.meet(move, mine)
        if "abandoned" in brought.values():
            raise StepCancelled
        if move.index is not None:
            assert "index" in values, f"rank {self.rank} does not know who has what"
        return brought[source[0]] if self.rank in self.ranks[move.target] else {}

    def abandon(self, moves):
        for move in moves:
            self.meet(move, "abandoned")


class Meetings:
    """Collectives of sets of ranks, in the order in which each rank comes to them."""

    def __init__(self):
        self.lock = threading.Condition()
        self.brought = {}
        self.counts = {}

    def meet(self, rank, ranks, mine):
        ranks = frozenset(ranks)
        with self.lock:
            number = self.counts[rank, ranks] = self.counts.get((rank, ranks), 0) + 1
            there = self.brought.setdefault((ranks, number), {})
            there[rank] = mine
            self.lock.notify_all()
            if not self.lock.wait_for(lambda: len(there) == len(ranks), timeout=10):
                raise TimeoutError(f"rank {rank} waits for {sorted(ranks - there.keys())}")
            return dict(there)


def random_flow(seed):
    """Operators that need some of the values before them; the index is made anywhere."""
    choose = random.Random(seed)
    ranks = {}
    for place in PLACES:
        first = choose.randrange(NUM_RANKS)
        ranks[place] = range(first, choose.randint(first, NUM_RANKS - 1) + 1)
    flow = DataFlow("random", inputs=("rows",), index="index")
    names = []
    for number in range(choose.randint(2, 7)):
        name = f"v{number}" if number else "index"
        needs = {
            f"p{i}": n
            for i, n in enumerate(choose.sample(names, min(len(names), choose.randrange(3))))
        }
        place, shared = (
            choose.choice(PLACES),
            (name,) if not number or choose.random() < 0.4 else (),
        )
        flow.add(name, operator(name, needs), inputs=needs or None, placement=place, shared=shared)
        names.append(name)
    return flow, ranks, choose.randrange(len(names))


def operator(name, needs):
    """Its value is its name with those of what it was given."""
    return taking(lambda **given: (name, *(given[p] for p in needs)), ["rows", *needs])


def taking(func, names):
    """A function that says which parameters it has."""
    kind = inspect.Parameter.KEYWORD_ONLY
    func.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    return func


def on_all_ranks(pipeline, ranks):
    """What a run gives each rank, or raises there."""
    meetings = Meetings()

    def work(rank):
        return pipeline.run(rank, Rooms(rank, ranks, meetings), rows=0)

    return in_threads(NUM_RANKS, work)


@given(SEEDS)
def test_every_rank_computes_what_one_would(seed):
    flow, ranks, _ = random_flow(seed)
    alone = flow.compile().run(rows=0)
    pipeline = flow.compile(ranks)
    for rank, values in enumerate(on_all_ranks(pipeline, ranks)):
        assert isinstance(values, dict), values
        for op in pipeline.operators:
            if rank in ranks[op.placement]:
                assert values[op.name] == alone[op.name]


def some_ahead(pipeline, choose):
    """Any operators that need nothing of the others."""
    made, names = {"rows"}, set()
    for run in pipeline.runs:
        if made >= pipeline.needs(run) and choose.random() < 0.6:
            made.update(run.operator.gives)
            names.add(run.name)
    return names


def up_to_changes(pipeline):
    """Before some operators change what a checkpoint holds."""
    first, rest = pipeline.before_changes
    assert not any(op.changes_state for op in first.operators)
    late = {op.name for op in rest.operators}
    assert all(pipeline.changed[op.name] == (op.name in late) for op in pipeline.operators)
    return first, rest


@pytest.mark.parametrize("way", ["ahead", "changes"])
@given(seed=SEEDS)
def test_two_parts_are_the_whole(way, seed):
    flow, ranks, _ = random_flow(seed)
    choose = random.Random(seed)
    flow.operators = [replace(op, changes_state=choose.random() < 0.3) for op in flow.operators]
    pipeline = flow.compile(ranks)
    if way == "ahead":
        first, rest = pipeline.split(some_ahead(pipeline, choose))
    else:
        first, rest = up_to_changes(pipeline)
    alone, meetings = flow.compile().run(rows=0), Meetings()

    def work(rank):
        mover, values = Rooms(rank, ranks, meetings), first.begin(rows=0)
        return rest.resume(first.resume(values, rank, mover), rank, mover).made

    for rank, values in enumerate(in_threads(NUM_RANKS, work)):
        assert isinstance(values, dict), values
        assert all(value == alone[name] for name, value in values.items() if name != "rows"), rank


@given(SEEDS)
def test_nobody_waits_for_those_who_have_given_up(seed):
    """An operator anywhere gives up, and with it all who would have met its ranks."""
    flow, ranks, at = random_flow(seed)
    gives_up = flow.operators[at]

    def leave(**_):
        raise StepCancelled

    leave = taking(leave, ["rows", *(gives_up.inputs or ())])
    kept = {name: getattr(gives_up, name) for name in ("inputs", "placement", "shared")}
    flow = flow.without(gives_up.name)
    flow.add(gives_up.name, leave, **kept)
    results = on_all_ranks(flow.compile(ranks), ranks)
    for value in results:
        assert isinstance(value, dict | StepCancelled), value
    for rank in ranks[gives_up.placement]:
        assert isinstance(results[rank], StepCancelled)
