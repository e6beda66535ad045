"""Tokens between turns, for templates of many kinds: what was sampled stays as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.data.templates import CHATML, ENDS, FORGETS, TEMPLATES, Letters, turns_of
from verl_hpc.data.observations import Observations
from verl_hpc.data.prompts import Encoder
from verl_hpc.errors import ModelError


def conversation(name, turns, role="user"):
    """(tokens behind the prompt, mask), turn by turn as an engine makes them."""
    tokenizer = Letters(TEMPLATES[name])
    observations = Observations(Encoder(tokenizer), is_chat=True, role=role)
    tokens, mask = [], []
    for sampled, observation in turns:
        tokens += sampled
        mask += [1] * len(sampled)
        if observation is not None:
            new = observations.tokens(observation, tokens)
            tokens += new
            mask += [0] * len(new)
    return tokenizer, tokens, mask


@given(st.data(), st.sampled_from(sorted(TEMPLATES)))
def test_what_is_trained_on_is_what_was_sampled(data, name):
    turns = data.draw(turns_of(name))
    tokenizer, tokens, mask = conversation(name, [(sampled, o) for _, sampled, o in turns])
    trained = [t for t, m in zip(tokens, mask, strict=True) if m]
    assert trained == [t for _, sampled, _ in turns for t in sampled]
    assert len(tokens) == len(mask)
    # And it reads as the template writes it, where that does not change what is past.
    if name != "forgets":
        messages = [{"role": "user", "content": "q"}]
        prompt = tokenizer.apply_chat_template(messages, True, tokenize=False)
        for text, _, observation in turns:
            messages += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": observation},
            ]
        whole = tokenizer.apply_chat_template(messages, True, tokenize=False)
        written = prompt + tokenizer.decode(tokens)
        # One template puts a blank before a turn, which is the model's to write.
        assert written.replace("] ", "]") == whole.replace("] ", "]")


def test_a_template_that_forgets_thoughts_keeps_what_was_sampled():
    tokenizer = Letters(FORGETS)
    said = tokenizer.encode("ab</think>b<|im_end|>")
    _, tokens, mask = conversation("forgets", [(said, "oo"), (said, None)])
    assert "ab</think>b" in tokenizer.decode(tokens)[: len("ab</think>b")]
    assert sum(mask) == 2 * len(said)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_turn_that_was_not_ended_is_ended_by_the_template(name):
    """A stop string ended it: the tokens that end a turn are not the model's."""
    tokenizer, tokens, mask = conversation(name, [(Letters(CHATML).encode("ab"), "oo")])
    assert tokenizer.decode(tokens).removeprefix("ab").lstrip("\n ").startswith(ENDS[name])
    assert sum(mask) == 1


def test_without_a_chat_an_observation_stands_as_it_is():
    tokenizer = Letters(None)
    tokens = Observations(Encoder(tokenizer), is_chat=False).tokens("=ab;", tokenizer.encode("b"))
    assert tokenizer.decode(tokens) == "=ab;"


PLACELESS = [
    ("{{ messages[-1].content }}", "leaves out a turn of the model"),
    (
        "{{ raise_exception('roles alternate') }}",
        "template failed: .*has to write a message of role user",
    ),
]


@pytest.mark.parametrize(("template", "words"), PLACELESS)
def test_templates_that_have_no_place_for_turns(template, words):
    with pytest.raises(ModelError, match=words):
        Observations(Encoder(Letters(template)), is_chat=True).tokens("o", [])
