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
    """The environment's answer to the turn that it was told."""
    while True:
        ready, _, _ = select.select([conversation], [], [], 60)
        assert ready, "no answer"
        found = conversation.answer()
        if found is not None:
            return found


def said(conversation, text):
    """The environment's answer to a turn."""
    conversation.tell([1], text)
    return heard(conversation)
