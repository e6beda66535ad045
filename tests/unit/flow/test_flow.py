"""Declared flows: what binds to what, what is refused, in which order things run and where."""

import pytest

from verl_hpc.errors import FlowError
from verl_hpc.flow import DataFlow, Move, Mover, Run, StepCancelled


def names(pipeline, rank=0):
    return [
        item.operator.name if isinstance(item, Run) else f"{item.source}>{item.target}"
        for item, _ in pipeline.for_rank(rank)
    ]


def test_parameters_bind_to_values_by_name_wherever_they_were_made():
    flow = DataFlow("f", inputs=("prompts",))
    flow.add("update", lambda reward, rollout: (reward, rollout))
    flow.add("reward", lambda rollout: sum(rollout))
    flow.add("rollout", lambda prompts: [2 * p for p in prompts])
    pipeline = flow.compile()
    assert names(pipeline) == ["rollout", "reward", "update"]
    assert pipeline.run(prompts=[1, 2])["update"] == (6, [2, 4])


def scale(x, factor=3):
    return x * factor


def test_a_parameter_with_a_default_is_bound_where_the_flow_has_such_a_value():
    flow = DataFlow("f", inputs=("x",)).add("scale", scale)
    assert flow.compile().run(x=2)["scale"] == 6
    flow.add("factor", lambda: 5)
    assert names(flow.compile()) == ["factor", "scale"]
    assert flow.compile().run(x=2)["scale"] == 10
    given = DataFlow("f", inputs=("x", "factor")).add("scale", scale)
    assert given.compile().run(x=2, factor=7)["scale"] == 14


def test_a_parameter_may_take_a_value_of_another_name():
    flow = DataFlow("f", inputs=("prompts",))
    flow.add("length", lambda text: len(text), inputs={"text": "prompts"})
    flow.add("scale", scale, inputs={"x": "length", "factor": "length"})
    assert flow.compile().run(prompts="abcd")["scale"] == 16


def test_operators_may_give_several_values_or_none():
    seen = []
    flow = DataFlow("f", inputs=("x",))
    flow.add("split", lambda x: (x, -x), outputs=("plus", "minus"))
    flow.add("join", lambda plus, minus: plus - minus)
    flow.add("look", lambda join: seen.append(join), outputs=())
    flow.add("look_again", lambda join: seen.append(join) or (), outputs=())
    assert flow.compile().run(x=4) == {"x": 4, "plus": 4, "minus": -4, "join": 8}
    assert seen == [8, 8]


def test_where_values_leave_the_order_open_it_is_that_of_declaration():
    flow = DataFlow("f", inputs=("x",))
    for name in ("third", "first", "second"):
        flow.add(name, lambda x: x)
    assert names(flow.compile()) == ["third", "first", "second"]


def test_removing_an_operator_touches_no_other():
    flow = DataFlow("f", inputs=("x",)).add("a", lambda x: x + 1).add("guard", lambda a: a)
    flow.add("b", lambda a: a * 2)
    assert flow.without("guard").compile().run(x=1)["b"] == flow.compile().run(x=1)["b"] == 4
    assert len(flow.operators) == 3


UNKNOWN = "'a' needs 'rolout', which nobody gives; did you mean rollout"


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda f: f.add("a", lambda rolout: 0), UNKNOWN),
        (lambda f: f.add("rollout", lambda x: 0), "two operators are called 'rollout'"),
        (
            lambda f: f.add("again", lambda x: 0, outputs=("rollout",)),
            "'rollout' is given by rollout and by again",
        ),
        (
            lambda f: f.add("again", lambda x: 0, outputs=("x",)),
            "'x' is given by the flow's inputs and by again",
        ),
        (lambda f: f.add("a", lambda x: 0, inputs={"x": "rolout"}), UNKNOWN),
        (lambda f: f.add("a", lambda x=0: 0, inputs={"x": "rolout"}), UNKNOWN),
        (
            lambda f: f.add("a", lambda x: 0, inputs={"y": "rollout"}),
            "'a': inputs names 'y', which is not a parameter of its function; parameters: x",
        ),
        (lambda f: f.add("a", lambda *x: 0), "takes any number of arguments.*name its parameters"),
        (lambda f: f.add("a", lambda **x: 0), "takes any number of arguments.*name its parameters"),
        (
            lambda f: f.add("a", lambda x: 0, shared=("b",)),
            "operator 'a' shares 'b', which it does not give",
        ),
    ],
)
def test_what_does_not_hang_together_is_refused(build, message):
    flow = DataFlow("demo", inputs=("x",)).add("rollout", lambda x: x)
    with pytest.raises(FlowError, match=message) as error:
        build(flow).compile()
    assert "demo" in str(error.value) or "operator" in str(error.value)


def test_a_cycle_is_shown():
    flow = DataFlow("loop").add("a", lambda b: b).add("b", lambda a: a)
    with pytest.raises(FlowError, match=r"a cycle: (a -> b -> a|b -> a -> b)"):
        flow.compile()


def test_an_unknown_placement_names_the_known_ones():
    flow = DataFlow("f", inputs=("x",)).add("a", lambda x: x, placement="trian")
    with pytest.raises(FlowError, match="runs on 'trian', which is not a placement; did you mean"):
        flow.compile({"train": (0, 1)})


def test_removing_what_is_not_there_is_refused():
    with pytest.raises(FlowError, match="has no operator 'x'"):
        DataFlow("f").without("x")


def test_missing_inputs_and_wrong_outputs_are_told_at_run_time():
    flow = DataFlow("f", inputs=("x",)).add("two", lambda x: x, outputs=("a", "b"))
    with pytest.raises(FlowError, match="runs with x missing"):
        flow.compile().run()
    with pytest.raises(FlowError, match="'two' gives int, expected a tuple of 2: a, b"):
        flow.compile().run(x=1)


def test_a_function_without_a_signature_of_its_own_binds_by_what_it_wraps():
    class Bound:
        def __init__(self, func):
            import inspect

            self.func, self.__signature__ = func, inspect.signature(func)

        def __call__(self, **values):
            return self.func(**values)

    flow = DataFlow("f", inputs=("x",)).add("twice", Bound(lambda x: 2 * x))
    assert flow.compile().run(x=2)["twice"] == 4


def rlhf() -> DataFlow:
    """Eight ranks: 0-3 train, 4-7 generate."""
    flow = DataFlow("rlhf", inputs=("prompts",), index="facts")
    flow.add(
        "rollout",
        lambda prompts: (prompts, "facts"),
        outputs=("sequences", "facts"),
        placement="generate",
        shared=("facts",),
    )
    flow.add("reward", lambda sequences: sequences, placement="generate")
    flow.add("log_probs", lambda sequences: sequences, placement="train")
    flow.add("update", lambda reward, log_probs: reward, placement="train", changes_state=True)
    return flow


SPLIT = {"train": range(4), "generate": range(4, 8)}
TOGETHER = {"train": range(8), "generate": range(8)}


def test_values_move_once_where_they_are_needed_elsewhere_behind_their_index():
    assert rlhf().compile(SPLIT).moves == [
        Move(("facts",), "generate", "train", shared=True),
        Move(("sequences",), "generate", "train", index="facts"),
        Move(("reward",), "generate", "train", index="facts"),
    ]


def test_shared_values_move_apart_from_those_that_are_dealt():
    flow = rlhf()
    flow.add("look", lambda facts, sequences, scores: facts, placement="train")
    flow.add("score", lambda: "s", outputs=("scores",), shared=("scores",), placement="generate")
    moves = flow.without("log_probs", "update").compile(SPLIT).moves
    assert moves == [
        Move(("facts", "scores"), "generate", "train", shared=True),
        Move(("sequences",), "generate", "train", index="facts"),
    ]


def test_without_an_index_nothing_else_moves():
    flow = DataFlow("f", inputs=("x",))
    flow.add("a", lambda x: x, placement="generate").add("b", lambda a: a, placement="train")
    assert flow.compile(SPLIT).moves == [Move(("a",), "generate", "train")]


def test_what_all_ranks_share_does_not_move_between_placements_of_the_same_ranks():
    flow = rlhf().add("look", lambda facts: facts, placement="train")
    moved = [v for move in flow.compile(TOGETHER).moves for v in move.values]
    assert moved == ["sequences", "reward"]
    # Nor to fewer ranks, but to more.
    fewer = {"train": range(2), "generate": range(8)}
    moved = [v for move in flow.compile(fewer).moves for v in move.values]
    assert moved == ["sequences", "reward"]
    more = {"train": range(8), "generate": range(4)}
    assert [move for move in flow.compile(more).moves if move.shared] == [
        Move(("facts",), "generate", "train", shared=True)
    ]


def test_an_operator_without_a_placement_runs_where_there_are_none():
    flow = DataFlow("f", inputs=("x",)).add("a", lambda x: x)
    assert flow.compile().run(x=1)["a"] == 1
    with pytest.raises(FlowError, match="'a' runs on 'all ranks', which is not a placement"):
        flow.compile(SPLIT)


def test_both_sides_of_a_move_know_who_has_what():
    """The index is made where neither the giver nor the taker of the values is."""
    flow = DataFlow("f", inputs=("rows",), index="facts")
    flow.add("facts", lambda rows: rows, placement="a", shared=("facts",))
    flow.add("columns", lambda rows: rows, placement="b")
    flow.add("use", lambda columns: columns, placement="c")
    moves = flow.compile({"a": (0,), "b": (1,), "c": (2,)}).moves
    told = {move.target for move in moves[:-1] if move.values == ("facts",)}
    assert told == {"b", "c"}
    assert moves[-1] == Move(("columns",), "b", "c", index="facts")


def test_ranks_run_their_own_operators_only_so_disjoint_ones_overlap():
    split = rlhf().compile(SPLIT)
    moves = ["generate>train"]
    assert names(split, 0) == [*moves, *moves, "log_probs", *moves, "update"]
    assert names(split, 5) == ["rollout", *moves, *moves, "reward", *moves]
    assert names(split, 9) == []


def test_a_move_is_early_but_keeps_its_target_from_nothing():
    """Ranks 0-3 have work of their own before they need what the others have made."""
    flow = rlhf().add("own", lambda prompts: prompts, placement="train")
    flow.add("both", lambda own, log_probs: own, placement="train")
    split = flow.without("update").compile(SPLIT)
    assert names(split, 5) == ["rollout", "generate>train", "generate>train", "reward"]
    flow = DataFlow("f", inputs=("x",))
    flow.add("own", lambda x: x, placement="train").add("a", lambda x: x, placement="generate")
    flow.add("later", lambda a: a, placement="generate")
    flow.add("b", lambda a, own: a, placement="train")
    assert names(flow.compile(SPLIT), 0) == ["own", "generate>train", "b"]
    assert names(flow.compile(SPLIT), 5) == ["a", "generate>train", "later"]


class Said(Mover):
    """Says where values are; remembers whom it has left alone."""

    def __init__(self, gives_up=()):
        self.abandoned, self.gives_up = [], gives_up

    def move(self, move, values):
        if move.values[0] in self.gives_up:
            raise StepCancelled
        return {name: f"{values[name]} at {move.target}" for name in move.values}

    def abandon(self, moves):
        self.abandoned += list(moves)


def test_the_mover_and_the_watcher_are_called_in_order():
    seen = []
    pipeline = rlhf().compile(TOGETHER)
    values = pipeline.run(rank=0, mover=Said(), enter=lambda *what: seen.append(what), prompts="p")
    assert seen == [
        ("rollout", "generate"),
        ("reward", "generate"),
        ("generate to train", "train"),
        ("log_probs", "train"),
        ("generate to train", "train"),
        ("update", "train"),
    ]
    assert values["log_probs"] == "p at train"
    assert values["update"] == "p at train"
    assert values["facts"] == "facts"


@pytest.mark.parametrize(("rank", "place"), [(0, "train"), (5, "generate")])
def test_the_watcher_of_a_move_is_told_the_placement_of_its_rank(rank, place):
    seen = {}
    mover = Mover()
    mover.move = lambda move, values: dict.fromkeys(move.values, "moved")
    rlhf().compile(SPLIT).run(rank=rank, mover=mover, enter=seen.__setitem__, prompts="p")
    assert seen["generate to train"] == place


def test_every_placement_has_a_value_as_it_was_assigned_there():
    """An operator of the source that runs after a move has the value as it was made."""
    flow = rlhf().add("after", lambda sequences, update: (sequences, update), placement="generate")
    values = flow.compile(TOGETHER).run(mover=Said(), prompts="p")
    assert values["after"] == ("p", "p at train at generate")
    assert values["sequences"] == "p"


@pytest.mark.parametrize("rank", [0, 5])
def test_who_gives_up_meets_those_who_wait_at_every_move(rank):
    """None is left out, so that ranks and moves stay paired."""

    def leave(prompts):
        raise StepCancelled

    flow = rlhf().without("rollout")
    flow.add("rollout", leave, outputs=("sequences", "facts"), placement="generate",
             shared=("facts",))  # fmt: skip
    flow.add("back", lambda update: update, placement="generate", shared=("back",))
    pipeline, mover = flow.compile(SPLIT), Said(gives_up=("facts",))
    with pytest.raises(StepCancelled):
        pipeline.run(rank=rank, mover=mover, prompts="p")
    # Rank 0 has met the first: that is how it knows.
    assert mover.abandoned == pipeline.moves[0 if rank == 5 else 1 :]


def test_what_disjoint_ranks_do_comes_before_a_change_elsewhere():
    """Where all meet before the first change, nobody has waited for it."""
    flow = rlhf().add("change", lambda log_probs: (), outputs=(), placement="train",
                      changes_state=True)  # fmt: skip
    flow.add("look", lambda facts: facts, placement="generate")
    flow.add("after", lambda log_probs: log_probs, placement="train")
    before, behind = flow.compile(SPLIT).before_changes
    assert {"look", "reward", "log_probs"} <= {op.name for op in before.operators}
    assert {op.name for op in behind.operators} == {"change", "after", "update"}


def test_an_operator_that_is_made_ahead_gets_what_another_shares_a_move_with():
    """The first to need the samples there is not made ahead; the second is."""
    flow = DataFlow("f", inputs=("rows",), index="samples")
    flow.add("samples", lambda rows: rows, placement="rollout", shared=("samples",))
    flow.add("old", lambda samples: samples, placement="train")
    flow.add("distance", lambda samples, old: old, placement="reward")
    flow.add("score", lambda samples: samples, placement="reward")
    pipeline = flow.compile({"train": (0,), "rollout": (1,), "reward": (2,)})
    ahead, rest = pipeline.split(("samples", "score"))
    assert [move.target for move in ahead.moves] == ["reward"]
    assert [(move.values, move.target) for move in rest.moves] == [
        (("samples",), "train"),
        (("old",), "reward"),
    ]


def test_which_operators_change_state():
    pipeline = rlhf().compile(SPLIT)
    assert pipeline.changed["update"] is True
    assert pipeline.changed["rollout"] is False
    assert "generate to train" not in pipeline.changed
    before, behind = pipeline.before_changes
    assert [*before.schedule, *behind.schedule] == [*pipeline.schedule]
    assert behind.operators[0].name == "update" and "update" not in map(str, before.operators)
