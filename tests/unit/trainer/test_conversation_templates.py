"""What is trained on is what was sampled, whatever the chat template and the environment say."""

import json
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.data.templates import CHATML, TEMPLATES, Letters, turns_of
from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.data.observations import Observations
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder
from verl_hpc.environments.processes import Environments
from verl_hpc.generation.conversation import Conversations
from verl_hpc.rollout.partial import continued
from verl_hpc.rollout.protocol import Feed, Request, Response, Sampling

OWN = """
import json
from verl_hpc.environments.environment import Done, Environment

class Says(Environment):
    "The texts that its problem consists of, one behind each turn."

    def reset(self, problem):
        self.left = json.loads(problem.prompt)

    def step(self, tokens, text):
        return self.left.pop(0) if self.left else Done()

class Echoes(Environment):
    "Says once what it is told."

    def reset(self, problem):
        self.left = 1

    def step(self, tokens, text):
        self.left -= 1
        return f"[{text}]" if self.left == 0 else Done()
"""


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    path = tmp_path_factory.mktemp("templates") / "own.py"
    path.write_text(OWN)
    config = EnvironmentConfig(name=f"{path}:Says", max_turns=9)
    return config, Environments(config)


@st.composite
def talks(draw, name):
    """(tokens that are sampled, what is said behind them) of some turns. A stop string may have
    ended one, not the token with which the template ends it; and templates trim blanks away."""
    return [
        (sampled[: len(sampled) - draw(st.booleans())], draw(st.sampled_from([said, said, " \n"])))
        for _, sampled, said in draw(turns_of(name))
    ]


def have(conversations, talks):
    """The responses of an engine that samples given tokens."""
    turns = [iter(talk) for talk in talks]
    with closing(conversations):
        while started := conversations.next(num_running=0):
            for index, request in started:
                tokens, _ = next(turns[index])
                new = Response(tuple(tokens), (-1.0,) * len(tokens), "stop")
                conversations.ended(index, continued(request.prefix, new))
    return conversations.responses


def conversations_of(config, environments, problems, tokenizer, stop=()):
    feed, encoder = Feed([Request([], 0) for _ in problems]), Encoder(tokenizer, chat="always")
    sampling = Sampling(10_000, stop=stop)
    return Conversations(feed, config, environments, problems, encoder, lambda *_: 0, sampling)


@given(st.data(), st.sampled_from(sorted(TEMPLATES)))
def test_what_is_trained_on_is_what_was_sampled(environments, data, name):
    config, processes = environments
    tokenizer = Letters(TEMPLATES[name])
    drawn = [data.draw(talks(name)) for _ in range(2)]
    texts = [[said for _, said in talk[:-1]] for talk in drawn]
    problems = [Problem(i, json.dumps(said)) for i, said in enumerate(texts)]
    conversations = conversations_of(config, processes, problems, tokenizer)
    observations = Observations(Encoder(tokenizer), is_chat=True)
    for response, talk, said in zip(have(conversations, drawn), drawn, texts, strict=True):
        tokens, mask = [], []
        for (sampled, _), text in zip(talk, [*said, None], strict=True):
            tokens, mask = tokens + sampled, mask + [1] * len(sampled)
            if text is not None:
                new = observations.tokens(text, tokens)
                tokens, mask = tokens + new, mask + [0] * len(new)
        assert (list(response.tokens), list(response.sampled)) == (tokens, mask)
        assert list(response.log_probs) == [-float(own) for own in mask]
        trained = [t for t, own in zip(response.tokens, response.sampled, strict=True) if own]
        assert trained == [token for sampled, _ in talk for token in sampled]


def test_an_environment_sees_special_tokens_but_the_one_that_ended_a_turn(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    config = EnvironmentConfig(name=f"{path}:Echoes", max_turns=9)
    tokenizer = Letters(CHATML)
    # The last token is one of rollout.stop_token_ids, or the last one of a string of rollout.stop.
    for stop, seen in (((), "[ab<|start|>x]"), (("<|end|>",), "[ab<|start|>x<|end|>]")):
        talk = [(tokenizer.encode("ab<|start|>x<|end|>"), None), (tokenizer.encode("b"), None)]
        environments, problems = Environments(config), [Problem(0, "q")]
        conversations = conversations_of(config, environments, problems, tokenizer, stop)
        (response,) = have(conversations, [talk])
        assert seen in tokenizer.decode(response.tokens)
