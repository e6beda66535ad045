"""Conversations with an environment in the process that is its own."""

import select
from contextlib import contextmanager


@contextmanager
def begun(environments, problem):
    """A conversation, which ends whatever happens."""
    conversation = environments.begin(problem)
    try:
        yield conversation
    finally:
        conversation.end()


def heard(conversation):
    """The environment's answer to the last turn."""
    while True:
        ready, _, _ = select.select([conversation], [], [], 60)
        assert ready, "no answer"
        answer = conversation.answer()
        if answer is not None:
            return answer


def said(conversation, text):
    """The environment's answer to a turn."""
    conversation.tell([1], text)
    return heard(conversation)
