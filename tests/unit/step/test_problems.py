"""Rows that a run could not use, found when its data are opened."""

import json
import time
from types import SimpleNamespace

import pytest

from verl_hpc.config.load import parse_config
from verl_hpc.data import chat_template, lengths
from verl_hpc.data.prompts import Encoder
from verl_hpc.errors import DataError, ModelError
from verl_hpc.step.problems import open_problems

GOOD = {"prompt": "1?", "data_source": "openai/gsm8k", "answer": "1"}
LONG = GOOD | {"prompt": "2" * 21}
AT_START = {"at_start": True}


class ByteTokenizer:
    """One token a byte, and three for each message of a chat."""

    chat_template = "x"
    eos_token_id = None
    encoded = 0

    def encode(self, text, add_special_tokens=True):
        self.encoded += 1
        return list(text.encode())

    def apply_chat_template(self, messages, **_):
        return "".join(f"\0\0\0{m['content']}" for m in messages)


@pytest.fixture
def opened(tmp_path):
    """What `open_problems` says to rows of training and of evaluation."""

    def make(train, evaluation=(), tokenizer=None, evaluate=AT_START, **settings):
        tree = {"name": "r", "recipe": "rl", "steps": 1, "model": {"path": "m"}, "data": {}}
        tree |= {"evaluation": evaluate} if evaluation else {}
        for name, rows in (("train", train), ("evaluation", evaluation)):
            path = tmp_path / f"{name}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            if rows:
                tree["data"][name] = {"kind": "files", "paths": [str(path)]}
        tree["rollout"] = {"num_samples": 2, "max_prompt_tokens": 20} | settings.pop("rollout", {})
        tree["data"] |= settings.pop("data", {})
        alone = SimpleNamespace(rank=0, together=lambda make: make(), broadcast=lambda item: item)
        session = SimpleNamespace(control=alone, world=alone)
        config = parse_config(tree | settings)
        encoder = Encoder.from_config(tokenizer or ByteTokenizer(), config.data)
        return open_problems(session, config, encoder)

    return make


def test_a_prompt_that_is_too_long_is_found_at_the_start(opened):
    assert len(opened([GOOD]).train) == 1
    with pytest.raises(DataError, match=r"train\.jsonl line 2: the prompt has 21 tokens, rollout"):
        opened([GOOD, LONG])
    assert opened([GOOD, LONG], data={"check": "drawn"})
    assert opened([GOOD, LONG], rollout={"overlong_prompt": "drop"})
    with pytest.raises(DataError, match=r"evaluation\.jsonl line 1: the prompt has 21 tokens"):
        opened([GOOD], [LONG])


def test_the_template_counts(opened):
    chat = [{"role": "user", "content": "3" * 18}]
    with pytest.raises(DataError, match=r"line 1: the prompt has 21 tokens"):
        opened([GOOD | {"prompt": chat}])
    assert opened([GOOD | {"prompt": chat}], data={"chat": "never"})


def test_only_long_texts_are_encoded_and_not_too_many_of_them(opened, monkeypatch, caplog):
    tokenizer = ByteTokenizer()
    opened([GOOD | {"prompt": f"{i}?"} for i in range(50)], tokenizer=tokenizer)
    assert tokenizer.encoded == 1  # what a template adds
    monkeypatch.setattr(lengths, "MOST_BYTES", 40)
    fits = GOOD | {"prompt": "4" * 20}
    assert opened([fits, fits, LONG])
    assert "the tokens of 4e-05 MB of long prompts were counted; others are when" in caplog.text


def test_a_template_that_is_too_long_by_itself_is_not_the_rows_fault(opened, monkeypatch):
    tokenizer = ByteTokenizer()
    monkeypatch.setattr(
        ByteTokenizer, "apply_chat_template", lambda _, m, **more: f"{m[0]['content']:9>21}"
    )
    with pytest.raises(ModelError, match="line 1: of a prompt of one letter .* makes 21 tokens"):
        opened([GOOD] * 1000, tokenizer=tokenizer, data={"chat": "always"})
    assert tokenizer.encoded == 1


def test_of_evaluation_only_what_is_asked_is_looked_at(opened):
    strange = GOOD | {"prompt": "5?", "data_source": "sums"}
    one = AT_START | {"max_prompts": 1}
    assert opened([GOOD | {"prompt": "0?"}], [GOOD, LONG, strange], evaluate=one)


def test_rows_that_leave_training_may_be_of_no_use_to_it(opened):
    strange = LONG | {"data_source": "sums"}
    assert len(opened([GOOD, strange], [LONG], data={"overlap": "drop"}, evaluate={}).train) == 1
    with pytest.raises(DataError, match=r"train\.jsonl line 2: data_source = 'sums'"):
        opened([GOOD, strange], [GOOD | {"prompt": "7?"}], data={"overlap": "drop"})


def test_a_template_may_need_more_of_a_message_than_its_text(opened, monkeypatch):
    def render(self, messages, **_):
        if len(messages[0].get("id", "")) != 9:
            raise ValueError("an id has 9 letters")
        return messages[0]["content"] + messages[0]["id"]

    monkeypatch.setattr(ByteTokenizer, "apply_chat_template", render)
    message = {"role": "tool", "content": "8?", "id": "abcdefghi"}
    assert opened([GOOD | {"prompt": [message]}])
    with pytest.raises(DataError, match="the prompt has 21 tokens"):
        opened([GOOD | {"prompt": [message | {"content": "8" * 12}]}])


def test_only_auto_needs_a_text_for_the_origin_of_a_row(opened):
    number = GOOD | {"data_source": 5}
    with pytest.raises(DataError, match=r"train\.jsonl line 1: data_source = 5 is not text"):
        opened([number])
    assert opened([number], reward={"function": "exact_match"}).train[0].data_source == 5


def test_a_row_that_no_reward_function_scores_is_found_at_the_start(opened):
    strange = GOOD | {"prompt": "5?", "data_source": "sums"}
    with pytest.raises(DataError, match=r"train\.jsonl line 2: data_source = 'sums' has no reward"):
        opened([GOOD, strange])
    with pytest.raises(DataError, match=r"evaluation\.jsonl line 1: data_source = 'sums'"):
        opened([GOOD], [strange])
    assert opened([GOOD, strange], reward={"function": "exact_match"})
    assert opened([GOOD, strange], recipe="sft")


def test_rows_of_a_run_with_tasks_are_read_and_scored_as_a_task_does(opened, tmp_path):
    strange = GOOD | {"data_source": "sums"}
    tasks = {"answers": {"recipe": "sft"}, "sums": {"reward": {"function": "exact_match"}}}
    assert opened([strange], tasks=tasks)
    said = [{"role": "user", "content": "5?"}, {"role": "assistant", "content": "6"}]
    train = {"kind": "files", "paths": [f"{tmp_path}/train.jsonl"], "answer_key": "said"}
    assert opened([{"said": said}], data={"train": train}, recipe="sft", tasks={"answers": {}})


def test_held_out_problems_of_a_task_are_encoded_too(opened):
    task = {"kind": "reasoning_gym", "task": "spell_backward", "size": 5, "template": "6" * 20}
    task["template"] += "{question}"
    data = {"train": task | {"split": "train"}, "evaluation": task | {"split": "evaluation"}}
    with pytest.raises(DataError, match=r"5 rows cannot .*\n.*spell_backward row 0: the prompt"):
        opened([GOOD], [GOOD], data=data)


def test_a_template_that_does_not_end_is_asked_once(opened, monkeypatch):
    def wait(self, messages, **_):
        time.sleep(60)

    monkeypatch.setattr(chat_template, "TEMPLATE_S", 0.05)
    monkeypatch.setattr(ByteTokenizer, "apply_chat_template", wait)
    with pytest.raises(ModelError, match=r"line 1: the tokenizer's chat template did not end"):
        opened([GOOD] * 1000, data={"chat": "always"})
