r"""Answers of reasoning-gym's tasks; a score between 0 and 1 is the task's own for a near miss."""

LAST = "<answer>{}</answer> No, that is wrong. <answer>{}</answer>"

SORTED = "['-97.8', '-95.7', '-92.8', '-83.6', '-16.5', '61.5', '71.1']"
WORDS = ["apple", "banana", "cherry"]
UNREDUCED = {"numerator": 17080, "denominator": 42490}
REDUCED = {"simplified_numerator": 244, "simplified_denominator": 607}
SOLUTION = [[2, 4, 1, 3], [3, 1, 4, 2], [4, 2, 3, 1], [1, 3, 2, 4]]

ENTRIES = {
    "legs": ("leg_counting", "100", {}),
    "chain": ("chain_sum", "42", {}),
    "thousand": ("chain_sum", "1000", {}),
    "basic": ("basic_arithmetic", "1234", {}),
    "gcd": ("gcd", "12", {}),
    "backward": ("spell_backward", "ssiknu", {}),
    "equation": ("simple_equations", "61", {}),
    "119": ("countdown", "82 + 20 + 67 - 50", {"numbers": [67, 50, 20, 82], "target": 119}),
    "47": ("countdown", "44 + 3", {"numbers": [44, 3], "target": 47}),
    "50": ("countdown", "45 + 2 + 3 * 1", {"numbers": [1, 45, 2, 3], "target": 50}),
    "81": ("countdown", "1 * 1 * 1 * 81", {"numbers": [1, 1, 1, 81], "target": 81}),
    "17": ("countdown", "6 * 34 / (11 + 1)", {"numbers": [6, 34, 1, 11], "target": 17}),
    "24": ("puzzle24", "4 + 5 + 7 + 8", {"numbers": [4, 5, 7, 8]}),
    "maze": ("maze", "7", {}),
    "knights": ("knights_knaves", "Zoey is a fool, and Riley is a sage.", {}),
    "numbers": ("number_sorting", SORTED, {"direction": "ascending"}),
    "words": ("word_sorting", ", ".join(WORDS), {"sorted_words": WORDS}),
    "letters": ("letter_counting", "1", {}),
    "fraction": ("fraction_simplification", "$244/607$", {**UNREDUCED, **REDUCED}),
    "decimal": ("decimal_arithmetic", "4.86090396050", {}),
    "sum": ("decimal_chain_sum", "1.200", {}),
    "syllogism": ("syllogism", "Yes", {}),
    "sudoku": ("mini_sudoku", "2 4 1 3\n3 1 4 2\n4 2 3 1\n1 3 2 4", {"solution": SOLUTION}),
    "logic": ("propositional_logic", None, {"premises": ["R", "Q"], "variables": list("PQRS")}),
    "factors": ("prime_factorization", "2 \u00d7 2 \u00d7 3", {}),
    "weekday": ("calendar_arithmetic", "Monday", {"task": "weekday_offset"}),
}
"""The task, the answer and the metadata of the entries that ANSWERS name."""

ANSWERS = [
    ("legs", "100", 1),  # open-thought/reasoning-gym PR 136
    # open-thought/reasoning-gym tests/test_utils.py
    ("legs", "<think>48 + 8 + 44</think>\n<answer>\n100 </answer>", 1),
    ("legs", LAST.format(99, 100), 1),  # databricks/officeqa PR 39
    ("legs", LAST.format(100, 96), 0),  # databricks/officeqa PR 39
    ("legs", "<think>48 + 8 + 44 = 100</think><answer>98</answer>", 0),  # Jiayi-Pan/TinyZero#120
    # open-thought/reasoning-gym PR 136, the example of its prompt
    ("legs", "<answer>30</answer>", 0),
    ("legs", "100 <answer> </answer>", 0),
    ("legs", "<answer>100", 3 / 11),
    ("legs", "<answer>100 legs</answer>", 3 / 8),
    ("legs", "<answer>1000</answer>", 3 / 4),
    ("chain", "<answer>42</answer>", 1),  # PeterGriffinJin/Search-R1#79
    # meta-pytorch/torchtune PR 2604
    ("chain", "<think>a</think><answer>1</answer><answer>42</answer>", 1),
    # meta-pytorch/torchtune PR 2604
    ("chain", "<answer>42</answer><think>b</think><answer>2</answer>", 0),
    ("chain", "The answer is 42", 2 / 16),  # open-thought/reasoning-gym tests/test_utils.py
    ("chain", r"<answer>\boxed{42}</answer>", 2 / 10),  # AI-Hypercomputer/maxtext PR 4150
    ("chain", r"\text{42}", 2 / 9),  # open-thought/reasoning-gym tests/test_scoring.py
    ("chain", r"\(42\)", 2 / 6),  # open-thought/reasoning-gym tests/test_scoring.py
    ("chain", "<Answer>42</Answer>", 2 / 19),
    ("chain", "-42", 2 / 3),
    ("chain", "4.2e1", 1),
    ("thousand", "1,000", 1),  # open-thought/reasoning-gym tests/test_utils.py
    ("thousand", "+0001,000.00", 1),  # open-thought/reasoning-gym tests/test_utils.py
    ("basic", "1234", 1),
    ("basic", "1,234", 0),  # open-thought/reasoning-gym PR 175
    ("basic", "1234.0", 4 / 6),
    ("gcd", "36 = 3 * 12. <answer>12</answer>", 1),
    ("gcd", "2 * 2 * 3", 0),
    ("backward", "ssiknu", 1),  # open-thought/reasoning-gym tests/test_get_score_answer_fn.py
    ("backward", "SSIKNU", 1),
    ("backward", "unkiss", 0),  # open-thought/reasoning-gym tests/test_get_score_answer_fn.py
    ("equation", "<answer>61</answer> since 405 * 61 = 24705", 1),
    ("equation", "h = 61", 2 / 6),
    ("119", "(82 - 50) + (67 + 20)", 1),
    ("119", "82 + 20 + 67 - 50 = 119", 0.01),
    ("119", "100 + 19", 0.05),  # open-thought/reasoning-gym PR 265
    # Jiayi-Pan/TinyZero#120
    ("119", "<think>82+20+67-50</think><answer>82+20-67+50</answer>", 0.05),
    ("47", "45+2", 0.05),  # open-thought/reasoning-gym tests/test_countdown.py
    ("50", "45+2+3", 0.05),  # open-thought/reasoning-gym tests/test_countdown.py
    ("81", "81*1", 0.05),  # open-thought/reasoning-gym#478
    ("81", "1*81*1/1", 1),
    ("17", "6*34/11-1", 0.05),  # open-thought/reasoning-gym#478
    ("24", "4 + 5 + 7 + 8", 1),  # open-thought/reasoning-gym tests/test_puzzle24.py
    ("24", "4*5*7*8", 0.01),  # open-thought/reasoning-gym tests/test_puzzle24.py
    ("maze", "<answer>7</answer>", 1),
    ("maze", "7 steps", 1 / 7),
    # open-thought/reasoning-gym tests/test_knights_knaves.py
    ("knights", "(Riley,sage), (Zoey,fool)", 1),
    # open-thought/reasoning-gym tests/test_knights_knaves.py
    ("knights", "(Zoey, fool), (Riley, sage)", 1),
    # open-thought/reasoning-gym tests/test_knights_knaves.py
    ("knights", "Zoey is a fool and Riley is a fool.", 0.65),
    # open-thought/reasoning-gym tests/test_knights_knaves.py
    ("knights", "Zoey sage Riley fool", 0),
    ("knights", "Zoey: fool, Riley: sage", 0),
    ("knights", "Zoey is a fool/sage, and Riley is a fool/sage", 0),
    ("numbers", "[-97.8, -95.7, -92.85, -83.6, -16.5, 61.5, 71.08]", 1),
    # open-thought/reasoning-gym#377
    ("numbers", "['-97.8', '-95.7', '-92.85', '-83.6', '-16.5', '61.5', '71.08']", 1),
    # open-thought/reasoning-gym tests/test_number_sorting.py
    ("numbers", "['-16.5', '-83.6', '-92.85', '-95.7', '-97.8', '61.5', '71.08']", 0),
    # open-thought/reasoning-gym tests/test_number_sorting.py
    ("numbers", "['-97.8', '-95.7', '-92.85', '-83.6', '-16.5', '61.5']", 0),
    # open-thought/reasoning-gym tests/test_number_sorting.py
    ("numbers", "'-97.8', '-95.7', '-92.85', '-83.6', '-16.5', '61.5', '71.08'", 0),
    # open-thought/reasoning-gym tests/test_word_sorting.py
    ("words", "apple,banana,        cherry", 1),
    # open-thought/reasoning-gym tests/test_word_sorting.py
    ("words", "banana, cherry, apple", 0.2),
    ("words", "apple banana cherry", 0),
    ("letters", "one", 0),
    ("fraction", r"$\dfrac{244}{607}$", 1),  # open-thought/reasoning-gym PR 144
    ("fraction", "607/244", 0.05),
    ("fraction", "17080/42490", 0.1),
    ("fraction", r"\boxed{244/607}", 0.01),
    ("decimal", "4.861", 1),
    ("decimal", "4.863", 0),
    ("decimal", "4,86090396050", 0),
    ("sum", "1.20", 1),  # open-thought/reasoning-gym tests/test_decimal_chain_sum.py
    ("sum", "1.199999999", 0),  # open-thought/reasoning-gym tests/test_decimal_chain_sum.py
    ("syllogism", "<answer>Yes or No</answer>", 3 / 9),
    ("syllogism", "yes", 0),  # open-thought/reasoning-gym PR 526
    ("sudoku", "2413\n3142\n4231\n1324", 0.9),
    ("sudoku", "2 4 1 3 \n3 1 4 2\n4 2 3 1\n1 3 2 4", 31 / 32),
    ("sudoku", "2 4 1 3\n3 1 4 2\n1 3 2 4\n4 2 3 1", 0.45),
    ("logic", "(P \u2228 Q)", 1),  # open-thought/reasoning-gym#171
    ("logic", "(P \u2192 P)", 0.25),  # open-thought/reasoning-gym#171
    ("logic", "P", 0.05),
    # open-thought/reasoning-gym tests/test_prime_factorization.py
    ("factors", "2 \u00d7 3 \u00d7 2", 1),
    ("factors", "2 \u00d7 6", 0.5),  # open-thought/reasoning-gym tests/test_prime_factorization.py
    ("factors", "2^2 \u00d7 3", 0),
    ("weekday", "It is Monday", 0),  # open-thought/reasoning-gym tests/test_calendar_arithmetic.py
]
ROWS = [
    (response, ENTRIES[name][1], score, ENTRIES[name][0], {"metadata": ENTRIES[name][2]})
    for name, response, score in ANSWERS
]
