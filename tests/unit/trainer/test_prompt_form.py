"""A chat template that is there and not applied is named at the start."""

import logging

import pytest

from tests.unit.checkpoint.steps import STATE, make_model, write_step
from tests.unit.data.conftest import files, write_jsonl
from tests.unit.data.shapes import said
from verl_hpc.config.load import parse_config
from verl_hpc.data.prompts import Encoder
from verl_hpc.data.sources import open_source
from verl_hpc.data.tokenizer import load_tokenizer
from verl_hpc.trainer.prompt_form import (
    CHAT,
    PROMPT_FORM,
    RENDERED,
    TEXT,
    prompt_form,
    say_what_is_unused,
)

RENDERED_PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def tree_of(path, train, **more):
    data = {"train": train.model_dump(), **more.pop("data", {})}
    tree = {"name": "r", "recipe": "rl", "steps": 1, "model": {"path": str(path)}, "data": data}
    return parse_config(tree | {"rollout": {"num_samples": 2}} | more)


def told(caplog, config, model, words):
    """How a prompt is read, and whether a warning has certain words."""
    encoder = Encoder.from_config(load_tokenizer(model), config.data)
    form = prompt_form(encoder, open_source(config.data.train))
    sets = {name: open_source(chosen.source) for name, chosen in config.evaluation_sets.items()}
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        say_what_is_unused(config, encoder, form, sets)
    return form, words in caplog.text


def rows(tmp_path, name, prompt):
    return files(write_jsonl(tmp_path / f"{name}.jsonl", [{"prompt": prompt}]))


UNUSED = "data.chat=always applies it"


def test_plain_prompts_of_a_model_with_a_template_are_told(caplog, tmp_path, model):
    for prompt, chat, expected in (
        ("hi", "auto", (TEXT, True)),
        ("hi", "never", (TEXT, False)),
        ("hi", "always", (CHAT, False)),
        (said("u: hi"), "auto", (CHAT, False)),
        (RENDERED_PROMPT, "auto", (RENDERED, False)),
    ):
        config = tree_of(model, rows(tmp_path, "rows", prompt), data={"chat": chat})
        assert told(caplog, config, model, UNUSED) == expected, (prompt, chat)


def test_a_model_that_was_trained_in_the_same_way_is_left_alone(caplog, tmp_path, model):
    for number, (form, is_told) in enumerate([(TEXT, False), (CHAT, True), (None, True)]):
        known = {} if form is None else {PROMPT_FORM: form}
        state = STATE.model_copy(update={"fingerprint": known})
        config = tree_of(
            write_step(model, tmp_path / str(number), state=state), rows(tmp_path, "rows", "hi")
        )
        assert told(caplog, config, model, UNUSED) == (TEXT, is_told), form


def test_plain_prompts_of_evaluation_beside_chats_are_told(caplog, tmp_path, model):
    for train, prompt, is_told in (
        (said("u: hi"), "hi", True),
        (RENDERED_PROMPT, "hi", True),
        (said("u: hi"), said("u: ho"), False),
        (said("u: hi"), RENDERED_PROMPT, False),
    ):
        sets = {"held_out": {"source": rows(tmp_path, "held_out", prompt).model_dump()}}
        config = tree_of(
            model, rows(tmp_path, "train", train), evaluation={"every": 1, "sets": sets}
        )
        words = "evaluation.sets: held_out: prompts are plain texts"
        assert told(caplog, config, model, words)[1] is is_told
