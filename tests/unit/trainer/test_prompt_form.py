"""A chat template that is there and not applied is told at the start."""

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


def told(caplog, tmp_path, path, prompt, model, chat="auto"):
    """How a prompt is read, and whether the template is told of."""
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": prompt}])
    data = {"train": files(rows).model_dump(), "chat": chat}
    tree = {"name": "r", "recipe": "rl", "steps": 1, "model": {"path": str(path)}, "data": data}
    config = parse_config(tree | {"rollout": {"num_samples": 2}})
    encoder = Encoder.from_config(load_tokenizer(model), config.data)
    form = prompt_form(encoder, open_source(config.data.train))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        say_what_is_unused(config, encoder, form, {})
    return form, "data.chat=always applies it" in caplog.text


def test_plain_prompts_of_a_model_with_a_template_are_told(caplog, tmp_path, model):
    for prompt, chat, expected in (
        ("hi", "auto", (TEXT, True)),
        ("hi", "never", (TEXT, False)),
        ("hi", "always", (CHAT, False)),
        (said("u: hi"), "auto", (CHAT, False)),
        (RENDERED_PROMPT, "auto", (RENDERED, False)),
    ):
        assert told(caplog, tmp_path, model, prompt, model, chat) == expected, (prompt, chat)


def test_a_model_that_was_trained_in_the_same_way_is_left_alone(caplog, tmp_path, model):
    for number, (form, is_told) in enumerate([(TEXT, False), (CHAT, True), (None, True)]):
        known = {} if form is None else {PROMPT_FORM: form}
        state = STATE.model_copy(update={"fingerprint": known})
        step = write_step(model, tmp_path / str(number), state=state)
        assert told(caplog, tmp_path, step, "hi", model) == (TEXT, is_told), form


def test_plain_prompts_of_evaluation_beside_chats_are_told(caplog, tmp_path, model):
    for number, (train, prompt, is_told) in enumerate(
        [
            (said("u: hi"), "hi", True),
            (RENDERED_PROMPT, "hi", True),
            (said("u: hi"), said("u: ho"), False),
            (said("u: hi"), RENDERED_PROMPT, False),
        ]
    ):
        rows = {
            name: files(write_jsonl(tmp_path / f"{number}{name}.jsonl", [{"prompt": text}]))
            for name, text in (("train", train), ("held_out", prompt))
        }
        tree = {
            "name": "r",
            "recipe": "rl",
            "steps": 1,
            "model": {"path": str(model)},
            "data": {"train": rows["train"].model_dump()},
            "rollout": {"num_samples": 2},
            "evaluation": {
                "every": 1,
                "sets": {"held_out": {"source": rows["held_out"].model_dump()}},
            },
        }
        config = parse_config(tree)
        encoder = Encoder.from_config(load_tokenizer(model), config.data)
        form = prompt_form(encoder, open_source(config.data.train))
        sets = {n: open_source(s.source) for n, s in config.evaluation_sets.items()}
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            say_what_is_unused(config, encoder, form, sets)
        assert ("evaluation.sets: held_out: prompts are plain texts" in caplog.text) == is_told
