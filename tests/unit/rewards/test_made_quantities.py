"""Percentages, ratios, bases, times, units and the like: a wrong value scores 0 in every form."""

import random
from itertools import product

from verl_hpc.rewards.functions.math import compute_score

WAYS = {
    "percent": (
        [r"{v}\%", "{v}%", "{v} percent", r"{v}\text{{ percent}}", r"{v} \text{{\%}}"],
        [r"{v}\%", "{v}%", "{v} percent"],
    ),
    "ratio": (
        ["{v} out of {w}", r"{v} \text{{ out of }} {w}", r"\text{{{v} out of {w}}}"],
        [r"\frac{{{v}}}{{{w}}}", "{v}/{w}"],
    ),
    "base": (["1{v}_{{{u}}}", "1{v}_{u}", "(1{v})_{{{u}}}"], ["1{v}_{{{u}}}", "1{v}_{u}"]),
    "both": (
        [
            r"{v} \pm \sqrt{{{w}}}", r"{v}\pm\sqrt{{{w}}}", "{v} \u00b1 \\sqrt{{{w}}}",
            r"x = {v} \pm \sqrt{{{w}}}", r"\{{{v}+\sqrt{{{w}}},{v}-\sqrt{{{w}}}\}}",
            r"{v}-\sqrt{{{w}}}, {v}+\sqrt{{{w}}}",
            r"{v}+\sqrt{{{w}}} \text{{ and }} {v}-\sqrt{{{w}}}",
        ],
        [r"{v} \pm \sqrt{{{w}}}"],
    ),
    "mixed number": (
        [r"{v}\frac{{{u}}}{{{w}}}", r"{v} \frac{{{u}}}{{{w}}}", "{v} {u}/{w}",
         r"{v}\dfrac{{{u}}}{{{w}}}", r"{v}+\frac{{{u}}}{{{w}}}"],
        [r"{v}\frac{{{u}}}{{{w}}}", "{v} {u}/{w}"],
    ),
    "unit": (
        [r"{v}\text{{ {n}}}", "{v} {n}", r"{v}~\mathrm{{{n}}}", r"{v}\,\text{{{n}}}", "{v} {n}s"],
        [r"{v}\text{{ {n}}}", "{v} {n}"],
    ),
    "time": (
        ["{h}:{m} PM", "{h}:{m} p.m.", r"{h}:{m}\text{{ PM}}", "{h}:{m}"],
        ["{h}:{m} PM", r"{h}:{m} \text{{ p.m.}}"],
    ),
    "repeating": (
        [r"0.\overline{{{w}}}", "0.{w}{w}{w}...", r".\overline{{{w}}}", r"0.{w}{w}\ldots"],
        [r"\frac{{{w}}}{{99}}", r"0.\overline{{{w}}}"],
    ),
    "money": ([r"\${v}", r"\${v}.00", r"{v} \text{{ dollars}}"], [r"\${v}", "{v} dollars"]),
    "magnitude": (
        ["{v} million", r"{v}\text{{ million}}", "{v},000,000", r"{v}{{,}}000{{,}}000"],
        ["{v} million", "{v}000000"],
    ),
}  # fmt: skip
"""Forms of an answer, and forms of the truth, by kind."""
VALUES = {
    "v": [2, 3, 4, 5, 6],
    "u": [7, 8],
    "w": [11, 13, 17, 19, 23, 29],
    "n": ["mile", "hour", "gram", "liter"],
    "h": [1, 4, 7, 11],
    "m": [10, 15, 36, 59],
}
"""What may stand in a form; any two of a name make another answer."""


def is_right(answer, truth):
    return compute_score(rf"So \boxed{{{answer}}}.", truth, timeout_s=60.0) == 1.0


def test_another_value_is_wrong_in_every_form_in_which_the_right_one_is_right():
    rng = random.Random(0)
    for kind, (forms, truths) in WAYS.items():
        for form, truth in product(forms, truths):
            right = {name: rng.choice(choices) for name, choices in VALUES.items()}
            says = truth.format(**right)
            assert is_right(form.format(**right), says), (kind, form, says)
            for name, choices in VALUES.items():
                if f"{{{name}" in form and f"{{{name}" in truth:
                    others = [value for value in choices if value != right[name]]
                    answer = form.format(**right | {name: rng.choice(others)})
                    assert not is_right(answer, says), (kind, answer, says)
