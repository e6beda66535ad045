r"""Answers of mathematics problems."""


def boxed(rows):
    return [(rf"so $\boxed{{{answer}}}$.", truth) for answer, truth in rows]


RIGHT = [
    (r"\fbox{12}", "12"),  # THUDM/slime PR 2150
    (r"\fbox{\frac{1}{2}}", r"\frac{1}{2}"),  # OpenRLHF/OpenRLHF PR 1285
    (r"\boxed 5", "5"),
    (r"The rest is $\boxed 5$ of them.", "5"),
    (r"\boxed {\frac{1}{3}}", r"\frac{1}{3}"),  # huggingface/trl PR 5026
    (r"\boxed{\(7\)}", "7"),
    (r"\(\boxed{7}\) or, in words, seven", "7"),
    (r"\[\boxed{$7$}\]", "7"),
    # thinking-machines-lab/tinker-cookbook PR 903
    (r"First \boxed{5}. That is wrong; the answer is \boxed{7}.", "7"),
    (r"the answer is \boxed{2}. wait, actually \boxed{3}", "3"),  # EvolvingLMMs-Lab/lmms-eval 1511
    (r"I first tried \boxed 3$, then \boxed{4}", "4"),  # allenai/open-instruct PR 1764
    (r"\boxed{7}. My answer stands in \boxed{}.", "7"),
    (r"$\boxed{1,2}$", r"\boxed{1,2}"),  # huggingface/Math-Verify tests/test_all.py
    # huggingface/Math-Verify tests/test_all.py
    ("The final answer is $14{,}916$. I hope it is correct.", "14916"),
    # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    ("The answer is 4 4/9.", "40/9"),
    # huggingface/Math-Verify tests/test_all.py
    ("Final Answer: The final answer is $28 \\%$. I hope it is correct.", r"28\%"),
    ("**Answer:** 34", "34"),
    (r"<think>Perhaps \boxed{5}?</think> The answer is 6.", "6"),  # huggingface/trl PR 4563
    (r"<think>It is \boxed{5}.</think>", "5"),
    ("The answer is not 5. The answer is 6 because 5 is odd.", "6"),
    ("The answer to this problem is 5 cm.", "5"),
    ("The answer is **5**.", "5"),
    ("The answer is 34, not 43.", "34"),
    ("The answer is 3, 4 and 5.", "3,4,5"),
    ("The answer must be (1, 2).", "(1,2)"),
    ("The answer is:\n\n$$5$$", "5"),
    ("The answer is:\n\\[\n5\n\\]", "5"),
    ("The answer is therefore 5.", "5"),
    ("The answer is 5.\nThe answer is not 6.", "5"),
    ("The answer is $x = 1,200$.", "1200"),
    *boxed(
        [
            ("7,425,000", "7425000"),  # huggingface/Math-Verify tests/test_all.py
            ("1 000", "1000"),  # huggingface/Math-Verify tests/test_all.py
            ("1,000.0", "1000.0"),  # huggingface/Math-Verify tests/test_all.py
            # huggingface/Math-Verify tests/test_all.py
            (r"11,\! 111,\! 111,\! 100", "11111111100"),
            (r"\frac13", "1/3"),  # huggingface/Math-Verify tests/test_all.py
            (r"\cfrac{1}{3}", "1/3"),  # huggingface/Math-Verify tests/test_all.py
            (r"\frac{1}{3} \text{meters}", "1/3"),  # huggingface/Math-Verify tests/test_all.py
            (r"125\textnormal{ miles}", "125"),  # huggingface/Math-Verify tests/test_all.py
            (r"k = \frac{1}{3}", "1/3"),  # huggingface/Math-Verify tests/test_all.py
            ("28 pct", r"28\%"),  # huggingface/Math-Verify tests/test_all.py
            ("28", r"28\%"),  # huggingface/Math-Verify tests/test_all.py
            (r"\sqrt 2+\sqrt 5", r"\sqrt{2}+\sqrt{5}"),  # huggingface/Math-Verify tests/test_all.py
            (r"\frac94\pi", r"\frac{9}{4}\pi"),  # huggingface/Math-Verify tests/test_all.py
            (r"5 \geq x", r"x \leq 5"),  # huggingface/Math-Verify tests/test_all.py
            # huggingface/Math-Verify tests/test_all.py
            ("x^2/16 + y^2/12 = 1/4", "x^2/4 + y^2/3 = 1"),
            (r"[-4, 0]", "[-4,0]"),  # huggingface/Math-Verify tests/test_all.py
            (r"\text{(C)}", r"\text{C}"),  # huggingface/Math-Verify tests/test_all.py
            ("4 4/9", "40/9"),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
            ("-4 4/9", "-40/9"),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
            ("11 5/6", "71/6"),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
            (r"2,-2", r"\pm 2"),  # huggingface/Math-Verify 14
            ("19, 46, and 82", r"19, 46, \text{ and } 82"),  # huggingface/Math-Verify 14
            ("12:00", "12:00"),  # huggingface/Math-Verify 14
            ("(2,4)", "(2,4)"),  # EleutherAI/lm-evaluation-harness 4030
            ("[2,5)", "[2,5)"),  # EleutherAI/lm-evaluation-harness 4030
            ("(x-1)(x+1)", "x^2-1"),  # open-compass/opencompass PR 2593
            (r"(1,\frac{9}{2})", "(1,4.5)"),  # RLHFlow/Online-DPO-R1 11
            (r"\frac{x}{7}+\frac{2}{7}", r"\frac{x+2}{7}"),  # RLHFlow/Online-DPO-R1 11
            (r"\pi \div 8 + 1 \div 2", r"0.5 + \frac{\pi}{8}"),  # hiyouga/MathRuler 2
            (r"\frac{x}{2}", "x/2"),  # UKGovernmentBEIS/inspect_ai PR 5266
            ("3 out of 4", r"\frac{3}{4}"),
            (r"3 \text{ out of } 4", "0.75"),
            ("1/3", "0.333"),
            (r"\sqrt{2}", "1.414"),
            (r"18\,\text{cm}", "18 cm"),
            (r"18 \text{ inches}", "18 in"),
            (r"\frac{1}{2^{99}}", r"2^{-99}"),
            ("52_{8}", "52_8"),
            (r"0.\overline{3}", "1/3"),
            ("1/6", r"0.1\overline{6}"),
            (r"\varnothing", r"\emptyset"),
            (r"\log_{10} 100", "2"),
            (r"2\frac{1}{2}", "2.5"),
            (r"\left\{1, 2\right\}", r"\{2,1\}"),
        ]
    ),
]
WRONG = [
    # thinking-machines-lab/tinker-cookbook PR 903
    (r"First \boxed{5}. That is wrong; the answer is \boxed{7}.", "5"),
    (r"the answer is \boxed{2}. wait, actually \boxed{3}", "2"),  # EvolvingLMMs-Lab/lmms-eval 1511
    (r"I first tried \boxed 3$, then \boxed{4}", "3"),  # allenai/open-instruct PR 1764
    (r"\boxed{7}, no, \boxed{8", "7"),  # marin-community/marin PR 9163
    (r"\boxed{7}, no, \boxed{8", "8"),  # marin-community/marin PR 9163
    (r"\boxed{\frac{1}{3}", r"\frac{1}{3}"),  # huggingface/trl PR 5026
    ("The answer is 4 4/9.", "4"),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    (r"<think>Perhaps \boxed{5}?</think> The answer is 6.", "5"),  # huggingface/trl PR 4563
    ("The answer to question 5 is hard to find.", "5"),
    ("The answer is not 5.", "5"),
    ("If the answer is 5, then 2 = 3.", "5"),
    ("The answer is 12 or 13.", "12"),
    ("The answer is $12$ or $13$.", "12"),
    ("The answer is 3, 4 and 5.", "3"),
    ("The answer is 34, not 43.", "43"),
    ("The answer is 5.\nThe answer is not 6.", "6"),
    (r"\boxed{y=1,200}", "x=1200"),
    (r"\boxed{4 4/9}", "4/9"),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    ("The answer lies between 3 and 5", "3"),
    (r"\boxed{}", "0"),
    (r"\boxed{\boxed{5}, 6}", "5"),
    *boxed(
        [
            ("[0,1)", "[0,9)"),  # huggingface/Math-Verify tests/test_all.py
            ("[0,9)", "(0,9)"),  # huggingface/Math-Verify tests/test_all.py
            ("28", "0.28"),  # huggingface/Math-Verify tests/test_all.py
            ("28", "28/100"),  # huggingface/Math-Verify tests/test_all.py
            ("28/100", "28"),  # huggingface/Math-Verify tests/test_all.py
            ("x < 5", "x > 5"),  # huggingface/Math-Verify tests/test_all.py
            ("11a+c", "7 = 11a+c"),  # huggingface/Math-Verify tests/test_all.py
            ("1", "2x + z = 1"),  # huggingface/Math-Verify tests/test_all.py
            ("(+5)(b+2)", "(a+5)(b+2)"),  # huggingface/Math-Verify tests/test_all.py
            (r"\frac{1+\sqrt{5}}{2}", "2"),  # huggingface/Math-Verify tests/test_all.py
            (r"1\sqrt{19}", "1"),  # huggingface/Math-Verify tests/test_all.py
            ("1112122_3", "1112112_3"),  # huggingface/Math-Verify tests/test_all.py
            ("32, 349", "32349"),  # huggingface/Math-Verify tests/test_all.py
            (r"\{1,3\}", "(3,1)"),  # huggingface/Math-Verify tests/test_all.py
            ("4 4/9", "4"),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
            ("11 7/6", "11"),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
            ("4 4/0", "4"),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
            (r"\frac{1}{2006!}", r"\frac{1}{2004!}"),  # huggingface/Math-Verify 14
            (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}"),  # huggingface/Math-Verify 14
            ("n=1, 2, 3", "n=2, 3, 4"),  # huggingface/Math-Verify 14
            ("D = (0, 1.5)", "D = (0, 1)"),  # huggingface/Math-Verify 14
            ("21, 36, and 82", r"19, 46, \text{ and } 82"),  # huggingface/Math-Verify 14
            ("2021", r"\pm 2021"),  # huggingface/Math-Verify 14
            ("1:00", "12:00"),  # huggingface/Math-Verify 14
            # huggingface/Math-Verify 14
            (r"1 + \frac{1}{\mathrm{e}}", r"1 - \frac{1}{\mathrm{e}}"),
            (r"4\sqrt(2)", "4"),  # huggingface/Math-Verify 41
            ("3", "n=3k"),  # scitix/sieval 26
            ("n=3k", "3"),  # scitix/sieval 26
            # open-thoughts/OpenThoughts-Agent PR 129
            (r"(-\infty,\infty)", r"(-\infty,-8)\cup(-8,\infty)"),
            ("x/3", r"\frac{x}{2}"),  # UKGovernmentBEIS/inspect_ai PR 5266
            ("0.333", "1/3"),
            ("0.333333333", "1/3"),
            ("1.41421356237", r"\sqrt{2}"),
            ("3.14159265", r"\pi"),
            ("2/7", "0.3"),
            ("0.3334", "0.333"),
            ("5.0000001", "5"),
            ("1 2", "12"),
            ("18 m", "18 cm"),
            (r"18\text{ m}", r"18\text{ cm}"),
            ("52", "52_8"),
            ("0.3", r"0.\overline{3}"),
            (r"0.\overline{3}", "0.3"),
            (r"2:30\text{ a.m.}", r"2:30\text{ p.m.}"),
            ("3.464", r"2\sqrt{3}"),
            (r"\begin{pmatrix}1\\3\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
            (r"3\text{ minutes}", r"3\text{ hours}"),
            ("x^2=4", "x=2"),
            ("52_7", "52_8"),
            ("10_2", "10"),
            (r"\{1,2\}", "(1,2)"),
            ("(1,2)", r"\{1,2\}"),
            ("5=3", "3"),
            ("3 out of 4", "3"),
            (r"\pi R^2", r"\pi r^2"),
            ("3x", "3"),
            ("1 or 2", "2"),
        ]
    ),
]
ROWS = [
    *((response, truth, 1.0) for response, truth in RIGHT),
    *((response, truth, 0.0) for response, truth in WRONG),
]
