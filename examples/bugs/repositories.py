"""The coding agent example's task: small repositories with a bug each, and a test that finds it.

`python examples/bugs/repositories.py --out DIR --seed N` writes sft.jsonl, rl.jsonl and
evaluation.jsonl, and phrases.json, the texts that become one token each. A function's name says
what it has to return of its two parameters: mul(u, k) has to return u * k, and has a wrong
operator, a wrong parameter, or is off by one. Chats to imitate are as mini-swe-agent writes them by
mini.yaml; they are often wrong: some repair the function without looking at its parameters, and
some choose a wrong operator. Tasks and functions of evaluation are the same for every seed; no seed
has one of them in training.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from string import ascii_lowercase

from verl_hpc.data.split import is_held_out
from verl_hpc.testing.task_files import task_main, write_files

ROWS = {"sft": 20_000, "rl": 5_000, "evaluation": 512}
EVALUATION_SHARE = 0.1
NAMES = {
    "+": ("add", "plus"),
    "-": ("sub", "minus"),
    "*": ("mul", "times"),
    "//": ("div", "over"),
    "%": ("mod", "rem"),
}
"""Names of functions by the operator that they need."""
LOOKS, RIGHT = 0.35, 0.85
"""Shares of chats to imitate that look at the function first, and that choose the operator that its
name asks for."""
SYSTEM = "Fix the bug."
TASK = "{function} in {module}.py is wrong"
SOURCE = "def {function}({a}, {b}):\n    return {value}\n"
LOOK = "cat {module}.py"
REPAIR = "sed -i 's|return .*|return {value}|' {module}.py"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
ACTION = "```bash\n{command}\n```"
CALLS = ((7, 3), (12, 5), (4, 9))
"""Arguments of the test's calls; every two operators differ in one of their values."""
COMPUTE = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}


def draw(num_rows: int, seed: str, *, held_out: bool) -> Iterator[Mapping[str, object]]:
    """Draw rows.

    Args:
        held_out: draw tasks and functions that are held out for evaluation, or all others.
    """
    random = Random(seed)  # noqa: S311
    num_drawn = 0
    while num_drawn < num_rows:
        operator = random.choice([*NAMES])
        function = random.choice(NAMES[operator])
        module = "".join(random.choices(ascii_lowercase, k=2))
        a, b = random.sample(ascii_lowercase, 2)
        task = TASK.format(function=function, module=module)
        texts = task, f"{function} {a} {b}"
        if {is_held_out(text, EVALUATION_SHARE) for text in texts} != {held_out}:
            continue
        num_drawn += 1
        value = _wrong(operator, a, b, random)
        source = SOURCE.format(function=function, a=a, b=b, value=value)
        prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
        if seed.startswith("sft"):
            yield {"messages": [*prompt, *_imitated(source, module, operator, (a, b), random)]}
            continue
        values = [COMPUTE[operator](*arguments) for arguments in CALLS]
        file = f"{module}.py"
        test = {"file": file, "function": function, "calls": CALLS, "values": values}
        extra = {"files": {file: source}}
        yield {"prompt": prompt, "answer": json.dumps(test), "extra_info": extra}


def _wrong(operator: str, a: str, b: str, random: Random) -> str:
    """Return what a function with a bug returns."""
    another = random.choice([other for other in NAMES if other != operator])
    wrong = f"{a} {another} {b}", f"{a} {operator} {a}", f"{a} {operator} {b} + 1"
    return random.choice(wrong)


def _imitated(
    source: str, module: str, operator: str, parameters: Sequence[str], random: Random
) -> Iterator[dict[str, str]]:
    """Yield what the agent and its shell say after the task."""
    if random.random() < LOOKS:
        yield from _acted(LOOK.format(module=module), source)
    else:
        parameters = random.sample(ascii_lowercase, 2)
    if random.random() >= RIGHT:
        operator = random.choice([other for other in NAMES if other != operator])
    value = f"{parameters[0]} {operator} {parameters[1]}"
    yield from _acted(REPAIR.format(value=value, module=module), "")
    yield {"role": "assistant", "content": ACTION.format(command=SUBMIT)}


def _acted(command: str, output: str) -> Iterator[dict[str, str]]:
    yield {"role": "assistant", "content": ACTION.format(command=command)}
    yield {"role": "user", "content": output}


def phrases() -> list[str]:
    """Return the texts that become one token each."""
    functions = [name for names in NAMES.values() for name in names]
    operators = [f" {operator} " for operator in NAMES]
    texts = [" in ", ".py is wrong", "def ", ", ", "):\n    return ", " + 1", "cat ", ".py"]
    texts += [*REPAIR.split("{value}")[:1], "|' ", SUBMIT, *ACTION.split("{command}"), SYSTEM]
    return [*functions, *operators, *texts, "system\n", "user\n", "assistant\n"]


def write(directory: Path, seed: int) -> str:
    """Write all files; see `write_files`."""
    return write_files(directory, seed, ROWS, draw, phrases())


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    return task_main("python examples/bugs/repositories.py", __doc__, write, argv)


if __name__ == "__main__":
    sys.exit(main())
