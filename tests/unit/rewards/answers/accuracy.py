"""Answers that are the ground truth, as text or as mathematics, or not."""


def boxed(rows):
    return [(rf"so $\boxed{{{answer}}}$.", truth) for answer, truth in rows]


RIGHT = [
    # realwenlongwang/deepseek_r1_zero_reproduce tests/test_tutorial_rewards_comprehensive.py
    ("yes", "yes"),
    ("odd $n$", "odd $n$"),  # UKGovernmentBEIS/inspect_ai tests/scorer/math_cases.json
    # UKGovernmentBEIS/inspect_ai tests/scorer/math_cases.json
    (r"(-\infty,-8)\cup (8,\infty)", r"(-\infty,-8)\cup (8,\infty)"),
    (" 84\n", "84"),
    ("42", 42),
    # huggingface/trl tests/test_rewards.py
    (r"It is so. </think> \boxed{\frac{63}{400}}", r"\frac{63}{400}"),
    # modelscope/ms-swift tests/utils/test_rewards.py
    ("1. x = 2\n2. y = 6\n3. z = 8\n\nFinal answer: \\boxed{8}", r"\boxed{8}"),
    # modelscope/ms-swift tests/utils/test_rewards.py
    (r"<answer>\boxed{100}</answer>", r"\boxed{100}"),
    # modelscope/ms-swift tests/utils/test_rewards.py
    (r"\boxed{3}", r"Therefore, the value is \(\boxed{3}\)."),
    # realwenlongwang/deepseek_r1_zero_reproduce tests/test_tutorial_rewards_comprehensive.py
    (r"<think>Yes.</think><answer>\boxed{\text{yes}}</answer>", r"\boxed{\text{yes}}"),
    # realwenlongwang/deepseek_r1_zero_reproduce tests/test_tutorial_rewards_comprehensive.py
    ("<think>2+2=4</think>The answer is 4", "4"),
    ("\u2705 Final Answer: **73**", "73"),  # huggingface/Math-Verify 76
    # huggingface/Math-Verify 44
    ("hence \\boxed{840}., so.\n\n**Final Answer**\n\\boxed{840}", "840"),
    # UKGovernmentBEIS/inspect_ai tests/scorer/test_math.py
    ("The answer is 42 because geometry proves it", "42"),
    # UKGovernmentBEIS/inspect_ai tests/scorer/test_math.py
    (r"\boxed{9} " * 400 + r"\boxed{42}", "42"),
    ("The answer is 0.5", "1/2"),  # inclusionAI/AReaL areal/tests/test_math_verify_reward.py
    ("Answer: $13$", "13"),  # hiyouga/EasyR1 PR 382
    ("The answer is Paris.", "Paris"),
    *boxed(
        [
            (r"\frac{63}{400}", "63/400"),  # huggingface/trl tests/test_rewards.py
            ("004", "4"),  # huggingface/Math-Verify 44
            (r"\text{13}", "13"),  # huggingface/Math-Verify 37
            ("2x+4y-3=0", r"y = -\frac{1}{2}x + \frac{3}{4}"),  # huggingface/Math-Verify 26
            (r"m \in [\sqrt{2}, +\infty)", r"m \geq \sqrt{2}"),  # huggingface/Math-Verify 25
            ("(0, 12.5)", "0 < x < 12.5"),  # huggingface/Math-Verify 10
            ("1331, 1728", "1331 and 1728"),  # huggingface/Math-Verify 47
            ("-34x-45y+20z-100=0", "34x+45y-20z+100=0"),  # huggingface/Math-Verify 2
            (r"-2*\pi", r"-2\pi"),  # huggingface/Math-Verify 69
            (r"a=1 \text{ or } a=-2", r"a=-2 \text{ or } a=1"),  # modelscope/ms-swift 4541
            ("35 cm", "35"),  # huggingface/Math-Verify 57
            (r"33.5\%", "0.335"),  # UKGovernmentBEIS/inspect_ai tests/scorer/math_cases.json
            # UKGovernmentBEIS/inspect_ai tests/scorer/math_cases.json
            (r"1.5 \times 10^3", "1500"),
            # UKGovernmentBEIS/inspect_ai tests/scorer/math_cases.json
            (r"\;\angle APC = 74^\circ\;", r"74^\circ"),
            # UKGovernmentBEIS/inspect_ai tests/scorer/math_cases.json
            (r"\binom{2026}{1013}", r"\binom{2026}{1013}"),
        ]
    ),
]
WRONG = [
    ("I cannot say.", "forty two"),  # huggingface/open-r1 293
    # huggingface/trl tests/test_rewards.py
    (r"<think> The answer is \boxed{42} </think> A wrong one: \boxed{43}.", r"\boxed{42}"),
    (r"\boxed{42", r"\boxed{42}"),  # modelscope/ms-swift tests/utils/test_rewards.py
    ("<answer>42</answer>", r"\boxed{100}"),  # modelscope/ms-swift tests/utils/test_rewards.py
    # realwenlongwang/deepseek_r1_zero_reproduce tests/test_tutorial_rewards_comprehensive.py
    (r"<think>2+2=5</think><answer>\boxed{5}</answer>", r"\boxed{4}"),
    ("", "4"),  # inclusionAI/AReaL areal/tests/test_math_verify_reward.py
    # UKGovernmentBEIS/inspect_ai tests/scorer/test_math.py
    (r"\boxed{10} and then \boxed{42}", r"\{10,42\}"),
    # UKGovernmentBEIS/inspect_ai tests/scorer/test_math.py
    (r"\boxed{10} and then \boxed{42}", "10"),
    ("The perimeter is 7", "42"),  # UKGovernmentBEIS/inspect_ai tests/scorer/test_math.py
    # UKGovernmentBEIS/inspect_ai tests/scorer/test_math.py
    ("__import__('os').system('touch marker') or 0", "0"),
    ("2 * 234 = 468\n\n\u2705 Final Answer: **468**", "234"),  # huggingface/Math-Verify 76
    (r"\boxed{35 cm} and \boxed{4}", "35"),  # huggingface/Math-Verify 57
    # PrimeIntellect-ai/verifiers PR 1028
    ("9 eggs are left, at 2 dollars each: 9 * 2 = 18, and 18 / 2 = 9.", "18"),
    ("The answer is 7 or 8", "7"),  # asuzukosi/post-training-experiments 49
    ("<answer></answer>", "dog"),  # Liuziyu77/Visual-RFT 176
    ("<answer>A or B or C</answer>", "B"),  # Liuziyu77/Visual-RFT 79
    ("The answer isn't 42.", "42"),
    ("I am asked whether the answer is 42.", "42"),
    ("The answer is 42 short of 100.", "42"),
    ("The answer is more than 42.", "42"),
    ("The answer is Paris or Rome.", "Paris"),
    *boxed(
        [
            (r"\frac{64}{400}", r"\frac{63}{400}"),  # huggingface/open-r1 tests/test_rewards.py
            # modelscope/ms-swift tests/utils/test_math_orm_expressions.py
            (r"\frac{1}{23}", r"\frac{12}{3}"),
            ("x^{12}", "x^{1}2"),  # modelscope/ms-swift tests/utils/test_math_orm_expressions.py
            ("2^{2025}", "3^{2025}"),  # UKGovernmentBEIS/inspect_ai tests/scorer/math_cases.json
            ("12345678901", "12345678902"),  # UKGovernmentBEIS/inspect_ai tests/scorer/test_math.py
            ("(0, 1)", "2"),  # UKGovernmentBEIS/inspect_ai tests/scorer/test_math.py
            ("1,2345", "12345"),  # UKGovernmentBEIS/inspect_ai tests/scorer/test_math.py
            ("3x + 4y + 14=0", "3x-y+13=0"),  # huggingface/Math-Verify 60
            ("1728", "1331 and 1728"),  # huggingface/Math-Verify 47
            ("840840", "840"),  # huggingface/Math-Verify 44
            ("4.004", "004"),  # huggingface/Math-Verify 44
            # huggingface/Math-Verify 14
            (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{3 \cdot 2^{2006}}"),
            (r"1, 3, 5, \ldots, 2n-1", r"1, 2, \ldots, n"),  # huggingface/Math-Verify 14
            (r"1:4:9:\ldots", r"1:2:3:\ldots"),  # huggingface/Math-Verify 14
            ("a=1", r"a=1 \text{ or } a=-2"),  # modelscope/ms-swift 4541
            ("[0, 12.5]", "0 < x < 12.5"),  # huggingface/Math-Verify 10
            (r"m \in (\sqrt{2}, +\infty)", r"m \geq \sqrt{2}"),  # huggingface/Math-Verify 25
            (r"\sec^2(y)", r"\tan^2(y)-1"),  # huggingface/Math-Verify 2
            ("14 + i", "14 - i"),  # huggingface/Math-Verify 69
            (r"\text{not } 42", "42"),
            (r"\pm 2", "2"),
            (r"\log_{10} 2", r"\ln 2"),
        ]
    ),
]
ROWS = [
    *((response, truth, 1.0) for response, truth in RIGHT),
    *((response, truth, 0.0) for response, truth in WRONG),
]
