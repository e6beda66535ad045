"""What a continued response consists of."""

import numpy as np
import pytest

from verl_hpc.rollout.partial import continued, observed
from verl_hpc.rollout.protocol import NOT_BEGUN, Feed, Request, Response

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


def test_what_has_ended_is_not_continued():
    for reason in ("stop", "length"):
        with pytest.raises(AssertionError):
            Feed([Request([5], 1, Response((5, 6), (-0.1, -0.2), reason))])
