"""Answers that are the ground truth, character for character, or not."""

RIGHT = [
    ("(2,4)", "(2,4)"),  # EleutherAI/lm-evaluation-harness 4030
    ("[2,5)", "[2,5)"),  # EleutherAI/lm-evaluation-harness 4030
    # EleutherAI/lm-evaluation-harness 4030
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (" c ", "c"),  # marin-community/verifyit tests/test_mcq.py
    ("C\n", " C "),  # marin-community/verifyit tests/test_mcq.py
    # Liuziyu77/Visual-RFT 176
    ("African Wild Dog (Lycaon pictus)", "African Wild Dog (Lycaon pictus)"),
    ("1 and odd prime numbers", "1 and odd prime numbers"),  # scitix/sieval 26
    ("42", 42),
    ("-3", -3),
    ("0", 0),
    ("0.5", 0.5),
    ("True", True),
    ("False", False),
    ("\tyes\r\n", "yes"),
    ("yes\u00a0", "yes"),
    ("a  b", "a  b"),
    ("a\nb", "a\nb"),
    ("Caf\u00e9", "Caf\u00e9"),
    ("\u6771\u4eac", "\u6771\u4eac"),
    ("x = 1;", "x = 1;"),
    ("{}", "{}"),
    ("None", "None"),
    ("nan", "nan"),
    (".*", ".*"),
    ("\\d+", "\\d+"),
    ("'quoted'", "'quoted'"),
    ("\U0001f600", "\U0001f600"),
    ("a" * 1000, "a" * 1000),
    ("<answer>4</answer>", "<answer>4</answer>"),
    ("####", "####"),
    ("def f():\n    return 1", "def f():\n    return 1\n"),
    ("the", "the"),
    ("1e3", "1e3"),
]
WRONG = [
    ("", "dog"),  # Liuziyu77/Visual-RFT 176
    ("<answer></answer>", "dog"),  # Liuziyu77/Visual-RFT 176
    ("African Wild Dog", "African Wild Dog (Lycaon pictus)"),  # Liuziyu77/Visual-RFT 176
    ("The image shows a dog and a cat.", "dog"),  # Liuziyu77/Visual-RFT 176
    ("A or B or C", "A"),  # Liuziyu77/Visual-RFT 79
    ("A or B or C", "C"),  # Liuziyu77/Visual-RFT 79
    ("False", "no letter"),  # open-compass/VLMEvalKit 1697
    ("[invalid]", "B"),  # EleutherAI/lm-evaluation-harness PR 4188
    ("d", "D"),  # EleutherAI/lm-evaluation-harness PR 4188
    ("b. 4", "b"),  # EleutherAI/lm-evaluation-harness PR 4188
    ("$29.00", "29"),  # EleutherAI/lm-evaluation-harness 3214
    ("29.", "29"),  # EleutherAI/lm-evaluation-harness 3214
    ("\uc815\ub2f5: C", "C"),  # EleutherAI/lm-evaluation-harness PR 3842
    ("Answer: C", "C"),  # marin-community/verifyit tests/test_mcq.py
    (r"\boxed{42}", "42"),  # AI-Hypercomputer/maxtext PR 4150
    ("1 and all odd prime numbers", "1 and odd prime numbers"),  # scitix/sieval 26
    ("yes.", "yes"),
    ("Yes", "yes"),
    ("a b", "a  b"),
    ("ab", "a b"),
    ("a\nb", "a b"),
    ("42.0", "42"),
    ("042", "42"),
    ("1,000", "1000"),
    ("1", True),
    ("true", True),
    ("Cafe\u0301", "Caf\u00e9"),
    ("\u0410", "A"),
    ("anything", ".*"),
    ("42 42", "42"),
    ("a" * 999, "a" * 1000),
]
ROWS = [
    *((response, truth, 1.0) for response, truth in RIGHT),
    *((response, truth, 0.0) for response, truth in WRONG),
]
