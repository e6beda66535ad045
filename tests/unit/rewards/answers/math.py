r"""Answers of mathematics problems."""

VERIFY = "huggingface/Math-Verify tests/test_all.py"
MIXED = "huggingface/Math-Verify tests/test_mixed_number_extraction.py"
ERRORS = "huggingface/Math-Verify 14"
CASES = "huggingface/Math-Verify 41"
SLIME = "THUDM/slime PR 2150"
OPENRLHF = "OpenRLHF/OpenRLHF PR 1285"
TRL = "huggingface/trl PR 5026"
THINKING = "huggingface/trl PR 4563"
TINKER = "thinking-machines-lab/tinker-cookbook PR 903"
OPEN_INSTRUCT = "allenai/open-instruct PR 1764"
LMMS = "EvolvingLMMs-Lab/lmms-eval 1511"
MARIN = "marin-community/marin PR 9163"
MINERVA = "EleutherAI/lm-evaluation-harness 4030"
OPENCOMPASS = "open-compass/opencompass PR 2593"
RLHFLOW = "RLHFlow/Online-DPO-R1 11"
RULER = "hiyouga/MathRuler 2"
PRM800K = "openai/prm800k PR 19"
INSPECT = "UKGovernmentBEIS/inspect_ai PR 5266"
SIEVAL = "scitix/sieval 26"
THOUGHTS = "open-thoughts/OpenThoughts-Agent PR 129"


def boxed(rows):
    return [(rf"so $\boxed{{{answer}}}$.", truth, source) for answer, truth, source in rows]


RIGHT = [
    (r"\fbox{12}", "12", SLIME),
    (r"\fbox{\frac{1}{2}}", r"\frac{1}{2}", OPENRLHF),
    (r"\boxed 5", "5", ""),
    (r"The rest is $\boxed 5$ of them.", "5", ""),
    (r"\boxed {\frac{1}{3}}", r"\frac{1}{3}", TRL),
    (r"\boxed{\(7\)}", "7", ""),
    (r"\(\boxed{7}\) or, in words, seven", "7", ""),
    (r"\[\boxed{$7$}\]", "7", ""),
    (r"First \boxed{5}. That is wrong; the answer is \boxed{7}.", "7", TINKER),
    (r"the answer is \boxed{2}. wait, actually \boxed{3}", "3", LMMS),
    (r"I first tried \boxed 3$, then \boxed{4}", "4", OPEN_INSTRUCT),
    (r"\boxed{7}. My answer stands in \boxed{}.", "7", ""),
    (r"$\boxed{1,2}$", r"\boxed{1,2}", VERIFY),
    ("The final answer is $14{,}916$. I hope it is correct.", "14916", VERIFY),
    ("The answer is 4 4/9.", "40/9", MIXED),
    ("Final Answer: The final answer is $28 \\%$. I hope it is correct.", r"28\%", VERIFY),
    ("**Answer:** 34", "34", ""),
    (r"<think>Perhaps \boxed{5}?</think> The answer is 6.", "6", THINKING),
    (r"<think>It is \boxed{5}.</think>", "5", ""),
    ("The answer is not 5. The answer is 6 because 5 is odd.", "6", ""),
    ("The answer to this problem is 5 cm.", "5", ""),
    ("The answer is **5**.", "5", ""),
    ("The answer is 34, not 43.", "34", ""),
    ("The answer is 3, 4 and 5.", "3,4,5", ""),
    ("The answer must be (1, 2).", "(1,2)", ""),
    ("The answer is:\n\n$$5$$", "5", ""),
    ("The answer is:\n\\[\n5\n\\]", "5", ""),
    ("The answer is therefore 5.", "5", ""),
    ("The answer is 5.\nThe answer is not 6.", "5", ""),
    ("The answer is $x = 1,200$.", "1200", ""),
    *boxed(
        [
            ("7,425,000", "7425000", VERIFY),
            ("1 000", "1000", VERIFY),
            ("1,000.0", "1000.0", VERIFY),
            (r"11,\! 111,\! 111,\! 100", "11111111100", VERIFY),
            (r"\frac13", "1/3", VERIFY),
            (r"\cfrac{1}{3}", "1/3", VERIFY),
            (r"\frac{1}{3} \text{meters}", "1/3", VERIFY),
            (r"125\textnormal{ miles}", "125", VERIFY),
            (r"k = \frac{1}{3}", "1/3", VERIFY),
            ("28 pct", r"28\%", VERIFY),
            ("28", r"28\%", VERIFY),
            (r"\sqrt 2+\sqrt 5", r"\sqrt{2}+\sqrt{5}", VERIFY),
            (r"\frac94\pi", r"\frac{9}{4}\pi", VERIFY),
            (r"5 \geq x", r"x \leq 5", VERIFY),
            ("x^2/16 + y^2/12 = 1/4", "x^2/4 + y^2/3 = 1", VERIFY),
            (r"[-4, 0]", "[-4,0]", VERIFY),
            (r"\text{(C)}", r"\text{C}", VERIFY),
            ("4 4/9", "40/9", MIXED),
            ("-4 4/9", "-40/9", MIXED),
            ("11 5/6", "71/6", MIXED),
            (r"2,-2", r"\pm 2", ERRORS),
            ("19, 46, and 82", r"19, 46, \text{ and } 82", ERRORS),
            ("12:00", "12:00", ERRORS),
            ("(2,4)", "(2,4)", MINERVA),
            ("[2,5)", "[2,5)", MINERVA),
            ("(x-1)(x+1)", "x^2-1", OPENCOMPASS),
            (r"(1,\frac{9}{2})", "(1,4.5)", RLHFLOW),
            (r"\frac{x}{7}+\frac{2}{7}", r"\frac{x+2}{7}", RLHFLOW),
            (r"\pi \div 8 + 1 \div 2", r"0.5 + \frac{\pi}{8}", RULER),
            (r"\frac{x}{2}", "x/2", INSPECT),
            ("3 out of 4", r"\frac{3}{4}", ""),
            (r"3 \text{ out of } 4", "0.75", ""),
            ("1/3", "0.333", ""),
            (r"\sqrt{2}", "1.414", ""),
            (r"18\,\text{cm}", "18 cm", ""),
            (r"18 \text{ inches}", "18 in", ""),
            (r"\frac{1}{2^{99}}", r"2^{-99}", ""),
            ("52_{8}", "52_8", ""),
            (r"0.\overline{3}", "1/3", ""),
            ("1/6", r"0.1\overline{6}", ""),
            (r"\varnothing", r"\emptyset", ""),
            (r"\log_{10} 100", "2", ""),
            (r"2\frac{1}{2}", "2.5", ""),
            (r"\left\{1, 2\right\}", r"\{2,1\}", ""),
        ]
    ),
]
WRONG = [
    (r"First \boxed{5}. That is wrong; the answer is \boxed{7}.", "5", TINKER),
    (r"the answer is \boxed{2}. wait, actually \boxed{3}", "2", LMMS),
    (r"I first tried \boxed 3$, then \boxed{4}", "3", OPEN_INSTRUCT),
    (r"\boxed{7}, no, \boxed{8", "7", MARIN),
    (r"\boxed{7}, no, \boxed{8", "8", MARIN),
    (r"\boxed{\frac{1}{3}", r"\frac{1}{3}", TRL),
    ("The answer is 4 4/9.", "4", MIXED),
    (r"<think>Perhaps \boxed{5}?</think> The answer is 6.", "5", THINKING),
    ("The answer to question 5 is hard to find.", "5", ""),
    ("The answer is not 5.", "5", ""),
    ("If the answer is 5, then 2 = 3.", "5", ""),
    ("The answer is 12 or 13.", "12", ""),
    ("The answer is $12$ or $13$.", "12", ""),
    ("The answer is 3, 4 and 5.", "3", ""),
    ("The answer is 34, not 43.", "43", ""),
    ("The answer is 5.\nThe answer is not 6.", "6", ""),
    (r"\boxed{y=1,200}", "x=1200", ""),
    (r"\boxed{4 4/9}", "4/9", MIXED),
    ("The answer lies between 3 and 5", "3", ""),
    (r"\boxed{}", "0", ""),
    (r"\boxed{\boxed{5}, 6}", "5", ""),
    *boxed(
        [
            ("[0,1)", "[0,9)", VERIFY),
            ("[0,9)", "(0,9)", VERIFY),
            ("28", "0.28", VERIFY),
            ("28", "28/100", VERIFY),
            ("28/100", "28", VERIFY),
            ("x < 5", "x > 5", VERIFY),
            ("11a+c", "7 = 11a+c", VERIFY),
            ("1", "2x + z = 1", VERIFY),
            ("(+5)(b+2)", "(a+5)(b+2)", VERIFY),
            (r"\frac{1+\sqrt{5}}{2}", "2", VERIFY),
            (r"1\sqrt{19}", "1", VERIFY),
            ("1112122_3", "1112112_3", VERIFY),
            ("32, 349", "32349", VERIFY),
            (r"\{1,3\}", "(3,1)", VERIFY),
            ("4 4/9", "4", MIXED),
            ("11 7/6", "11", MIXED),
            ("4 4/0", "4", MIXED),
            (r"\frac{1}{2006!}", r"\frac{1}{2004!}", ERRORS),
            (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}", ERRORS),
            ("n=1, 2, 3", "n=2, 3, 4", ERRORS),
            ("D = (0, 1.5)", "D = (0, 1)", ERRORS),
            ("21, 36, and 82", r"19, 46, \text{ and } 82", ERRORS),
            ("2021", r"\pm 2021", ERRORS),
            ("1:00", "12:00", ERRORS),
            (r"1 + \frac{1}{\mathrm{e}}", r"1 - \frac{1}{\mathrm{e}}", ERRORS),
            (r"4\sqrt(2)", "4", CASES),
            ("3", "n=3k", SIEVAL),
            ("n=3k", "3", SIEVAL),
            (r"(-\infty,\infty)", r"(-\infty,-8)\cup(-8,\infty)", THOUGHTS),
            ("x/3", r"\frac{x}{2}", INSPECT),
            ("0.333", "1/3", ""),
            ("0.333333333", "1/3", ""),
            ("1.41421356237", r"\sqrt{2}", ""),
            ("3.14159265", r"\pi", ""),
            ("2/7", "0.3", ""),
            ("0.3334", "0.333", ""),
            ("5.0000001", "5", ""),
            ("1 2", "12", ""),
            ("18 m", "18 cm", ""),
            (r"18\text{ m}", r"18\text{ cm}", ""),
            ("52", "52_8", ""),
            ("0.3", r"0.\overline{3}", ""),
            (r"0.\overline{3}", "0.3", ""),
            (r"2:30\text{ a.m.}", r"2:30\text{ p.m.}", ""),
            ("3.464", r"2\sqrt{3}", ""),
            (r"\begin{pmatrix}1\\3\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", ""),
            (r"3\text{ minutes}", r"3\text{ hours}", ""),
            ("x^2=4", "x=2", ""),
            ("52_7", "52_8", ""),
            ("10_2", "10", ""),
            (r"\{1,2\}", "(1,2)", ""),
            ("(1,2)", r"\{1,2\}", ""),
            ("5=3", "3", ""),
            ("3 out of 4", "3", ""),
            (r"\pi R^2", r"\pi r^2", ""),
            ("3x", "3", ""),
            ("1 or 2", "2", ""),
        ]
    ),
]
ROWS = [
    *((response, truth, 1.0, source) for response, truth, source in RIGHT),
    *((response, truth, 0.0, source) for response, truth, source in WRONG),
]
