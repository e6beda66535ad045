"""Pairs of answers, and a model that answers and compares."""

import torch

from benchmarks.preference_pairs import Reader, pairs
from verl_hpc.testing.tiny import make_tiny_model

PROMPTS = ["abcd ->", "abcdef ->", "dcba ->"]


def test_a_pair_is_a_right_and_a_wrong_answer_to_a_prompt_that_got_both():
    rows = [{"prompt": f"{word} ->", "answer": word[::-1]} for word in ("abc", "xyz", "klm", "opq")]
    given = [["cba", "cab", "bca"], ["zyx", "zyx"], ["mlk ", " "], ["poq", "pqo"]]
    assert pairs(rows, given) == [{"prompt": "abc ->", "chosen": "cba", "rejected": "cab"}]


def test_answers_are_in_order_and_samples_follow_their_seed(tmp_path):
    model = Reader(make_tiny_model(tmp_path / "model"))
    greedy = model.answers(PROMPTS)
    assert greedy == [model.answers([prompt])[0] for prompt in PROMPTS]
    first, again, other = (model.answers(PROMPTS, 3, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert [len(texts) for texts in first] == [3, 3, 3]


def test_the_log_prob_of_an_answer_is_that_of_its_tokens_and_the_end(tmp_path):
    model = Reader(make_tiny_model(tmp_path / "model"))
    ids = torch.tensor([model.tokenizer("ab ->ba")["input_ids"] + [model.tokenizer.eos_token_id]])
    with torch.no_grad():
        log_probs = model.decoder(ids).logits[0].log_softmax(-1)
    by_hand = sum(float(log_probs[at - 1, ids[0, at]]) for at in range(5, 8))
    assert abs(model.log_prob("ab ->", "ba") - by_hand) < 1e-5
