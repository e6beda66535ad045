"""Responses of later steps go through a file as they are."""

from dataclasses import replace

import numpy as np
import pytest

from verl_hpc.checkpoint.ahead import read_ahead, write_ahead
from verl_hpc.errors import DamageError
from verl_hpc.rollout.partial import ResponseId
from verl_hpc.rollout.protocol import Branch, Episode, Response

WHOLE = Response((5, 151_000, 7), (-0.5, -1.25, -0.1), "stop")


def made(**changes):
    """`WHOLE` with changes, by the weights of the third version."""
    return replace(WHOLE, **{"versions": (3,) * 3} | changes)


RESPONSES = {
    ResponseId("rollout", 4, 7, 12): made(versions=(2, 2, 3)),
    ResponseId("rollout", 5, 2, 12): made(finish_reason="unfinished"),
    ResponseId("rollout", 5, 3, 12): Response((), (), "unfinished"),
    ResponseId("greedy", 4, 1, 6): made(finish_reason="length"),
    ResponseId("a tool", 4, 0, 6): made(mask=(1, 0, 1)),
}


def through_a_file(path, responses, wanted=lambda _: True):
    write_ahead(path, "a save", responses)
    return read_ahead(path, "a save", wanted)


def floats32(response):
    """With log-probs as engines give them, and columns have them."""
    log_probs = np.array(response.log_probs, np.float32).tolist()
    return replace(response, log_probs=tuple(log_probs))


def test_what_is_written_is_read(tmp_path):
    expected = {which: floats32(response) for which, response in RESPONSES.items()}
    assert through_a_file(tmp_path / "a.h5", RESPONSES) == expected
    some = through_a_file(tmp_path / "a.h5", RESPONSES, lambda which: which.step == 5)
    assert some == {which: response for which, response in expected.items() if which.step == 5}
    assert through_a_file(tmp_path / "a.h5", RESPONSES, lambda _: False) == {}
    assert through_a_file(tmp_path / "a.h5", {}) == {}


def test_episodes_keep_their_branches_rewards_and_scores(tmp_path):
    """Also beside responses of no program."""
    branches = (
        Branch((7, 8), floats32(made(mask=(1, 0, 1))), {0: 0.1, 2: -1.0}),
        Branch((9,), floats32(made(versions=(4, 4, 5), finish_reason="length")), {}),
        Branch((), floats32(made()), {1: 1.0}),
    )
    episodes = [Episode(branches[:2], 0.3), Episode(branches[2:], None), None, Episode(branches, 1)]
    responses = {
        ResponseId("rollout", 4, slot, 4): floats32(made(episode=episode))
        for slot, episode in enumerate(episodes)
    }
    read = through_a_file(tmp_path / "a.h5", responses)
    assert read == responses
    assert [response.episode for response in read.values()] == episodes


def test_arrays_keep_their_types_and_shapes(tmp_path):
    """Prompt and response have experts; a response that has not begun has no rows of them."""
    for kind in (np.uint8, np.uint16):
        experts = np.arange(30, dtype=kind).reshape(5, 3, 2) * 7
        arrays = {
            ResponseId("rollout", 4, 1, 3): made(experts=experts),
            ResponseId("rollout", 4, 2, 3): made(),
            ResponseId("rollout", 5, 1, 3): made(experts=experts[:0]),
        }
        read = through_a_file(tmp_path / "a.h5", arrays)
        first, second, third = read.values()
        for array, expected in ((first.experts, experts), (third.experts, experts[:0])):
            assert array.dtype == kind and array.shape == expected.shape
            assert (array == expected).all()
        assert second.experts is None


def test_a_file_of_another_save_is_refused(tmp_path):
    write_ahead(tmp_path / "a.h5", "a save", RESPONSES)
    with pytest.raises(DamageError, match=r"a\.h5: damaged \(of another save"):
        read_ahead(tmp_path / "a.h5", "another", lambda _: True)
