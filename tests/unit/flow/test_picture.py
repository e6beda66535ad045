"""Flows as text."""

from verl_hpc.flow import DataFlow
from verl_hpc.flow.picture import flow_text

SPLIT = {"train": (0, 1, 2, 3), "rollout": (6, 4, 5, 9), "unused": (8,)}


def split():
    flow = DataFlow("rlhf", inputs=("rows",))
    flow.add("rollout", lambda rows: rows, outputs=["sequences"], placement="rollout",
             roles=("rollout",))  # fmt: skip
    flow.add("log_probs", lambda sequences: 0, placement="train", roles=("actor",))
    flow.add("kl", lambda log_probs: 0, placement="train", roles=("actor", "reference"))
    flow.add("update", lambda sequences, kl: (), outputs=[], placement="train")
    return flow.compile(SPLIT)


def test_the_text_has_placements_operators_with_their_roles_and_moves():
    assert flow_text(split()).splitlines() == [
        "rlhf(rows)",
        "  train    ranks 0-3     actor, reference",
        "  rollout  ranks 4-6, 9  rollout",
        "",
        "  rollout  rollout(rollout)      rows => sequences",
        "  move     sequences             rollout -> train",
        "  train    log_probs(actor)      sequences => log_probs",
        "  train    kl(actor, reference)  log_probs => kl",
        "  train    update                sequences, kl => -",
    ]


def test_without_placements_there_are_only_operators():
    flow = DataFlow("f").add("a", lambda: 0).add("b", lambda a: 0)
    assert flow_text(flow.compile()).splitlines() == [
        "f()",
        "",
        "  all ranks  a  - => a",
        "  all ranks  b  a => b",
    ]
