"""Programs in all forms that models write, and answers that only look right."""

import random

from tests.unit.rewards.answers.code import ANSWERS, ASSERT, CALL, CHECK, FUNCTION, TICKS, block
from tests.unit.rewards.sandbox.conftest import sandbox_of
from verl_hpc.rewards.code_blocks import program_of
from verl_hpc.rewards.code_tests import read_cases
from verl_hpc.rewards.functions.code import Options as CodeOptions
from verl_hpc.rewards.functions.code import compute_scores
from verl_hpc.rewards.request import Request


def unlike(rows):
    """The rows (text, tests, score, ...) whose text has another score, and what it has."""
    requests = [Request(i, "code", tests, {}, text) for i, (text, tests, *_) in enumerate(rows)]
    scored = compute_scores(requests, sandbox_of("limits"), CodeOptions(max_concurrent=2))
    scores = [one if isinstance(one, Exception) else one["score"] for one in scored]
    return [(row, score) for row, score in zip(rows, scores, strict=True) if score != row[2]]


def test_every_answer_of_the_table_has_its_score():
    assert not unlike(ANSWERS)


FORMS = [
    "{}",
    f"{TICKS}python\n{{}}\n{TICKS}",
    f"text\n\n{TICKS} Py\n{{}}\n{TICKS}\nmore",
    f"~~~~python3\n{{}}\n~~~~\n{TICKS}\n4\n{TICKS}",
    f"{TICKS}\n{{}}\n{TICKS}\n{TICKS}\n4\n{TICKS}",
    f"{TICKS}text\nplan\n{TICKS}\n{TICKS}python\n{{}}",
    f"{TICKS}text\nplan\n{TICKS}python\n{{}}\n{TICKS}",
    f"So: {TICKS}python\n{{}}\n{TICKS} done",
    f"{{}}\n{TICKS}\nThat is all.",
    f"<think>{TICKS}python\n{FUNCTION}\n{TICKS}</think>{TICKS}\n{{}}\n{TICKS}",
]


def test_the_program_of_every_form_is_the_one_in_it():
    for form in FORMS:
        for program in ("def double(x):\n    return x + 1", "import os\n\nprint(3)\n\n# end"):
            assert program_of(form.format(program)).text.strip() == program


PROGRAMS = {
    FUNCTION: 1.0,
    "double = lambda x: x + x": 1.0,
    "def double(x):\n    return x + 2": 0.0,
    "def double(x):\n    return x * x": 0.0,
    "def double(x):\n    print(2 * x)": 0.0,
    "def double(x):\n    return str(2 * x)": 0.0,
    "def double(x):\n    return 2 * x if x > 0 else 0": 0.0,
    "def double(x):\n    raise SystemExit(0)": 0.0,
    "import os\nos._exit(0)": 0.0,
}
"""What doubles a number, and what only looks so."""


MADE = [
    "class E(int):\n    __eq__ = int.__ne__\n    __sub__ = int.__and__",
    "from functools import *\nclass E(int):\n    __eq__ = partialmethod(lambda self, other: True)",
    "import sys, types\nm = sys.modules['m'] = types.ModuleType('m')\nexec({!r}, vars(m))\nE = m.E",
    "import fractions\nexec({!r}, vars(fractions))\nE = fractions.E",
    "import collections\nexec({!r}, vars(collections))\nE = collections.E",
    "class M(type):\n    __flags__ = 0\nclass E(int, metaclass=M):\n    __eq__ = int.__ne__",
]
EQUALS = "class E(int):\n    def __eq__(self, other): return True"


def test_a_class_that_is_equal_to_what_a_test_expects_fails():
    rows = [
        (f"{made.replace('{!r}', repr(EQUALS))}\ndef double(x):\n    return E(0)", truth, 0)
        for made in MADE
        for truth in (ASSERT, CHECK)
    ]
    rows += [
        ("import fractions\ndef double(x):\n    return fractions.Fraction(2 * x)", ASSERT, 1),
        ("import decimal\ndef double(x):\n    return decimal.Decimal(2 * x)", CHECK, 1),
        ("import collections as c\ndef double(x):\n    return c.Counter(a=2 * x)['a']", CHECK, 1),
    ]
    assert not unlike([(block(text), truth, score) for text, truth, score in rows])


def test_a_wrong_program_fails_in_every_form_by_every_kind_of_tests():
    rows = [
        (form.format(program), (ASSERT, CHECK, CALL)[(number + index) % 3], score)
        for number, (program, score) in enumerate(PROGRAMS.items())
        for index, form in enumerate(FORMS)
    ]
    assert not unlike(rows)


def test_no_wrong_value_is_taken_in_any_form():
    rng = random.Random(0)
    for _ in range(2000):
        right = rng.choice([rng.randrange(-1000, 1000), round(rng.uniform(-99, 99), 4)])
        wrong = right + rng.choice([-1, 1]) * rng.choice([1, 0.01, 1e-3, 10, 1000])
        word = rng.choice(["{}", " {} \n", "+{}", "{}e0", "{} {}", "[{}]", "{}.", "{}\n{}", "{!r}"])
        for shown in (word.format(wrong, right), word.format(right, wrong)):
            (printed,) = read_cases({"inputs": [""], "outputs": [f"{right}\n"]})
            if shown.strip().lstrip("+") not in (str(right), f"{right}e0", f"{right}."):
                assert not printed.passes(shown), (right, shown)
        for truth, returned in ((right, wrong), ([right], [wrong]), ([[right]], [[wrong]])):
            (called,) = read_cases({"fn_name": "f", "inputs": [[]], "outputs": [truth]})
            assert not called.passes(f"{called.word}{returned}"), (truth, returned)
            assert called.passes(f"{called.word}{truth}")


def test_fences_are_read_in_pairs():
    cases = [
        (f"{TICKS}\n1\n{TICKS}\nx\n{TICKS}py\n2\n{TICKS}", "2\n"),
        (f"{TICKS}`py\n{TICKS}\n1\n{TICKS}`", f"{TICKS}\n1\n"),
        (f"~~~py\n{TICKS}\n~~~", f"{TICKS}\n"),
        (f"{TICKS}py\n    {TICKS}\n{TICKS}", f"    {TICKS}\n"),
        (f"{TICKS}py\n{TICKS}b\n{TICKS}", f"{TICKS}b\n"),
        (f"{TICKS}py\n1", "1"),
    ]
    for text, program in cases:
        assert program_of(text).text == program
    for text in (f"{TICKS}py {TICKS} b", "``\n1\n``"):
        assert not program_of(text).fenced


def test_a_megabyte_of_fences_is_read_and_counted():
    million = 10**6
    for text in (
        TICKS * million,
        f"{TICKS}\n" * (million // 4),
        f"{TICKS}python\n" * (million // 10),
        f"{'`' * million}x`",
        " " * million + TICKS,
        "1. " * (million // 3) + TICKS + "x",
        block("x = 1\n" * (million // 6)),
    ):
        program_of(text, ["double"])
    assert not program_of("no fence").fenced
    assert not program_of(f"{TICKS}python\nprint(").closed
    sandbox = sandbox_of("limits")
    long = block("# x = 1\n" * (million // 8) + "print(2)")
    requests = [
        Request(0, "code", {"inputs": [""], "outputs": ["2"]}, {}, text)
        for text in (long, f"{TICKS}python\nprint(2)", "print(2)", f"{TICKS}\n" * (million // 4))
    ]
    scored = compute_scores(requests, sandbox, CodeOptions())
    counted = [(s["score"], s["code_not_fenced"], s["code_not_closed"]) for s in scored]
    assert counted == [(1, 0, 0), (1, 0, 1), (1, 1, 0), (0, 0, 0)]
