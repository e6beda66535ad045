"""OPO's baseline, weighed by length, as a sum over the group."""

from hypothesis import given

from tests.unit.algorithms.scored import Row, agrees, of_responses, owners, rows, scored
from verl_hpc.algorithms.advantages.opo import Opo


def oracle(rows):
    found = []
    for row in rows:
        group = [r for r in rows if r.group == row.group]
        tokens = sum(len(r.counted) for r in group)
        weighed = sum(len(r.counted) * r.score for r in group)
        baseline = weighed / max(tokens, 1) if len(group) > 1 else 0.0
        found.append(row.score - baseline)
    return of_responses(rows, found)


@given(rows(), owners)
def test_against_the_formula(rows, owners):
    agrees(Opo(), oracle, rows, owners)


def test_lengths_are_of_tokens_that_count_on_any_rank():
    some = [
        Row(0, 1.0, [0] * 4, [1, 0, 1, 1], [0] * 4, 0.0),
        Row(0, 0.0, [0] * 4, [0, 0, 1, 0], [0] * 4, 0.0),
    ]
    batch = scored(some)
    assert (batch.lengths().tolist(), Opo()(batch).tolist()) == ([3, 1], [0.25, -0.75])
