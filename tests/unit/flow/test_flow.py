"""Declared flows: what binds to what, what is refused, in which order things run and where."""

import pytest

from verl_hpc.errors import FlowError
from verl_hpc.flow import DataFlow, Move, Operator, Run


def names(pipeline, rank=0):
    return [
        item.operator.name if isinstance(item, Run) else f"{item.source}>{item.target}"
        for item in pipeline.for_rank(rank)
    ]


def test_single_argument_functions_chain():
    flow = DataFlow()
    flow.add_operator(Operator("prompts", lambda: ["a", "b"]))
    flow.add_operator(Operator("rollout", lambda x: [p + "!" for p in x]))
    flow.add_operator(Operator("reward", lambda texts: [len(t) for t in texts]))
    assert flow.compile().run()["reward"] == [2, 2]


def test_parameters_bind_to_values_by_name_wherever_they_were_made():
    flow = DataFlow(inputs=("prompts",))
    flow.add("update", lambda reward, rollout: (reward, rollout))
    flow.add("reward", lambda rollout: sum(rollout))
    flow.add("rollout", lambda prompts: [2 * p for p in prompts])
    pipeline = flow.compile()
    assert names(pipeline) == ["rollout", "reward", "update"]
    assert pipeline.run(prompts=[1, 2])["update"] == (6, [2, 4])


def test_a_parameter_with_a_default_is_no_input():
    flow = DataFlow(inputs=("x",)).add("scale", lambda x, factor=3: x * factor)
    assert flow.compile().run(x=2)["scale"] == 6


def test_operators_may_give_several_values():
    flow = DataFlow(inputs=("x",))
    flow.add("split", lambda x: (x, -x), outputs=("plus", "minus"))
    flow.add("join", lambda plus, minus: plus - minus)
    assert flow.compile().run(x=4)["join"] == 8


def test_after_orders_operators_that_share_no_value():
    flow = DataFlow(inputs=("x",))
    flow.add("save", lambda x: x, inputs=("x",), after=("train",))
    flow.add("train", lambda x: x, inputs=("x",))
    assert names(flow.compile()) == ["train", "save"]


def test_removing_an_operator_touches_no_other():
    flow = (
        DataFlow(inputs=("x",)).add("a", lambda x: x + 1).add("guard", lambda a: a, inputs=("a",))
    )
    flow.add("b", lambda a: a * 2, inputs=("a",))
    assert flow.without("guard").compile().run(x=1)["b"] == flow.compile().run(x=1)["b"] == 4
    assert len(flow.operators) == 3


@pytest.mark.parametrize(
    "build, message",
    [
        (
            lambda f: f.add("a", lambda rolout: 0),
            "'a' needs 'rolout', which nothing produces; did you",
        ),
        (lambda f: f.add("rollout", lambda x: 0), "two operators are called 'rollout'"),
        (
            lambda f: f.add("again", lambda x: 0, outputs=("rollout",)),
            "'rollout' is given by rollout and by again",
        ),
        (
            lambda f: f.add("again", lambda x: 0, outputs=("x",)),
            "'x' is given by the flow's inputs and by again",
        ),
        (lambda f: f.add("a", lambda x: 0, after=("rolout",)), "comes after 'rolout'"),
        (lambda f: f.add("a", lambda *x: 0), "takes any number of arguments; name its inputs"),
        (lambda f: f.add("a", lambda x: 0, shared=("b",)), "shares 'b', which is not one of its"),
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
    flow = DataFlow(inputs=("x",)).add("a", lambda x: x, placement="trian")
    with pytest.raises(FlowError, match="runs on 'trian', which is no placement; did you mean"):
        flow.compile({"train": (0, 1)})


def test_removing_what_is_not_there_is_refused():
    with pytest.raises(FlowError, match="has no operator 'x'"):
        DataFlow().without("x")


def test_missing_inputs_and_wrong_outputs_are_told_at_run_time():
    flow = DataFlow("f", inputs=("x",)).add("two", lambda x: x, outputs=("a", "b"))
    with pytest.raises(FlowError, match="runs with x missing"):
        flow.compile().run()
    with pytest.raises(FlowError, match="'two' gives int, expected a tuple of 2: a, b"):
        flow.compile().run(x=1)


def rlhf() -> DataFlow:
    """Eight ranks: 0-3 train, 4-7 generate."""
    flow = DataFlow("rlhf", inputs=("prompts",))
    flow.add(
        "rollout",
        lambda prompts: (prompts, "facts"),
        outputs=("sequences", "facts"),
        placement="generate",
        shared=("facts",),
    )
    flow.add("reward", lambda sequences: sequences, placement="generate")
    flow.add("log_probs", lambda sequences: sequences, placement="train")
    flow.add("update", lambda reward, log_probs, facts: facts, placement="train")
    return flow


def test_values_move_once_where_they_are_needed_elsewhere():
    split = rlhf().compile({"train": range(4), "generate": range(4, 8)})
    moves = [item for item in split.schedule if isinstance(item, Move)]
    assert moves == [
        Move(("sequences",), "generate", "train"),
        Move(("reward", "facts"), "generate", "train"),
    ]


def test_what_all_ranks_share_does_not_move_between_placements_of_the_same_ranks():
    together = rlhf().compile({"train": range(8), "generate": range(8)})
    moved = [v for item in together.schedule if isinstance(item, Move) for v in item.values]
    assert moved == ["sequences", "reward"]


def test_ranks_run_their_own_operators_only_so_disjoint_ones_overlap():
    split = rlhf().compile({"train": range(4), "generate": range(4, 8)})
    assert names(split, 0) == ["generate>train", "log_probs", "generate>train", "update"]
    assert names(split, 5) == ["rollout", "reward", "generate>train", "generate>train"]
    assert names(split, 9) == []


def test_the_mover_and_the_watcher_are_called_in_order():
    seen = []

    def mover(move, values):
        return {name: f"{values[name]} at {move.target}" for name in move.values}

    pipeline = rlhf().compile({"train": range(8), "generate": range(8)})
    values = pipeline.run(rank=0, mover=mover, enter=seen.append, prompts="p")
    assert seen == [
        *("rollout", "reward", "generate to train", "log_probs"),
        *("generate to train", "update"),
    ]
    assert values["log_probs"] == "p at train"
    assert values["facts"] == "facts"


def test_pictures_show_every_operator_value_and_move():
    pipeline = rlhf().compile({"train": range(4), "generate": range(4, 8)})
    text = pipeline.as_text()
    assert text.splitlines()[0] == "rlhf(prompts)"
    assert "move  sequences: generate to train" in text
    assert "update" in text and "reward, log_probs, facts => update" in text
    mermaid = pipeline.as_mermaid()
    assert mermaid.startswith("flowchart LR") and "subgraph train" in mermaid
    assert "rollout -- sequences --> reward" in mermaid
    assert "prompts([prompts]) -- prompts --> rollout" in mermaid
