"""Answers that are the ground truth, character for character, or not."""

RIGHT = [
    ("(2,4)", "(2,4)"),  # EleutherAI/lm-evaluation-harness 4030
    (" c ", "c"),  # marin-community/verifyit tests/test_mcq.py
    ("C\n", " C "),  # marin-community/verifyit tests/test_mcq.py
    # Liuziyu77/Visual-RFT 176
    ("African Wild Dog (Lycaon pictus)", "African Wild Dog (Lycaon pictus)"),
    ("42", 42),
    ("0.5", 0.5),
    ("True", True),
    ("yes\u00a0", "yes"),
    ("a\nb", "a\nb"),
    ("None", "None"),
    (".*", ".*"),
    ("<answer>4</answer>", "<answer>4</answer>"),
    ("def f():\n    return 1", "def f():\n    return 1\n"),
]
WRONG = [
    ("", "dog"),  # Liuziyu77/Visual-RFT 176
    ("African Wild Dog", "African Wild Dog (Lycaon pictus)"),  # Liuziyu77/Visual-RFT 176
    ("The image shows a dog and a cat.", "dog"),  # Liuziyu77/Visual-RFT 176
    ("A or B or C", "A"),  # Liuziyu77/Visual-RFT 79
    ("d", "D"),  # EleutherAI/lm-evaluation-harness PR 4188
    ("$29.00", "29"),  # EleutherAI/lm-evaluation-harness 3214
    ("Answer: C", "C"),  # marin-community/verifyit tests/test_mcq.py
    (r"\boxed{42}", "42"),  # AI-Hypercomputer/maxtext PR 4150
    ("yes.", "yes"),
    ("Yes", "yes"),
    ("a b", "a  b"),
    ("a\nb", "a b"),
    ("42.0", "42"),
    ("1,000", "1000"),
    ("true", True),
    ("Cafe\u0301", "Caf\u00e9"),
    ("\u0410", "A"),
    ("anything", ".*"),
]
ROWS = [
    *((response, truth, 1.0) for response, truth in RIGHT),
    *((response, truth, 0.0) for response, truth in WRONG),
]
