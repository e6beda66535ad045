"""The lookup example's task: follow names that only a tool knows, as many steps as are asked for.

`python examples/lookups.py --out DIR --seed N` writes sft.jsonl, rl.jsonl and evaluation.jsonl, and
phrases.json, the texts that become one token each. Chats to imitate do the right thing less than
half of the time: they stop too early, or look one name too many up. Questions of evaluation are the
same for every seed; no seed has one of them in training.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from string import ascii_lowercase

from verl_hpc.data.split import is_held_out
from verl_hpc.testing.task_files import task_main, write_files

ROWS = {"sft": 20_000, "rl": 10_000, "evaluation": 512}
EVALUATION_SHARE = 0.1
MOST_STEPS = 3
NUM_NAMES = 8
"""Names of a row, which lead around in a circle."""
RIGHT = 0.45
"""Share of right decisions in chats to imitate."""
TOOL = {"type": "function", "function": {"name": "look_up"}}
"""What the tiny decoder's chat template writes of the tool."""
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"name": "', '"}}\n</tool_call>'


def draw(num_rows: int, seed: str, *, held_out: bool) -> Iterator[Mapping[str, object]]:
    """Draw rows.

    Args:
        held_out: draw questions that are held out for evaluation, or all others.
    """
    random = Random(seed)  # noqa: S311
    num_drawn = 0
    while num_drawn < num_rows:
        names = ["".join(random.choices(ascii_lowercase, k=2)) for _ in range(NUM_NAMES)]
        steps = random.randint(1, MOST_STEPS)
        question = f"{steps} steps from {names[0]}"
        if len({*names}) < NUM_NAMES or is_held_out(question, EVALUATION_SHARE) != held_out:
            continue
        num_drawn += 1
        prompt = {"role": "user", "content": question}
        if seed.startswith("sft"):
            yield {"messages": [prompt, *_imitated(names, steps, random)], "tools": [TOOL]}
        else:
            links = dict(zip(names, [*names[1:], names[0]], strict=True))
            yield {"prompt": [prompt], "answer": names[steps], "extra_info": {"links": links}}


def _imitated(names: Sequence[str], steps: int, random: Random) -> Iterator[dict[str, str]]:
    for here, name in enumerate(names):
        right = random.random() < RIGHT
        if (here == steps) == right or here > steps:
            yield {"role": "assistant", "content": name}
            return
        yield {"role": "assistant", "content": name.join(CALL)}
        yield {"role": "tool", "content": names[here + 1]}


def write(directory: Path, seed: int) -> str:
    """Write all files; see `write_files`."""
    phrases = [*CALL, "look_up", " steps from ", "user\n", "assistant\n", "tool\n"]
    return write_files(directory, seed, ROWS, draw, phrases)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    return task_main("python examples/lookups.py", __doc__, write, argv)


if __name__ == "__main__":
    sys.exit(main())
