"""Responses with programs, the tests of their rows, and the right score of each.

A comment names a public thread or a grader's own tests; an answer without one is ours.
"""

TICKS = "```"


def asserts(*cases):
    return {"assert_case": [f"assert {case}" for case in cases]}


def called(name, arguments, result):
    return {"fn_name": name, "inputs": [arguments], "outputs": [result]}


DOUBLE = {"inputs": ["1\n", "-5\n"], "outputs": ["2\n", "-10\n"]}
CALL = {"fn_name": "double", "inputs": [[1], [-5]], "outputs": [2, -10]}
ASSERT = asserts("double(1) == 2", "double(-5) == -10")
CLOSE = asserts("abs(half(1) - 0.5) < 1e-6", "abs(half(3) - 1.5) < 1e-6")
CHECK = {
    "test": "def check(candidate):\n    assert candidate(1) == 2 != candidate(-5) == -10\n",
    "entry_point": "double",
}
PAIRS = called("pairs", [[1, 1, 2]], [[1, 2], [2, 1]])

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

DOCUMENTED = (
    f'def double(x):\n    """\n    {TICKS}\n    f()\n    {TICKS}\n    """\n    return 2 * x'
)
INDENTED = (
    f"1. Do:\n   {TICKS}python\n   n = int(input())\n   if n:\n       print(2 * n)\n   {TICKS}"
)
FORMS = [
    (f"Plan:\n{block('read, then print', 'text')}\n{block(SCRIPT)}", DOUBLE, 1),  # alibaba/ROLL#84
    (f"{block('pip install x', 'bash')}{block(SCRIPT)}", DOUBLE, 1),  # alibaba/ROLL#84
    (block('{"n": 1}', "json") + block(SCRIPT), DOUBLE, 1),  # alibaba/ROLL#84
    (block("int main() {}", "cpp") + block(SCRIPT), DOUBLE, 1),  # alibaba/ROLL#84
    (block(SCRIPT) + block("int main() {}", "cpp"), DOUBLE, 1),  # alibaba/ROLL#84
    # LiveCodeBench/LiveCodeBench PR 118
    (block(SCRIPT) + "It prints:\n" + block("2", ""), DOUBLE, 1),
    # LiveCodeBench/LiveCodeBench PR 118
    (block(SCRIPT) + "| n | out |\n" + block("- reads\n- doubles", "markdown"), DOUBLE, 1),
    (block(SCRIPT) + block("2", "output"), DOUBLE, 1),  # LiveCodeBench/LiveCodeBench PR 118
    (block(FUNCTION) + "Test:\n" + block("print(double(3))"), CALL, 1),  # NVIDIA-NeMo/Gym#820
    (block(METHOD) + block("s = Solution()\nprint(s.double(3))"), CALL, 1),  # NVIDIA-NeMo/Gym#820
    (block(FUNCTION) + block("assert double(2) == 4"), CHECK, 1),  # NVIDIA-NeMo/Gym#820
    (block(FUNCTION) + block("double(2)"), ASSERT, 1),  # NVIDIA-NeMo/Gym#820
    (block(SCRIPT) + "For 3:\n" + block("print(3 * 2)"), DOUBLE, 1),  # NVIDIA-NeMo/Gym#820
    (block(WRONG_SCRIPT) + "Wait, that adds. So:\n" + block(SCRIPT), DOUBLE, 1),
    (block(SCRIPT, "Python3"), DOUBLE, 1),
    (block(SCRIPT, " py"), DOUBLE, 1),
    (block(SCRIPT, "python3.11 title=a.py"), DOUBLE, 1),
    (block(SCRIPT, "{.python .numberLines}"), DOUBLE, 1),
    (block(SCRIPT, "python", "~~~"), DOUBLE, 1),  # CommonMark 0.31.2, example 120
    (block(SCRIPT, "python", "`````"), DOUBLE, 1),  # CommonMark 0.31.2, example 126
    (block(SCRIPT, ""), DOUBLE, 1),
    # LiveCodeBench/LiveCodeBench PR 118
    (block(SCRIPT, "") + "Output:\n" + block("2\n-10", ""), DOUBLE, 1),
    # verl 0.9.1, utils/reward_score/prime_code
    (f"Here it is: {TICKS}python\n{SCRIPT}\n{TICKS} as asked", DOUBLE, 1),
    (f"{TICKS}python\n{SCRIPT}{TICKS}", DOUBLE, 1),  # verl 0.9.1, utils/reward_score/prime_code
    (f"{TICKS}python\r\nn = int(input())\r\nprint(2 * n)\r\n{TICKS}\r\n", DOUBLE, 1),
    (f"{TICKS}python\n{SCRIPT}\n", DOUBLE, 1),  # cuga-project/cuga-agent#204
    (f"{TICKS}text\nplan\n{block(SCRIPT)}", DOUBLE, 1),  # cuga-project/cuga-agent#204
    (f"{FUNCTION}\n{TICKS}\nIt doubles.", CALL, 1),  # EleutherAI/lm-evaluation-harness PR 3710
    (SCRIPT, DOUBLE, 1),  # verl 0.9.1, utils/reward_score/prime_code
    (INDENTED, DOUBLE, 1),  # CommonMark 0.31.2, example 133
    (block(DOCUMENTED), CALL, 1),  # huggingface/smolagents#1219
    (f"<think>{block(WRONG_SCRIPT)}</think>\n{block(SCRIPT, '')}", DOUBLE, 1),
    # The last program counts, and what is not a program never does.
    (block(SCRIPT) + "Better:\n" + block(WRONG_SCRIPT), DOUBLE, 0),
    (block(SCRIPT, "text"), DOUBLE, 0),  # alibaba/ROLL#84
    (block(SCRIPT, "pycon"), DOUBLE, 0),
    (f"<think>{block(SCRIPT)}</think>\nThe program above doubles.", DOUBLE, 0),
    (f"I double it with {SCRIPT}", DOUBLE, 0),
    ("The answers are 2 and -10.", DOUBLE, 0),
    (f"{TICKS}python\nprint(int(input(", DOUBLE, 0),
    ("", DOUBLE, 0),
]

JUDGES = [
    # ganler/code-r1#6
    (
        (
            "class Solution:\n    def pairs(self, xs: List[int]) -> List[Tuple[int, int]]:\n"
            "        return sorted(Counter(xs).items(), key=lambda p: p[0], reverse=False) and "
            "[(v, c) for v, c in zip([1, 2], [2, 1])]"
        ),
        PAIRS,
    ),
    # ganler/code-r1#6
    ("def double(x: Optional[int]) -> int:\n    return reduce(add, [x, x])", CALL),
    # verl 0.9.1, utils/reward_score/prime_code
    ("print(gcd(4, 6), math.inf, datetime.date(2020, 1, 2))", printed("2 inf 2020-01-02")),
    ("from __future__ import annotations\nprint(sum(Counter('aab').values()))", printed("3")),
    # verl 0.9.1, utils/reward_score/prime_code
    ("def main():\n    print(2 * int(input()))\nif __name__ == '__main__':\n    main()", DOUBLE),
    ("import sys\nprint(2 * int(sys.stdin.buffer.read()))\nsys.exit(0)", DOUBLE),
    ("import sys\nsys.stdout.buffer.write(b'7\\n')", printed("7")),  # NVIDIA-NeMo/Gym PR 2956
    ("print(len(str(10**5000)))", printed("5001")),  # NVIDIA-NeMo/Gym PR 2956
    # verl 0.9.1, utils/reward_score/prime_code
    ("def f(n):\n    return n and 1 + f(n - 1)\nprint(f(20000))", printed("20000")),
    ("print(1 / 3)", printed("0.333333")),  # NVIDIA-NeMo/Gym PR 2956
    ("print('0.333333')", printed("0.333333333333")),  # NVIDIA-NeMo/Gym PR 2956
    # verl 0.9.1, utils/reward_score/prime_code
    ("print(' 1  2 ')\nprint()\nprint(3)\n", printed("1 2\n3")),
    # BAPCtools, test/default_output_validator/default_output_validator.yaml
    ("print('-0.0', '0e1', 1e5)", printed("0 0 100000")),
    ("def third(): return [1 / 3]", called("third", [], [0.3333333])),  # NVIDIA-NeMo/Gym PR 2956
    ("def half(x): return x / 2", CLOSE),  # evalplus/evalplus PR 306
    (
        (
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
            "    def __add__(self, other): return P(self.x + other.x)"
        ),
        asserts("P(1) + P(2) == P(3) != P(4)", "P(1) != None"),
    ),
    ("def f(x): return Counter(x)", asserts("f('aa') == {'a': 2}")),
    ("def sum(a, b): return a + b", asserts("sum(1, 2) == 3")),  # MBPP 126
    (
        (
            "class V:\n    def __init__(self, x): self.x = x\n"
            "    def __eq__(self, other): return self.x == other.x\n"
            "    def __sub__(self, other): return V(self.x - other.x)"
        ),
        asserts("V(3) - V(1) == V(2)", "V(1) is not None"),
    ),
    ("import io, sys\nsys.stdout = io.StringIO()\ndef double(x): return x + x", ASSERT),
    (
        "import numpy as np\ndef double(x): return np.array(x) * 2",
        called("double", [[1, 2]], [2, 4]),
    ),
    (
        "import pickle\nP = namedtuple('P', 'x')\nprint(pickle.loads(pickle.dumps(P(3))).x)",
        printed("3"),
    ),
]

CHEATS = [
    (EQUAL, ASSERT),  # openai/human-eval PR 67
    (EQUAL, CHECK),  # openai/human-eval PR 67
    (EQUAL, CALL),  # codewars/codewars.com#1970
    # openai/human-eval PR 67
    (EQUAL.replace("return Always()", "return [Always()]"), asserts("double(1) == [2]")),
    (always_equal(("eq", True), ("sub", 0.0), ("abs", 0.0)), CLOSE),  # evalplus/evalplus PR 306
    (always_equal(("sub", 0.0)), CLOSE),  # evalplus/evalplus PR 306
    # arXiv 2510.20270, the ways to cheat
    ("double = type('A', (int,), {'__eq__': lambda *_: True})", ASSERT),
    ("from unittest.mock import ANY\ndef double(x): return ANY", ASSERT),  # spulec/freezegun#73
    ("import os\nos._exit(0)", ASSERT),  # promptdriven/pdd#605
    ("import sys\nsys.exit(0)", CHECK),  # promptdriven/pdd#605
    # promptdriven/pdd#605
    ("import atexit, os\natexit.register(os._exit, 0)\ndef double(x): return x", CALL),
    ("import builtins\nbuiltins.abs = lambda x: 0\ndef half(x): return 7", CLOSE),
    ("def abs(x): return 0\ndef half(x): return 7", CLOSE),
    (
        "import math\nmath.isclose = lambda *a, **b: True\ndef half(x): return 7",
        {"assert_case": ["import math\nassert math.isclose(half(1), 0.5)"]},
    ),
    (
        (
            "import os\nos.lseek(0, 0, 0)\nimport json\nj = json.loads(os.read(0, 10**6))\n"
            "os.write(1, ('\\n' + j['word'] + 'true').encode())\nos._exit(0)"
        ),
        ASSERT,
    ),
    ("import os, sys\nsys.excepthook = lambda *_: os._exit(0)\ndef double(x): return 7", ASSERT),
    ("import builtins\nbuiltins.AssertionError = SystemExit\ndef double(x): return 7", ASSERT),
    ("import ast\nast.parse = lambda _: ast.Module([], [])\ndef double(x): return 7", ASSERT),
    ("import glob\nprint(2, *glob.glob('/tmp/*'))", DOUBLE),  # arXiv 2510.20270, the ways to cheat
    ("print(2)", DOUBLE),  # arXiv 2510.20270, the ways to cheat
    ("print('2\\n-10')", DOUBLE),  # arXiv 2510.20270, the ways to cheat
    # arXiv 2510.20270, the ways to cheat
    ("n = [0]\ndef double(x):\n    n[0] += 1\n    return [2, -10][n[0] - 1]", CALL),
    ("", called("gcd", [4, 6], 2)),
    ("", asserts("gcd(4, 6) == 2")),
    ("print('10')", printed("0010")),
    ("print('1_0')", printed("10")),
    # BAPCtools, test/default_output_validator/default_output_validator.yaml
    ("print('0X0')", printed("0")),
    ("print('1000001')", printed("1000000")),  # verl 0.9.1 prime_code: numpy.allclose takes it
    ("print('0.3334')", printed("0.333333")),  # NVIDIA-NeMo/Gym PR 2956
    ("print('1.0 2.0')", printed("1\n2")),  # verl 0.9.1, utils/reward_score/prime_code
    ("print('YES')", printed("Yes")),
]

ANSWERS = [
    *FORMS,
    *((block(program), truth, 1) for program, truth in JUDGES),
    *((block(program), truth, 0) for program, truth in CHEATS),
]
