r"""Answers of questions with four choices, A to D, or with ten, A to J."""

FOUR = {"A": "Paris", "B": "Rome", "C": "Oslo", "D": "New  York"}
TEN = dict.fromkeys("ABCDEFGHIJ", "")

OF_FOUR = [
    ("The answer is Rome.", "B"),
    ("The correct answer is **Rome**, because of the Tiber.", "B"),
    ("The answer is Rome, not Paris.", "B"),
    ("It may be Paris. The answer is: new york", "D"),
    ("B", "B"),
    ("b", "B"),  # EleutherAI/lm-evaluation-harness PR 4188
    ("d", "D"),  # EleutherAI/lm-evaluation-harness PR 4188
    ("b. 4", "B"),  # EleutherAI/lm-evaluation-harness PR 4188
    ("B. No, there are still things that could be done.", "B"),
    ("I would pick B — a safe choice.", "B"),  # EleutherAI/lm-evaluation-harness PR 4188
    ("The answer is D, not option A", "D"),
    ("Answer:\n\nAnswer: C", "C"),  # openai/simple-evals 33
    (r"\boxed{\text{C}}", "C"),  # NVIDIA-NeMo/Gym PR 1844
    (r"First \boxed{C}, no: \boxed{B: A polygenic risk score}", "B"),  # NVIDIA-NeMo/Gym PR 1844
    ("I considered (A), but it is incorrect. Final answer: D.", "D"),  # aniri15/OPD-V 2
    ("Answer: I think it is C", "C"),  # antirez/ds4 319
    ("Answer: It is not B, the answer is D", "D"),  # antirez/ds4 321
    ("Answer: rules out C, leaving D", "D"),  # antirez/ds4 321
    ("Answer : C", "C"),  # marin-community/verifyit tests/test_mcq.py
    # marin-community/verifyit tests/test_mcq.py
    ("I worked through every option and settled on the third one.\nC\n", "C"),
    ("<answer> rome </answer>", "B"),
    ("A. first\nB. second\nC. third\nTherefore: B", "B"),
    ("The answer is A and the others fail.", "A"),
    ("There is no doubt that the answer is C.", "C"),
    ("The others cannot hold so the answer is D.", "D"),
    ("The answer to this question is C", "C"),
    ("Ans: C", "C"),
    ("Thus, option C.", "C"),
    ("Option C", "C"),
    (r"\boxed{\text{Option C}}", "C"),
    (r"<think>Perhaps \boxed{A}?</think> The answer is B.", "B"),  # huggingface/trl PR 4563
    ("B\n\nExplanation: Rome has been the capital since 1871.", "B"),
    ('```json\n{"answer": "B"}\n```', "B"),
    ("So the correct option is B: Rome", "B"),
    ("The answer is Rome rather than Paris.", "B"),
    ("The answer is not Paris but Rome.", "B"),
    ("The answer is Rome (B).", "B"),
    ("B is the right option here.", "B"),
    ("B is correct, and A is incorrect.", "B"),
    ("The answer is Rome, Paris.", None),
    ("<answer>A or B or C</answer>", None),  # Liuziyu77/Visual-RFT 79
    ("Answer: A or B", None),
    ("The answer is B, C", None),
    ("Answer: Banana", None),  # marin-community/verifyit tests/test_mcq.py
    ("Answer: E\n", None),  # marin-community/verifyit tests/test_mcq.py
    ("Answer: 3\n", None),  # marin-community/verifyit tests/test_mcq.py
    ("I don't think the answer is A. It has another name.", None),
    ("The wrong answer is B.", None),
    (r"\boxed{C} was a slip, \boxed{A", None),
    ("The answer is C = 5", None),
    ("To see if the answer is C, look at the map.", None),
    ("", None),
]
OF_TEN = [
    ("Answer: I think it is C", "C"),  # antirez/ds4 319
    ("The answer is an I-beam, so E is right.", "E"),
]

ROWS = [
    *((response, letter, FOUR) for response, letter in OF_FOUR),
    *((response, letter, TEN) for response, letter in OF_TEN),
]
"""Responses, the letters that they answer, None for none, and the choices."""
