"""Verdicts as lines, as data, and what they say of nodes."""

from verl_hpc.runs.verdict import any_fails, failing_nodes, fails, listed, ok, unknown

VERDICTS = [
    ok("mpi", "pmi2"),
    unknown("account", "no accounting"),
    fails("clocks", "off", "tell the administrators", ["n2"]),
    fails("pairs", "slow", "leave out n2", ("n2", "n0")),
]


def test_failures_and_the_nodes_to_blame():
    assert any_fails(VERDICTS)
    assert failing_nodes(VERDICTS) == [("n0", "pairs: slow"), ("n2", "clocks: off; pairs: slow")]
    assert (any_fails(VERDICTS[:2]), failing_nodes(VERDICTS[:2])) == (False, []), "unknown is none"
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(i) for i in range(10)], 3) == "0, 1, 2 and 7 more"
