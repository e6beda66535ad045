"""Answers that are the ground truth, as text or as mathematics, or not."""

OPEN_R1 = "huggingface/open-r1 tests/test_rewards.py"
UNREAD_TRUTH = "huggingface/open-r1 293"
TRL = "huggingface/trl tests/test_rewards.py"
SWIFT = "modelscope/ms-swift tests/utils/test_rewards.py"
NESTED = "modelscope/ms-swift tests/utils/test_math_orm_expressions.py"
EITHER = "modelscope/ms-swift 4541"
INSPECT = "UKGovernmentBEIS/inspect_ai tests/scorer/test_math.py"
CASES = "UKGovernmentBEIS/inspect_ai tests/scorer/math_cases.json"
TUTORIAL = "realwenlongwang/deepseek_r1_zero_reproduce tests/test_tutorial_rewards_comprehensive.py"
AREAL = "inclusionAI/AReaL areal/tests/test_math_verify_reward.py"
EASY_R1 = "hiyouga/EasyR1 PR 382"
VERIFIERS = "PrimeIntellect-ai/verifiers PR 1028"
COUNTING = "asuzukosi/post-training-experiments 49"
VISUAL_RFT = "Liuziyu77/Visual-RFT 176"
LETTERS = "Liuziyu77/Visual-RFT 79"
WRONG_CASES = "huggingface/Math-Verify 2"
SETS = "huggingface/Math-Verify 10"
ERRORS = "huggingface/Math-Verify 14"
SYMMETRY = "huggingface/Math-Verify 25"
EQUATIONS = "huggingface/Math-Verify 26"
TEXT = "huggingface/Math-Verify 37"
PARSED = "huggingface/Math-Verify 44"
PARTS = "huggingface/Math-Verify 47"
ALL_BOXES = "huggingface/Math-Verify 57"
LINES = "huggingface/Math-Verify 60"
SAME_VALUES = "huggingface/Math-Verify 69"
BOLD = "huggingface/Math-Verify 76"


def boxed(rows):
    return [(rf"so $\boxed{{{answer}}}$.", truth, source) for answer, truth, source in rows]


RIGHT = [
    ("yes", "yes", TUTORIAL),
    ("odd $n$", "odd $n$", CASES),
    (r"(-\infty,-8)\cup (8,\infty)", r"(-\infty,-8)\cup (8,\infty)", CASES),
    (" 84\n", "84", ""),
    ("42", 42, ""),
    (r"It is so. </think> \boxed{\frac{63}{400}}", r"\frac{63}{400}", TRL),
    ("1. x = 2\n2. y = 6\n3. z = 8\n\nFinal answer: \\boxed{8}", r"\boxed{8}", SWIFT),
    (r"<answer>\boxed{100}</answer>", r"\boxed{100}", SWIFT),
    (r"\boxed{3}", r"Therefore, the value is \(\boxed{3}\).", SWIFT),
    (r"<think>Yes.</think><answer>\boxed{\text{yes}}</answer>", r"\boxed{\text{yes}}", TUTORIAL),
    ("<think>2+2=4</think>The answer is 4", "4", TUTORIAL),
    ("\u2705 Final Answer: **73**", "73", BOLD),
    ("hence \\boxed{840}., so.\n\n**Final Answer**\n\\boxed{840}", "840", PARSED),
    ("The answer is 42 because geometry proves it", "42", INSPECT),
    (r"\boxed{9} " * 400 + r"\boxed{42}", "42", INSPECT),
    ("The answer is 0.5", "1/2", AREAL),
    ("Answer: $13$", "13", EASY_R1),
    ("The answer is Paris.", "Paris", ""),
    *boxed(
        [
            (r"\frac{63}{400}", "63/400", TRL),
            ("004", "4", PARSED),
            (r"\text{13}", "13", TEXT),
            ("2x+4y-3=0", r"y = -\frac{1}{2}x + \frac{3}{4}", EQUATIONS),
            (r"m \in [\sqrt{2}, +\infty)", r"m \geq \sqrt{2}", SYMMETRY),
            ("(0, 12.5)", "0 < x < 12.5", SETS),
            ("1331, 1728", "1331 and 1728", PARTS),
            ("-34x-45y+20z-100=0", "34x+45y-20z+100=0", WRONG_CASES),
            (r"-2*\pi", r"-2\pi", SAME_VALUES),
            (r"a=1 \text{ or } a=-2", r"a=-2 \text{ or } a=1", EITHER),
            ("35 cm", "35", ALL_BOXES),
            (r"33.5\%", "0.335", CASES),
            (r"1.5 \times 10^3", "1500", CASES),
            (r"\;\angle APC = 74^\circ\;", r"74^\circ", CASES),
            (r"\binom{2026}{1013}", r"\binom{2026}{1013}", CASES),
        ]
    ),
]
WRONG = [
    ("I cannot say.", "forty two", UNREAD_TRUTH),
    (r"<think> The answer is \boxed{42} </think> A wrong one: \boxed{43}.", r"\boxed{42}", TRL),
    (r"\boxed{42", r"\boxed{42}", SWIFT),
    ("<answer>42</answer>", r"\boxed{100}", SWIFT),
    (r"<think>2+2=5</think><answer>\boxed{5}</answer>", r"\boxed{4}", TUTORIAL),
    ("", "4", AREAL),
    (r"\boxed{10} and then \boxed{42}", r"\{10,42\}", INSPECT),
    (r"\boxed{10} and then \boxed{42}", "10", INSPECT),
    ("The perimeter is 7", "42", INSPECT),
    ("__import__('os').system('touch marker') or 0", "0", INSPECT),
    ("2 * 234 = 468\n\n\u2705 Final Answer: **468**", "234", BOLD),
    (r"\boxed{35 cm} and \boxed{4}", "35", ALL_BOXES),
    ("9 eggs are left, at 2 dollars each: 9 * 2 = 18, and 18 / 2 = 9.", "18", VERIFIERS),
    ("The answer is 7 or 8", "7", COUNTING),
    ("<answer></answer>", "dog", VISUAL_RFT),
    ("<answer>A or B or C</answer>", "B", LETTERS),
    ("The answer isn't 42.", "42", ""),
    ("I am asked whether the answer is 42.", "42", ""),
    ("The answer is 42 short of 100.", "42", ""),
    ("The answer is more than 42.", "42", ""),
    ("The answer is Paris or Rome.", "Paris", ""),
    *boxed(
        [
            (r"\frac{64}{400}", r"\frac{63}{400}", OPEN_R1),
            (r"\frac{1}{23}", r"\frac{12}{3}", NESTED),
            ("x^{12}", "x^{1}2", NESTED),
            ("2^{2025}", "3^{2025}", CASES),
            ("12345678901", "12345678902", INSPECT),
            ("(0, 1)", "2", INSPECT),
            ("1,2345", "12345", INSPECT),
            ("3x + 4y + 14=0", "3x-y+13=0", LINES),
            ("1728", "1331 and 1728", PARTS),
            ("840840", "840", PARSED),
            ("4.004", "004", PARSED),
            (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{3 \cdot 2^{2006}}", ERRORS),
            (r"1, 3, 5, \ldots, 2n-1", r"1, 2, \ldots, n", ERRORS),
            (r"1:4:9:\ldots", r"1:2:3:\ldots", ERRORS),
            ("a=1", r"a=1 \text{ or } a=-2", EITHER),
            ("[0, 12.5]", "0 < x < 12.5", SETS),
            (r"m \in (\sqrt{2}, +\infty)", r"m \geq \sqrt{2}", SYMMETRY),
            (r"\sec^2(y)", r"\tan^2(y)-1", WRONG_CASES),
            ("14 + i", "14 - i", SAME_VALUES),
            (r"\text{not } 42", "42", ""),
            (r"\pm 2", "2", ""),
            (r"\log_{10} 2", r"\ln 2", ""),
        ]
    ),
]
ROWS = [
    *((response, truth, 1.0, source) for response, truth, source in RIGHT),
    *((response, truth, 0.0, source) for response, truth, source in WRONG),
]
