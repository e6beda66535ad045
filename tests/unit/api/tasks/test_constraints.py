"""Constraints: which tokens may come next."""

import re

import pytest
import torch

from tests.generated import generated
from verl_hpc.api.tasks.constraints import constraint_of
from verl_hpc.api.tasks.settings import ConstraintConfig
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.rollout.module import ModuleRollout
from verl_hpc.rollout.protocol import Sampling

CPU = torch.device("cpu")


def made(given, tokenizer):
    return constraint_of(given, tokenizer, CPU, [0], "c")


def answers(model, constraint, tokenizer, count=12, limit=8):
    engine = ModuleRollout(model, [0], RolloutConfig(engine="hf"), {}, ShardMap({}, []), constraint)
    prompts = [tokenizer.encode("a" * (1 + i % 3)) for i in range(count)]
    found = generated(engine, prompts, Sampling(limit), list(range(count)))
    return [(tokenizer.decode(r.tokens, skip_special_tokens=True), r) for r in found]


def test_choices_end_where_a_text_does(tokenizer, hf_model):
    constraint = made(["do", "dog", "élan"], tokenizer)
    first = constraint([[5]], [[]])[0]
    assert {tokenizer.decode([i]) for i in first} >= {"d"}
    (after_do,) = constraint([[5]], [tokenizer.encode("do")])
    assert after_do == {0, *tokenizer.encode("g")}
    texts = {text for text, _ in answers(hf_model, constraint, tokenizer, 40)}
    assert texts == {"do", "dog", "élan"}


def test_a_regular_expression_holds(tokenizer, hf_model):
    constraint = made("[0-9]{2}(a|é)+", tokenizer)
    for text, response in answers(hf_model, constraint, tokenizer):
        whole = response.finish_reason == "stop"
        assert re.fullmatch("[0-9]{2}(a|é)+" if whole else r"[0-9]{2}(a|é|\ufffd)*", text), text
        assert response.allowed.shape == (len(response.tokens), -(-259 // 8))


def test_log_probs_are_of_what_is_allowed(tokenizer, hf_model):
    def one_or_end(row, ids):
        return [70, 0] if ids[-1] == 70 else [70]

    for _, response in answers(hf_model, made(one_or_end, tokenizer), tokenizer):
        assert response.tokens[0] == 70 and response.log_probs[0] == 0.0
        assert set(response.tokens) <= {70, 0}


def test_a_model_allows_what_it_finds_likely(tokenizer, hf_model):
    import copy

    judge = copy.deepcopy(hf_model)
    with torch.no_grad():  # one token is far likelier than the others, whatever comes before
        for p in judge.parameters():
            p.zero_()
    (all_alike,) = made(judge, tokenizer)([[5, 6]], [[7]])
    assert len(all_alike) == 259
    strict = constraint_of(judge, tokenizer, CPU, [0], "c")
    strict._least = 0.5
    assert len(strict([[5]], [[7]])[0]) == 259  # the likeliest are always allowed
    biased = torch.nn.Module()
    biased.weight = torch.nn.Parameter(torch.zeros(1))
    logits = torch.zeros(259)
    logits[42] = 20.0
    biased.forward = lambda ids, attention_mask: logits.expand(*ids.shape, 259)
    assert made(biased, tokenizer)([[5], [5, 6]], [[7], []]) == [[42], [42]]


def test_a_users_generate_that_keeps_to_it_may_give_tokens_alone(tokenizer, hf_model):
    class Own(torch.nn.Module):
        passes_on = True

        def __init__(self):
            super().__init__()
            self.inner = hf_model

        def forward(self, ids, attention_mask=None):
            return self.inner(ids, attention_mask=attention_mask)

        def generate(self, input_ids, **kwargs):
            kwargs.pop("return_dict_in_generate")
            if not self.passes_on:
                kwargs.pop("logits_processor")
            return self.inner.generate(input_ids, **kwargs)

    own, constraint = Own(), made(["do", "dog"], tokenizer)
    expected = answers(hf_model, constraint, tokenizer)
    answered = answers(own, constraint, tokenizer)
    assert [text for text, _ in answered] == [text for text, _ in expected]
    for (_, one), (_, other) in zip(answered, expected, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
    own.passes_on = False
    with pytest.raises(ModelError, match="hand logits_processor"):
        answers(own, constraint, tokenizer)


def test_a_constraint_that_allows_nothing_is_named(tokenizer, hf_model):
    for allowed, words in (([], "allows no token"), ([999], "token 999 of a vocabulary of 259")):
        with pytest.raises(ModelError, match=words):
            answers(hf_model, made(lambda row, ids, a=allowed: a, tokenizer), tokenizer)


def test_what_is_no_constraint_is_named(tokenizer):
    with pytest.raises(ConfigError, match="c is int; expected texts"):
        made(7, tokenizer)
    with pytest.raises(ConfigError, match=r"c.regex = '\[': "):
        made("[", tokenizer)
    with pytest.raises(ModelError, match="no such directory"):
        made(ConstraintConfig(model="/nowhere/at/all"), tokenizer)


def test_a_task_of_a_trainer_is_held_to_a_model_by_name(
    make_trainer, tokenizer, hf_model, tmp_path
):
    """The constraint's model is on the task's own device, and allows the tokens it finds likely."""
    with torch.no_grad():  # of few tokens, and others for each text
        hf_model.lm_head.weight.normal_(generator=torch.Generator().manual_seed(0))
    hf_model.save_pretrained(tmp_path / "judge")
    tokenizer.save_pretrained(tmp_path / "judge")
    constraint = {"model": str(tmp_path / "judge"), "min_probability": 0.02}
    trainer = make_trainer(("pick",), pick={"constraint": constraint, "device": "cpu"})
    (metrics,) = trainer.train(1)
    assert metrics["task/pick/training/rollout_log_probs_diff_max"] < 1e-5
    prompt = tokenizer.encode("pick: ")
    rollout = trainer.tasks["pick"].run.rollout.here
    allowed = set()
    for response in generated(rollout, [prompt] * 20, Sampling(4), list(range(20))):
        with torch.no_grad():
            text = torch.tensor([[*prompt, *response.tokens]])
            chances = hf_model(text).logits[0, len(prompt) - 1 : -1].softmax(-1)
        for number, (token, chance) in enumerate(zip(response.tokens, chances, strict=True)):
            assert chance[token] >= 0.02 or chance[token] == chance.max()
            allowed |= {token} if number == 0 else set()
    assert 1 < len(allowed) <= int((chances[0] >= 0.02).sum())
