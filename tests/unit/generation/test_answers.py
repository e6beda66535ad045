"""What reward functions get to know of a response: what has ended it."""

from verl_hpc.data.problem import Problem
from verl_hpc.generation.answers import Answer, stop_reason

STOP = ("</a>", "<|im_start|>x", "\U0001f600")
CASES = [
    ("so", "<|im_end|>", ()),
    ("so", "<|im_end|>", STOP),
    ("so", "<|im_start|>", ()),
    ("so <a>7", "</a>", STOP),
    ("so", "<|im_start|>x", STOP),
    ("\u00e9\u00e9 so ", "\U0001f600", STOP),
    ("</a> is what I write, </a", ">", ()),
    # A turn ended with </a> before, and this one with its token.
    ("</a>\nseen\n and so", "<|im_end|>", STOP),
]


def test_a_response_is_ended_by_its_length_a_string_or_a_token(tokenizer):
    for text, end, stop in CASES:
        tokens = tokenizer.encode(text + end, add_special_tokens=False)
        assert stop_reason(tokenizer, tokens, False, stop) == end
        # One that is cut is never called complete, also where it ends as others do.
        assert stop_reason(tokenizer, tokens, True, stop) == "length"


def test_a_token_may_go_on_behind_the_string_that_it_completes():
    class Words:
        def decode(self, tokens):
            return "".join(["<|end|>", "so ", "EN", "D of", " it"][token] for token in tokens)

    assert stop_reason(Words(), [1, 2, 3], False, ["END"]) == "END"
    assert stop_reason(Words(), [1, 2, 3, 0], False, ["END"]) == "<|end|>"
    assert stop_reason(Words(), [0], False, ["END"]) == "<|end|>"
    assert stop_reason(Words(), [], False, ["END"]) == ""


def test_a_reward_function_is_told(tokenizer):
    tokens = (*tokenizer.encode("7</a>", add_special_tokens=False),)
    for truncated, reason in ((False, "</a>"), (True, "length")):
        answer = Answer(Problem(0, "?"), tokens, (1,) * len(tokens), truncated)
        request = answer.request(tokenizer, STOP)
        assert (request.stop_reason, request.truncated) == (reason, truncated)
