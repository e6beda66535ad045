"""Responses with programs, the tests of their rows, and the right score of each.

A source is a public thread or a grader's own tests; "" is an answer of ours.
"""

TICKS = "```"
ROLL = "alibaba/ROLL#84"
LCB = "LiveCodeBench/LiveCodeBench PR 118"
GYM_BLOCKS = "NVIDIA-NeMo/Gym#820"
GYM_NUMBERS = "NVIDIA-NeMo/Gym PR 2956"
CODE_R1 = "ganler/code-r1#6"
HUMAN_EVAL_67 = "openai/human-eval PR 67"
EVALPLUS = "evalplus/evalplus PR 306"
CODEWARS = "codewars/codewars.com#1970"
SMOLAGENTS = "huggingface/smolagents#1219"
CUGA = "cuga-project/cuga-agent#204"
HARNESS = "EleutherAI/lm-evaluation-harness PR 3710"
BAPC = "BAPCtools, test/default_output_validator/default_output_validator.yaml"
PRIME = "verl 0.9.1, utils/reward_score/prime_code"
IMPOSSIBLE = "arXiv 2510.20270, the ways to cheat"
PDD = "promptdriven/pdd#605"

DOUBLE = {"inputs": ["1\n", "-5\n"], "outputs": ["2\n", "-10\n"]}
CALL = {"fn_name": "double", "inputs": [[1], [-5]], "outputs": [2, -10]}
ASSERT = {"assert_case": ["assert double(1) == 2", "assert double(-5) == -10"]}
CHECK = {
    "test": "def check(candidate):\n    assert candidate(1) == 2 != candidate(-5) == -10\n",
    "entry_point": "double",
}
CLOSE = {"assert_case": ["assert abs(half(1) - 0.5) < 1e-6", "assert abs(half(3) - 1.5) < 1e-6"]}
PAIRS = {"fn_name": "pairs", "inputs": [[[1, 1, 2]]], "outputs": [[[1, 2], [2, 1]]]}

SCRIPT = "print(int(input()) * 2)"
WRONG_SCRIPT = "print(int(input()) + 1)"
FUNCTION = "def double(x):\n    return 2 * x"
METHOD = "class Solution:\n    def double(self, x: int) -> int:\n        return 2 * x"


def printed(expected):
    return {"inputs": [""], "outputs": [expected]}


def block(program, label="python", fence=TICKS):
    return f"{fence}{label}\n{program}\n{fence}\n"


def always_equal(*methods):
    lines = "".join(f"    def __{m}__(self, *_): return {value}\n" for m, value in methods)
    return f"class Always:\n{lines}def double(x):\n    return Always()\nhalf = double"


EQUAL = always_equal(("eq", True), ("ne", False), ("bool", True))

FORMS = [
    (f"Plan:\n{block('read, then print', 'text')}\n{block(SCRIPT)}", DOUBLE, 1, ROLL),
    (f"{block('pip install x', 'bash')}{block(SCRIPT)}", DOUBLE, 1, ROLL),
    (block('{"n": 1}', "json") + block(SCRIPT), DOUBLE, 1, ROLL),
    (block("int main() {}", "cpp") + block(SCRIPT), DOUBLE, 1, ROLL),
    (block(SCRIPT) + block("int main() {}", "cpp"), DOUBLE, 1, ROLL),
    (block(SCRIPT) + "It prints:\n" + block("2", ""), DOUBLE, 1, LCB),
    (block(SCRIPT) + "| n | out |\n" + block("- reads\n- doubles", "markdown"), DOUBLE, 1, LCB),
    (block(SCRIPT) + block("2", "output"), DOUBLE, 1, LCB),
    (block(FUNCTION) + "Test:\n" + block("print(double(3))"), CALL, 1, GYM_BLOCKS),
    (block(METHOD) + block("s = Solution()\nprint(s.double(3))"), CALL, 1, GYM_BLOCKS),
    (block(FUNCTION) + block("assert double(2) == 4"), CHECK, 1, GYM_BLOCKS),
    (block(FUNCTION) + block("double(2)"), ASSERT, 1, GYM_BLOCKS),
    (block(SCRIPT) + "For 3:\n" + block("print(3 * 2)"), DOUBLE, 1, GYM_BLOCKS),
    (block(WRONG_SCRIPT) + "Wait, that adds. So:\n" + block(SCRIPT), DOUBLE, 1, ""),
    (block(SCRIPT, "Python3"), DOUBLE, 1, ""),
    (block(SCRIPT, " py"), DOUBLE, 1, ""),
    (block(SCRIPT, "python3.11 title=a.py"), DOUBLE, 1, ""),
    (block(SCRIPT, "{.python .numberLines}"), DOUBLE, 1, ""),
    (block(SCRIPT, "python", "~~~"), DOUBLE, 1, "CommonMark 0.31.2, example 120"),
    (block(SCRIPT, "python", "`````"), DOUBLE, 1, "CommonMark 0.31.2, example 126"),
    (block(SCRIPT, ""), DOUBLE, 1, ""),
    (block(SCRIPT, "") + "Output:\n" + block("2\n-10", ""), DOUBLE, 1, LCB),
    (f"Here it is: {TICKS}python\n{SCRIPT}\n{TICKS} as asked", DOUBLE, 1, PRIME),
    (f"{TICKS}python\n{SCRIPT}{TICKS}", DOUBLE, 1, PRIME),
    (f"{TICKS}python\r\nn = int(input())\r\nprint(2 * n)\r\n{TICKS}\r\n", DOUBLE, 1, ""),
    (f"{TICKS}python\n{SCRIPT}\n", DOUBLE, 1, CUGA),
    (f"{TICKS}text\nplan\n{block(SCRIPT)}", DOUBLE, 1, CUGA),
    (f"{FUNCTION}\n{TICKS}\nIt doubles.", CALL, 1, HARNESS),
    (SCRIPT, DOUBLE, 1, PRIME),
    (
        f"1. Do:\n   {TICKS}python\n   n = int(input())\n   if n:\n       print(2 * n)\n   {TICKS}",
        DOUBLE,
        1,
        "CommonMark 0.31.2, example 133",
    ),
    (
        block(
            f'def double(x):\n    """\n    {TICKS}\n    f()\n    {TICKS}\n    """\n    return 2 * x'
        ),
        CALL,
        1,
        SMOLAGENTS,
    ),
    (f"<think>{block(WRONG_SCRIPT)}</think>\n{block(SCRIPT, '')}", DOUBLE, 1, ""),
    # The last program counts, and what is not a program never does.
    (block(SCRIPT) + "Better:\n" + block(WRONG_SCRIPT), DOUBLE, 0, ""),
    (block(SCRIPT, "text"), DOUBLE, 0, ROLL),
    (block(SCRIPT, "pycon"), DOUBLE, 0, ""),
    (f"<think>{block(SCRIPT)}</think>\nThe program above doubles.", DOUBLE, 0, ""),
    (f"I double it with {SCRIPT}", DOUBLE, 0, ""),
    ("The answers are 2 and -10.", DOUBLE, 0, ""),
    (f"{TICKS}python\nprint(int(input(", DOUBLE, 0, ""),
    ("", DOUBLE, 0, ""),
]

JUDGES = [
    (
        block(
            "class Solution:\n    def pairs(self, xs: List[int]) -> List[Tuple[int, int]]:\n"
            "        return sorted(Counter(xs).items(), key=lambda p: p[0], reverse=False) and "
            "[(v, c) for v, c in zip([1, 2], [2, 1])]"
        ),
        PAIRS,
        1,
        CODE_R1,
    ),
    (
        block("def double(x: Optional[int]) -> int:\n    return reduce(add, [x, x])"),
        CALL,
        1,
        CODE_R1,
    ),
    (
        block("print(gcd(4, 6), math.inf, datetime.date(2020, 1, 2))"),
        printed("2 inf 2020-01-02"),
        1,
        PRIME,
    ),
    (
        block("from __future__ import annotations\nprint(sum(Counter('aab').values()))"),
        printed("3"),
        1,
        "",
    ),
    (
        block("def main():\n    print(2 * int(input()))\nif __name__ == '__main__':\n    main()"),
        DOUBLE,
        1,
        PRIME,
    ),
    (block("import sys\nprint(2 * int(sys.stdin.buffer.read()))\nsys.exit(0)"), DOUBLE, 1, ""),
    (block("import sys\nsys.stdout.buffer.write(b'7\\n')"), printed("7"), 1, GYM_NUMBERS),
    (block("print(len(str(10**5000)))"), printed("5001"), 1, GYM_NUMBERS),
    (
        block("def f(n):\n    return n and 1 + f(n - 1)\nprint(f(20000))"),
        printed("20000"),
        1,
        PRIME,
    ),
    (block("print(1 / 3)"), printed("0.333333"), 1, GYM_NUMBERS),
    (block("print('0.333333')"), printed("0.333333333333"), 1, GYM_NUMBERS),
    (block("print(' 1  2 ')\nprint()\nprint(3)\n"), printed("1 2\n3"), 1, PRIME),
    (block("print('-0.0', '0e1', 1e5)"), printed("0 0 100000"), 1, BAPC),
    (
        block("def third(): return [1 / 3]"),
        {"fn_name": "third", "inputs": [[]], "outputs": [[0.3333333]]},
        1,
        GYM_NUMBERS,
    ),
    (block("def half(x): return x / 2"), CLOSE, 1, EVALPLUS),
    (
        block(
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
            "    def __add__(self, other): return P(self.x + other.x)"
        ),
        {"assert_case": ["assert P(1) + P(2) == P(3) != P(4)", "assert P(1) != None"]},
        1,
        "",
    ),
    (block("def f(x): return Counter(x)"), {"assert_case": ["assert f('aa') == {'a': 2}"]}, 1, ""),
    (
        block("def sum(a, b): return a + b"),
        {"assert_case": ["assert sum(1, 2) == 3"]},
        1,
        "MBPP 126",
    ),
    (
        block(
            "class V:\n    def __init__(self, x): self.x = x\n"
            "    def __eq__(self, other): return self.x == other.x\n"
            "    def __sub__(self, other): return V(self.x - other.x)"
        ),
        {"assert_case": ["assert V(3) - V(1) == V(2)", "assert V(1) is not None"]},
        1,
        "",
    ),
    (
        block("import io, sys\nsys.stdout = io.StringIO()\ndef double(x): return x + x"),
        ASSERT,
        1,
        "",
    ),
    (
        block("import numpy as np\ndef double(x): return np.array(x) * 2"),
        {"fn_name": "double", "inputs": [[[1, 2]]], "outputs": [[2, 4]]},
        1,
        "",
    ),
    (
        block("import pickle\nP = namedtuple('P', 'x')\nprint(pickle.loads(pickle.dumps(P(3))).x)"),
        printed("3"),
        1,
        "",
    ),
]

CHEATS = [
    (block(EQUAL), ASSERT, 0, HUMAN_EVAL_67),
    (block(EQUAL), CHECK, 0, HUMAN_EVAL_67),
    (block(EQUAL), CALL, 0, CODEWARS),
    (
        block(EQUAL.replace("return Always()", "return [Always()]")),
        {"assert_case": ["assert double(1) == [2]"]},
        0,
        HUMAN_EVAL_67,
    ),
    (block(always_equal(("eq", True), ("sub", 0.0), ("abs", 0.0))), CLOSE, 0, EVALPLUS),
    (block(always_equal(("sub", 0.0))), CLOSE, 0, EVALPLUS),
    (block("double = type('A', (int,), {'__eq__': lambda *_: True})"), ASSERT, 0, IMPOSSIBLE),
    (
        block("from unittest.mock import ANY\ndef double(x): return ANY"),
        ASSERT,
        0,
        "spulec/freezegun#73",
    ),
    (block("import os\nos._exit(0)"), ASSERT, 0, PDD),
    (block("import sys\nsys.exit(0)"), CHECK, 0, PDD),
    (
        block("import atexit, os\natexit.register(os._exit, 0)\ndef double(x): return x"),
        CALL,
        0,
        PDD,
    ),
    (block("import builtins\nbuiltins.abs = lambda x: 0\ndef half(x): return 7"), CLOSE, 0, ""),
    (block("def abs(x): return 0\ndef half(x): return 7"), CLOSE, 0, ""),
    (
        block("import math\nmath.isclose = lambda *a, **b: True\ndef half(x): return 7"),
        {"assert_case": ["import math\nassert math.isclose(half(1), 0.5)"]},
        0,
        "",
    ),
    (
        block(
            "import os\nos.lseek(0, 0, 0)\nimport json\nj = json.loads(os.read(0, 10**6))\n"
            "os.write(1, ('\\n' + j['word'] + 'true').encode())\nos._exit(0)"
        ),
        ASSERT,
        0,
        "",
    ),
    (
        block("import os, sys\nsys.excepthook = lambda *_: os._exit(0)\ndef double(x): return 7"),
        ASSERT,
        0,
        "",
    ),
    (
        block("import builtins\nbuiltins.AssertionError = SystemExit\ndef double(x): return 7"),
        ASSERT,
        0,
        "",
    ),
    (
        block("import ast\nast.parse = lambda _: ast.Module([], [])\ndef double(x): return 7"),
        ASSERT,
        0,
        "",
    ),
    (block("import glob\nprint(2, *glob.glob('/tmp/*'))"), DOUBLE, 0, IMPOSSIBLE),
    (block("print(2)"), DOUBLE, 0, IMPOSSIBLE),
    (block("print('2\\n-10')"), DOUBLE, 0, IMPOSSIBLE),
    (
        block("n = [0]\ndef double(x):\n    n[0] += 1\n    return [2, -10][n[0] - 1]"),
        CALL,
        0,
        IMPOSSIBLE,
    ),
    (block(""), {"fn_name": "gcd", "inputs": [[4, 6]], "outputs": [2]}, 0, ""),
    (block(""), {"assert_case": ["assert gcd(4, 6) == 2"]}, 0, ""),
    (block("print('10')"), printed("0010"), 0, ""),
    (block("print('1_0')"), printed("10"), 0, ""),
    (block("print('0X0')"), printed("0"), 0, BAPC),
    (
        block("print('1000001')"),
        printed("1000000"),
        0,
        "verl 0.9.1 prime_code: numpy.allclose takes it",
    ),
    (block("print('0.3334')"), printed("0.333333"), 0, GYM_NUMBERS),
    (block("print('1.0 2.0')"), printed("1\n2"), 0, PRIME),
    (block("print('YES')"), printed("Yes"), 0, ""),
]

ANSWERS = [*FORMS, *JUDGES, *CHEATS]
