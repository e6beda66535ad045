"""Values that are dealt to ranks move with what says who has which of them."""

from verl_hpc.flow import DataFlow, Move

PLACES = {"rollout": (0,), "train": (1,)}


def flow():
    return (
        DataFlow("two sets", index="samples")
        .add("deal", lambda: None, outputs=["samples"], placement="rollout", shared=["samples"])
        .add("answer", lambda: None, outputs=["sequences"], placement="rollout")
        .add("best", lambda: None, outputs=["greedy"], placement="rollout", index="greedy_samples")
        .add(
            "deal_best",
            lambda greedy: None,
            outputs=["greedy_samples"],
            placement="rollout",
            shared=["greedy_samples"],
        )
    )


def test_an_operator_may_name_the_index_of_its_values():
    used = flow().add("use", lambda sequences, greedy: None, outputs=[], placement="train")
    moves = used.compile(PLACES).moves
    assert Move(("sequences",), "rollout", "train", False, "samples") in moves
    assert Move(("greedy",), "rollout", "train", False, "greedy_samples") in moves
    # Each index comes before the values it describes.
    order = [name for move in moves for name in move.values]
    assert order.index("samples") < order.index("sequences")
    assert order.index("greedy_samples") < order.index("greedy")


def test_an_index_that_nobody_needs_does_not_move():
    used = flow().add("use", lambda greedy: None, outputs=[], placement="train")
    names = {name for move in used.compile(PLACES).moves for name in move.values}
    assert names == {"greedy", "greedy_samples"}
