"""Token trees: what is trained on is what was sampled, whatever a program asks for and a template
writes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.data.public_templates import ANSWERS, MARKED, tokenizer_of
from verl_hpc.agents.session import Session, Writer
from verl_hpc.data.prompts import Encoder
from verl_hpc.rollout.protocol import Response

TEMPLATES = sorted({*ANSWERS, *MARKED})


def respond(tokens, finish="stop"):
    return Response(tuple(tokens), tuple(-float(t) for t in tokens), finish)


def user(text):
    return {"role": "user", "content": text}


class Program:
    """A program's side of a session whose model samples what it is given."""

    def __init__(self, name):
        self.tokenizer = tokenizer_of(name)
        self.session = Session(Writer(Encoder(self.tokenizer)))
        self.sampled = []

    def ask(self, messages, tokens):
        """Have the model answer with some tokens; return its message."""
        begun = self.session.begin(messages, {})
        reply = {"role": "assistant", "content": self.tokenizer.decode(tokens)}
        self.session.end(*begun, messages, respond(tokens), reply)
        self.sampled.append((begun[1], tuple(tokens)))
        return reply

    def rows(self):
        return self.session.branches({})


def trained(rows):
    """Every token that is trained on, behind all that it was sampled behind."""
    found = []
    for row in rows:
        for i, own in enumerate(row.response.mask):
            if own:
                found.append((row.prompt + row.response.tokens[:i], row.response.tokens[i]))
    return sorted(found)


def sampled(program):
    return sorted(
        (prompt + tokens[:i], token)
        for prompt, tokens in program.sampled
        for i, token in enumerate(tokens)
    )


@given(st.sampled_from(TEMPLATES), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_recorded_tokens_are_sampled_tokens_once_each(name, seed):
    """Programs that go on, begin anew, go back, change what was said, and ask in parallel."""
    draw = random.Random(seed)
    program = Program(name)
    words = program.tokenizer.encode("yes no more", add_special_tokens=False)
    pasts = [[]]
    for _ in range(draw.randint(1, 8)):
        past = [dict(message) for message in draw.choice(pasts)]
        if len(past) > 1 and draw.random() < 0.2:
            past[1] = past[1] | {"content": "changed"}
        asked = [*past, user(draw.choice(["hi", "more", "?"]))]
        tokens = draw.choices(words, k=draw.randint(1, 4))
        pasts.append([*asked, program.ask(asked, tokens)])
    rows = program.rows()
    # A token that was sampled twice behind the same tokens is there twice.
    assert trained(rows) == sampled(program)
    for row in rows:
        assert all(
            p == -float(t) for p, t, own in zip(row.response.log_probs, row.response.tokens,
                                                row.response.mask, strict=True) if own
        )  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_that_goes_on_is_one_row(name):
    program = Program(name)
    words = program.tokenizer.encode("yes", add_special_tokens=False)
    messages = [user("hi")]
    for text in ("more", "?"):
        messages += [program.ask(messages, words), user(text)]
    program.ask(messages, words)
    (row,) = program.rows()
    assert sum(row.response.mask) == 3 * len(words)
    assert program.session.num_rewritten == 0


def test_branches_share_a_turn_that_one_of_them_trains_on():
    program = Program(TEMPLATES[0])
    words = program.tokenizer.encode("yes", add_special_tokens=False)
    first = program.ask([user("hi")], words)
    for text in ("one", "two"):
        program.ask([user("hi"), first, user(text)], words)
    one, two = program.session.branches({0: 0.25, 2: 0.5})
    assert one.prompt == two.prompt
    assert [sum(row.response.mask) for row in (one, two)] == [2 * len(words), len(words)]
    assert one.rewards == {len(words) - 1: 0.25}
    assert two.rewards == {len(two.response.tokens) - 1: 0.5}
    (answer,) = program.session.answer({})
    assert (answer.response.tokens, sum(answer.response.mask)) == (
        two.response.tokens,
        2 * len(words),
    )


def test_clients_may_write_a_message_anew():
    program = Program(TEMPLATES[0])
    words = program.tokenizer.encode("yes", add_special_tokens=False)
    reply = program.ask([user("hi")], words)
    again = {"role": "assistant", "content": f" {reply['content']} ", "tool_calls": [], "x": None}
    program.ask([user("hi"), again, user("so")], words)
    assert len(program.rows()) == 1


def test_texts_are_continued_by_their_characters():
    tokenizer = tokenizer_of(TEMPLATES[0])
    session = Session(Writer(Encoder(tokenizer)))
    words = tuple(tokenizer.encode("yes", add_special_tokens=False))
    text = "hi "
    for _ in range(2):
        parent, tokens = session.begin(text, {})
        session.end(parent, tokens, text, respond(words), "yes")
        text += "yes more "
    (row,) = session.branches({})
    assert sum(row.response.mask) == 2 * len(words)
