"""What a batch's scores become for the operators."""

from verl_hpc.api.batch import scores_of
from verl_hpc.rewards.scoring import Score


def test_what_tokens_earn_reaches_the_update():
    found = scores_of([Score(0.5), Score(1.5, per_token=[0.0, 1.0, 0.5]), Score(0.0)])
    assert found.values == [0.5, 1.5, 0.0]
    assert found.per_token == {1: {1: 1.0, 2: 0.5}}
