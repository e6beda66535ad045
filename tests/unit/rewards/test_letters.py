"""Which letter a response answers: option by option, denied, taken back, in boxes."""

import pytest

from verl_hpc.rewards.letters import extract_letter

CITIES = {"A": "Paris", "B": "Rome", "C": "Oslo", "D": "New York"}
RESPONSES = [
    (
        (
            "Answer choice A: Paris is in France.\nAnswer choice B: Rome is in Italy.\n"
            "Answer choice C: Oslo is in Norway.\nAnswer choice D: it is a city of the US.\n\n"
            "Therefore, B is correct."
        ),
        "B",
    ),
    (
        (
            "- Answer choice (A) Paris is wrong.\n- Answer choice (B) Rome is right.\n"
            "- Answer choice (C) Oslo is wrong.\n- Answer choice (D) New York is wrong.\n\n"
            "Option B is correct."
        ),
        "B",
    ),
    ("Answer A: France.\nAnswer B: Italy.\nAnswer D: US.\n\nHence B is right.", "B"),
    (
        (
            "Answer choice A suggests X. Answer choice B suggests Y. Answer choice C "
            "suggests Z.\n\nB is the best answer."
        ),
        "B",
    ),
    ("Answer A: Paris is in France, so this is wrong.\nAnswer B: Rome is in Italy.", None),
    ("The answer is A.\n\nHowever, upon reflection, B is correct.", None),
    ("The answer is A.\n\nHowever, B is correct.", None),
    ("The answer is A. No, B is right.", None),
    (
        (
            "The answer is A.\n\n"
            "Hmm, let me double check. Actually, I made a mistake. The correct one is B."
        ),
        "B",
    ),
    ("First I thought to go with A. However, B is correct.", "B"),
    ("I could go with A, but B is safer. B is correct.", "B"),
    ("The answer is not \\boxed{A}.", None),
    ("\\boxed{A} is wrong.", None),
    ("It can't be \\boxed{A}.", None),
    ("If it is \\boxed{A}, then Paris is in Italy.", None),
    ("The answer is $\\boxed{A}$ or $\\boxed{B}$.", None),
    ("The answer is $\\boxed{A}$ and $\\boxed{B}$.", None),
    ("I am torn between \\boxed{A} and \\boxed{B}.", None),
    ("$\\boxed{A}$. Wait, that is wrong.", None),
    ("A common mistake is to choose A.", None),
    ("You might be tempted to choose A.", None),
    ("Many test-takers select A.", None),
    ("When you choose A, the result is wrong.", None),
    ("An inexperienced doctor may choose A.", None),
    ("Let's say the answer is A.", None),
    ("While A is correct, D is more comprehensive.", None),
    ("A is correct, but D is more complete.", None),
    ("The answer is A. Alternatively, B.", None),
    ("The answer is A (possibly C).", None),
    ("Answer: A (wait, this should be B)", None),
    ("The correct answer here is B.", "B"),
    ("The correct answer among the options is B.", "B"),
    ("The best answer from the options provided is B.", "B"),
    ("That is why the answer is C.", "C"),
    ("There is no net force which means that the answer is B.", "B"),
    ("The answer is 'B'.", "B"),
    ("{'answer': 'B'}", "B"),
    ("**Answer:**\n\n✅ **B. Rome**", "B"),
    ("I choose B.", "B"),
    ("We would go with B.", "B"),
    ("I'll pick B", "B"),
    ("Choose B.", "B"),
    ("So I select (B).", "B"),
    ("I am going with B.", "B"),
    ("The answer should be B", "B"),
    ("Answer - B", "B"),
    ("answer B", "B"),
    ("Answer (B)", "B"),
    ("The answer must be (B) Rome.", "B"),
    ("The correct choice: B", "B"),
    ("The answer, B, is right", None),
    ("The answer is clearly B.", "B"),
    ("The answer is most likely B", "B"),
    ("the answer probably is B", "B"),
    ("**Final Answer**: B", "B"),
    ("Final Answer: **B**", "B"),
    ("Answer: D. Statement A is correct.", "D"),
    ("My answer to this question is B.", "B"),
    ("The best option is B.", "B"),
    ("The correct answer for this question is B", "B"),
    ("Therefore the answer to the question is option B.", "B"),
    ("B is correct. The answer is B", "B"),
    ("The answer is B. B is correct because of Rome.", "B"),
    ("ANSWER IS B", "B"),
    ("The answer would be B", "B"),
    ("### Final Answer\n**B. Rome**", "B"),
    ("## Answer\nB) Rome", "B"),
    ("**Final Answer**\n\nB. Rome", "B"),
    ("**Answer**\n\nB. Rome\n\n**Explanation**\n\nA. is wrong because.", "B"),
    ("The correct answer is **Option B**.", "B"),
    ('The correct answer is "Option B".', "B"),
    ("My pick: B", "B"),
    ("Vitamin D is correct.", None),
]
YES = {"A": "Yes", "B": "No"}
TRUE = {"A": "True, True", "B": "False, False", "C": "True, False", "D": "False, True"}
WRONG = {"A": "Wrong, Wrong", "B": "Wrong, Not wrong"}
NUMBERS = {"A": "4", "B": "-4", "C": "8", "D": "-8"}
UNKNOWN = dict.fromkeys("ABCD", "")
AMONG = [
    ("The answer is (B) No.", YES, "B"),
    ("Answer: (B) No", YES, "B"),
    ("The correct answer is B. No.", YES, "B"),
    ("The answer is B) False", {"A": "True", "B": "False"}, "B"),
    ("The correct answer is B) False, False.", TRUE, "B"),
    ("The correct answer is A. Wrong, Wrong.", WRONG, "A"),
    ("Answer: B) No", UNKNOWN, "B"),
    ("The answer is (B) -4.", NUMBERS, "B"),
    ("Answer: B) -4", NUMBERS, "B"),
    ("\\boxed{(B) -4}", NUMBERS, "B"),
    ("**B) -4**", NUMBERS, "B"),
    ("The answer is A. No, it's B", YES, None),
    ("The answer is (A) Yes. No wait, B.", YES, None),
    ("The answer is (A) $-4$.", NUMBERS, None),
    ("The answer is (B) $-4$.", NUMBERS, "B"),
]


@pytest.mark.parametrize(("response", "letter"), RESPONSES)
def test_the_letter_of_a_response(response, letter):
    assert extract_letter(response, CITIES) == letter


@pytest.mark.parametrize(("response", "choices", "letter"), AMONG)
def test_words_of_a_choice_that_deny_or_begin_with_a_sign(response, choices, letter):
    assert extract_letter(response, choices) == letter
