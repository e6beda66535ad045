"""Answers that are the ground truth, character for character, or not."""

LM_EVAL = "EleutherAI/lm-evaluation-harness PR 4188"
KORMED = "EleutherAI/lm-evaluation-harness PR 3842"
LM_EVAL_NUMBERS = "EleutherAI/lm-evaluation-harness 3214"
CONTAINED = "Liuziyu77/Visual-RFT 176"
SEVERAL = "Liuziyu77/Visual-RFT 79"
FALSE = "open-compass/VLMEvalKit 1697"
MINERVA = "EleutherAI/lm-evaluation-harness 4030"
VERIFYIT = "marin-community/verifyit tests/test_mcq.py"
MAXTEXT = "AI-Hypercomputer/maxtext PR 4150"
SIEVAL = "scitix/sieval 26"

RIGHT = [
    ("(2,4)", "(2,4)", MINERVA),
    ("[2,5)", "[2,5)", MINERVA),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", MINERVA),
    (" c ", "c", VERIFYIT),
    ("C\n", " C ", VERIFYIT),
    ("African Wild Dog (Lycaon pictus)", "African Wild Dog (Lycaon pictus)", CONTAINED),
    ("1 and odd prime numbers", "1 and odd prime numbers", SIEVAL),
    ("42", 42, ""),
    ("-3", -3, ""),
    ("0", 0, ""),
    ("0.5", 0.5, ""),
    ("True", True, ""),
    ("False", False, ""),
    ("\tyes\r\n", "yes", ""),
    ("yes\u00a0", "yes", ""),
    ("a  b", "a  b", ""),
    ("a\nb", "a\nb", ""),
    ("Caf\u00e9", "Caf\u00e9", ""),
    ("\u6771\u4eac", "\u6771\u4eac", ""),
    ("x = 1;", "x = 1;", ""),
    ("{}", "{}", ""),
    ("None", "None", ""),
    ("nan", "nan", ""),
    (".*", ".*", ""),
    ("\\d+", "\\d+", ""),
    ("'quoted'", "'quoted'", ""),
    ("\U0001f600", "\U0001f600", ""),
    ("a" * 1000, "a" * 1000, ""),
    ("<answer>4</answer>", "<answer>4</answer>", ""),
    ("####", "####", ""),
    ("def f():\n    return 1", "def f():\n    return 1\n", ""),
    ("the", "the", ""),
    ("1e3", "1e3", ""),
]
WRONG = [
    ("", "dog", CONTAINED),
    ("<answer></answer>", "dog", CONTAINED),
    ("African Wild Dog", "African Wild Dog (Lycaon pictus)", CONTAINED),
    ("The image shows a dog and a cat.", "dog", CONTAINED),
    ("A or B or C", "A", SEVERAL),
    ("A or B or C", "C", SEVERAL),
    ("False", "no letter", FALSE),
    ("[invalid]", "B", LM_EVAL),
    ("d", "D", LM_EVAL),
    ("b. 4", "b", LM_EVAL),
    ("$29.00", "29", LM_EVAL_NUMBERS),
    ("29.", "29", LM_EVAL_NUMBERS),
    ("\uc815\ub2f5: C", "C", KORMED),
    ("Answer: C", "C", VERIFYIT),
    (r"\boxed{42}", "42", MAXTEXT),
    ("1 and all odd prime numbers", "1 and odd prime numbers", SIEVAL),
    ("yes.", "yes", ""),
    ("Yes", "yes", ""),
    ("a b", "a  b", ""),
    ("ab", "a b", ""),
    ("a\nb", "a b", ""),
    ("42.0", "42", ""),
    ("042", "42", ""),
    ("1,000", "1000", ""),
    ("1", True, ""),
    ("true", True, ""),
    ("Cafe\u0301", "Caf\u00e9", ""),
    ("\u0410", "A", ""),
    ("anything", ".*", ""),
    ("42 42", "42", ""),
    ("a" * 999, "a" * 1000, ""),
]
ROWS = [
    *((response, truth, 1.0, source) for response, truth, source in RIGHT),
    *((response, truth, 0.0, source) for response, truth, source in WRONG),
]
