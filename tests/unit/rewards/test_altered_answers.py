r"""Answers in which a few words or signs change what is said, and their right scores.

They were written to mislead the scorers: a number that what stands behind it makes another one, a
supposition, a second answer, a verdict that a judge quotes, a fence with something behind it.
"""

import asyncio
from functools import wraps

import pytest

from verl_hpc.rewards.awaiting import is_async
from verl_hpc.rewards.code_blocks import program_of
from verl_hpc.rewards.code_tests import CallCase, read_cases
from verl_hpc.rewards.functions.gsm8k import compute_score as number
from verl_hpc.rewards.functions.math import compute_score as formula
from verl_hpc.rewards.functions.multiple_choice import Options as MultipleChoiceOptions
from verl_hpc.rewards.functions.multiple_choice import make
from verl_hpc.rewards.verl_imports import default_compute_score

CHOICES = {"choices": ["Paris", "Rome", "15", "Oslo"]}
MARKED = {
    "7": [
        "5+2=<<5+2=7>>7", "7<|im_end|>", "7, not 8",
    ],
    "9": ["7 #### 9"],
    None: [
        "7 million", r"7\times10^3", "7 = 8", "7! = 5040", "7\u20138", "7; 8", "7 & 8", "7 -> 8",
        "7? No, 8", "7, wait, 8", "x = 7 or x = 8", "7-million", "7 and a half",
        "7 boys and 3 girls", "7 isn't right", "7 (wrong)", "7 hundred", "7\u00b2", "7**2", "7, 8",
        "7 to 8", "7 times 10", r"7 \times 10", "7x", "7M", "$7B", "7..5", "7_234",
        "7 hours 30 minutes", "7 is wrong", "7 < 8",
    ],
}  # fmt: skip


def test_what_makes_a_number_another_one():
    for truth, lines in MARKED.items():
        for line in lines:
            right = [n for n in ("7", "8", "9") if number(f"#### {line}", n) == 1.0]
            assert right == ([truth] if truth else []), line


@pytest.mark.parametrize(
    ("answer", "truth", "score"),
    [
        *((rf"5 \text{{ {words}}}", "5", 0.0) for words in (
            "squared", "factorial", "halves", "point two", "times ten", "or more", "is wrong",
            "apples and } 6 \\text{ pears", "feet } 6 \\text{ inches",
        )),
        (r"5 \text{ apples}", "5", 1.0),
        (r"5 \text{ times}", "5", 1.0),
        ("1 2 3", "6", 0.0),
        ("--5", "-5", 0.0),
        (r"12 \text{ cm}^2", r"12 \text{ cm}^3", 0.0),
        (r"12 \text{ cm}^2", r"12 \text{ square centimeters}", 1.0),
        (r"60 \text{ km/h}", r"60 \text{ km}", 0.0),
        (r"60 \text{ km/h}", r"60 \text{ kilometers per hour}", 1.0),
        (r"12^\circ \text{F}", r"12^\circ \text{C}", 0.0),
        (r"5 \text{ PM}", r"5 \text{ AM}", 0.0),
        (r"5 \text{ p.m.}", "5:00 PM", 1.0),
        (r"+\infty", r"\infty", 1.0),
        (r"\log_2 3", r"\frac{\ln 3}{\ln 2}", 1.0),
        (r"5 \text{ million}", "5", 0.0),
        (r"1.5 \text{ million}", "1,500,000", 1.0),
        ("(1,000)", "(1,0)", 0.0),
        ("32, 349", "32,349", 0.0),
        ("10, 20", "20,10", 1.0),
        ("x=5=6", "6", 0.0),
        ("x=2+4=6", "6", 1.0),
        (r"\$12", r"12 \text{ cents}", 0.0),
        (r"\$12", r"12 \text{ dollars}", 1.0),
        (r"\$12.50", "12.5", 1.0),
        (r"\$15,\!000", "15000", 1.0),
        ("0.333...", r"\frac{1}{3}", 1.0),
        (r"0.1666\ldots", r"\frac{1}{6}", 1.0),
        ("0.142857142857...", r"\frac{1}{7}", 1.0),
        ("0.33...", r"\frac{1}{3}", 0.0),
        ("3.14159...", r"\pi", 0.0),
    ],
)  # fmt: skip
def test_a_box_with_words(answer, truth, score):
    assert formula(rf"\boxed{{{answer}}}", truth, timeout_s=60.0) == score


RESPONSES = {
    0.0: [
        "Suppose the answer is 5. Then 2 = 3.", "The answer is 5? No. It is 6.",
        "Let us check whether the answer is 5. It is not.", "The answer is 5, or maybe 6",
        "The answer is 5, no, 6.", r"It is not \boxed{5}.", r"It isn't $\boxed{5}$.",
        r"\boxed{5} is wrong; I have no answer.", r"If it were \boxed{5}, then 1 = 2; I give up.",
        r"The answer is \boxed{4} or \boxed{5}", "<answer>4</answer><answer></answer>", "<answer>5",
    ],
    1.0: [
        r"It is not 4 but $\boxed{5}$.", r"It is not 4. Or is it? No: \boxed{5}",
        "So 30.\n\n<answer>5</answer>", r"<think>4?</think><answer>\frac{10}{2}</answer>",
    ],
}  # fmt: skip


@pytest.mark.parametrize("score", RESPONSES)
def test_an_answer_that_is_given_is_read_and_a_supposition_is_none(score):
    wrong = [text for text in RESPONSES[score] if formula(text, "5", timeout_s=60.0) != score]
    assert not wrong
    assert formula("<answer>54</answer>", r"\boxed{54}", timeout_s=60.0) == 1.0


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("Answer: D. Explanation: Statement A is correct.", "D"),
        ("The answer is D because statement A is correct.", "D"),
        (r"The answer is \(B\).", "B"),
        ("The answer is \u201cB\u201d.", "B"),
        ("The correct answer is -15.", None),
        ("Suppose the answer is A. Then Paris is in Italy.", None),
        ("The answer is A, if Italy is in France.", None),
        ("Answer: A; B", None),
        ("Answer: (A) (B)", None),
        (r"\boxed{A: Rome}", None),
        ("B is correct for this question.", "B"),
        ("I would say B.", "B"),
        ("B. Rome\n\nIt is the capital of Italy.", "B"),
        ("B. Rome is wrong.\n\nIt is in Italy.", None),
        *((response, None) for response in (
            "The answer is A. Wait, actually it's B.", "Answer: A. Incorrect.", "Answer: A (wrong)",
            "A\n\nActually B.", "It is (A). No, wrong.", "The least likely answer is A.",
            "I doubt the answer is A.", "They claim the answer is A.",
            "Some claim the answer is A.", "Answer: A or maybe B", "Answer: A, and B",
            "Answer: A|B", "Answer: A -> B", '{"answer": ["A", "B"]}', r"\boxed{A. x B. y}",
            r"\boxed{A. B. C. D.}", "I doubt that B is correct.",
            "B is correct, but only if it rains.",
            "A is correct. B is correct. C is correct. D is wrong.",
            "B. Rome\n\nThis is wrong. It is Paris.", "(B) is impossible", "(B) can be ruled out",
            "We exclude (B).", "Perhaps (B)?", "The answer is B. Paris", "The answer is Paris (B)",
            "The answer is Rome, option A.", "<answer>B. Paris</answer>",
        )),
        ("The answer is A. Wait, no. The answer is B.", "B"),
        ("B is correct because A is wrong.", "B"),
        ("B is correct as Rome is in Italy.", "B"),
        ('```json\n{"why": "A is wrong", "answer": "Rome"}\n```', "B"),
        ("So the correct option is B: Rome", "B"),
        ("The answer is Rome rather than Paris.", "B"),
        ("The answer is not 12 but 15.", "C"),
        ("The answer is not A but B.", "B"),
    ],
)  # fmt: skip
def test_letters(response, letter):
    score = make(MultipleChoiceOptions())
    right = [x for x in "ABCD" if score(response, x, row=CHOICES)["score"] == 1.0]
    assert right == ([letter] if letter else [])


@pytest.mark.parametrize("behind", ["</answer>", ".", "**", "<|im_end|>"])
def test_a_fence_with_something_behind_it_ends_a_program(behind):
    program = program_of(f"<answer>```python\nprint(1)\n```{behind}\nThat is all.")
    assert (program.text, program.closed) == ("print(1)\n", True)


def test_a_name_that_is_bound_is_defined():
    for line in ("double = lambda x: 2 * x", "double = other"):
        text = f"```python\n{line}\n```\nSo:\n```python\nprint(double(4))\n```"
        assert program_of(text, {"double"}).text == f"{line}\n"


def test_results_are_texts_where_arguments_are_no_json():
    for argument, result in (([5], "101"), ("5", '"101"')):
        (case,) = read_cases({"fn_name": "f", "inputs": [argument], "outputs": [result]})
        assert isinstance(case, CallCase) and case.expected == "101"


def test_verls_scorer_reads_no_other_arguments():
    given = {"response_ids": [1], "row": {}}
    assert default_compute_score("openai/gsm8k", "#### 7", "7", None, **given)["score"] == 1.0


def test_a_decorated_coroutine_is_awaited_with_others():
    async def score(solution_str):
        await asyncio.sleep(0)

    @wraps(score)
    def timed(*given, **words):
        return score(*given, **words)

    assert is_async(timed)
