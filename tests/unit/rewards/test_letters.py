"""Letters that responses answer: option by option, denied, taken back, in boxes."""

import pytest

from verl_hpc.rewards.letters import extract_letter

CITIES = {"A": "Paris", "B": "Rome", "C": "Oslo", "D": "New York"}
RESPONSES = {
    "B": [
        ("Answer choice A suggests X. Answer choice B suggests Y. Answer choice C suggests "
        "Z.\n\nB is the best answer."),
        "The answer is A.\n\nHmm, let me check. Actually, I made a mistake. The correct one is B.",
        "The correct answer here is B.", "The correct answer among the options is B.",
        "The best answer from the options provided is B.",
        "There is no net force which means that the answer is B.", "The answer is 'B'.",
        "{'answer': 'B'}", "**Answer:**\n\n✅ **B. Rome**", "I choose B.", "We would go with B.",
        "I'll pick B", "Choose B.", "I am going with B.", "The answer should be B", "Answer - B",
        "answer B", "The answer is clearly B.", "The answer is most likely B",
        "the answer probably is B", "My answer to this question is B.",
        "The correct answer for this question is B",
        "Therefore the answer to the question is option B.",
        "The answer is B. B is correct because of Rome.", "The answer would be B",
        "### Final Answer\n**B. Rome**", "## Answer\nB) Rome", "**Final Answer**\n\nB. Rome",
        "**Answer**\n\nB. Rome\n\n**Explanation**\n\nA. is wrong because.",
        "The correct answer is **Option B**.", 'The correct answer is "Option B".', "My pick: B",
    ],
    "C": ["That is why the answer is C."],
    None: [
        "The answer is A.\n\nHowever, upon reflection, B is correct.",
        "The answer is A.\n\nHowever, B is correct.", r"The answer is not \boxed{A}.",
        r"\boxed{A} is wrong.", r"It can't be \boxed{A}.",
        r"If it is \boxed{A}, then Paris is in Italy.",
        r"The answer is $\boxed{A}$ or $\boxed{B}$.", r"The answer is $\boxed{A}$ and $\boxed{B}$.",
        r"I am torn between \boxed{A} and \boxed{B}.", r"$\boxed{A}$. Wait, that is wrong.",
        "Let's say the answer is A.", "While A is correct, D is more comprehensive.",
        "A is correct, but D is more complete.", "The answer is A. Alternatively, B.",
        "The answer is A (possibly C).", "Answer: A (wait, this should be B)",
        "Vitamin D is correct.",
    ],
}  # fmt: skip
YES = {"A": "Yes", "B": "No"}
TRUE = {"A": "True, True", "B": "False, False", "C": "True, False", "D": "False, True"}
WRONG = {"A": "Wrong, Wrong", "B": "Wrong, Not wrong"}
NUMBERS = {"A": "4", "B": "-4", "C": "8", "D": "-8"}
UNKNOWN = dict.fromkeys("ABCD", "")
AMONG = [
    ("The answer is (B) No.", YES, "B"),
    ("Answer: B) No", UNKNOWN, "B"),
    ("The answer is (B) -4.", NUMBERS, "B"),
    ("**B) -4**", NUMBERS, "B"),
    ("The answer is (A) Yes. No wait, B.", YES, None),
    ("The answer is (A) $-4$.", NUMBERS, None),
]


@pytest.mark.parametrize("letter", RESPONSES)
def test_the_letter_of_a_response(letter):
    assert not [text for text in RESPONSES[letter] if extract_letter(text, CITIES) != letter]


@pytest.mark.parametrize(("response", "choices", "letter"), AMONG)
def test_words_of_a_choice_that_deny_or_begin_with_a_sign(response, choices, letter):
    assert extract_letter(response, choices) == letter
