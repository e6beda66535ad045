"""What a continued response consists of."""

import numpy as np
import pytest

from verl_hpc.rollout.partial import NOT_BEGUN, continued, given_so_far, observed
from verl_hpc.rollout.protocol import Response, Sampling

BEGUN = Response((5, 6), (-0.1, -0.2), "unfinished")


def test_a_continued_response_keeps_tokens_and_log_probs_and_ends_as_the_new_part_does():
    new = Response((7,), (-0.3,), "stop")
    assert continued(BEGUN, new) == Response((5, 6, 7), (-0.1, -0.2, -0.3), "stop")
    assert (continued(BEGUN, NOT_BEGUN), continued(NOT_BEGUN, new)) == (BEGUN, new)


def test_a_continued_response_keeps_the_experts_of_its_parts():
    def routed(tokens, rows):
        return Response(
            tokens, (0.0,) * len(tokens), "unfinished", experts=np.full((rows, 2, 1), 7)
        )

    first = routed((5, 6), 3)  # two tokens of a prompt and one of the response
    assert observed(first, (8, 9)).experts is first.experts
    assert len(continued(observed(first, (8, 9)), routed((7,), 3)).experts) == 6
    assert continued(first, NOT_BEGUN).experts.shape == (3, 2, 1)
    assert continued(BEGUN, NOT_BEGUN).experts is None


def test_responses_without_a_prefix_begin_with_nothing():
    sampling = Sampling(max_tokens=4)
    assert given_so_far(None, 2, sampling) == [NOT_BEGUN, NOT_BEGUN]
    assert given_so_far([BEGUN, None], 2, sampling) == [BEGUN, NOT_BEGUN]
    assert given_so_far([], 0, sampling) == []


@pytest.mark.parametrize(
    "prefix",
    [
        Response((5, 6), (-0.1, -0.2), "stop"),
        Response((5, 6), (-0.1, -0.2), "length"),
        Response((5, 6, 7, 8), (-0.1,) * 4, "unfinished"),
    ],
)
def test_what_has_ended_is_not_continued(prefix):
    with pytest.raises(AssertionError):
        given_so_far([prefix], 1, Sampling(max_tokens=4))
