"""Data of the example of `verifiers`: games of Hangman, as its environment textarena plays them.

`python examples/hangman.py --out DIR --seed N`, by a Python that has `verifiers[ta]`, writes
sft.jsonl, rl.jsonl, evaluation.jsonl, and phrases.json, the texts that become one token each. Games
to imitate mostly go through the alphabet, and less often through letters by how frequent they are,
which finds more of a word. Words of evaluation are the same for every seed, and occur nowhere in
training. Where NLTK's words cannot be downloaded, those in the texts that textarena comes with take
their place.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from string import ascii_uppercase
from typing import Any

import nltk
from verifiers_agent import environment_of, row_of

GAME = "Hangman-v0"
NUM_TASKS, NUM_IMITATED = 7000, 4000
ONE_OF = 10
"""One word of so many is kept for evaluation."""
FREQUENT = "EARIOTNSLCUDPMHGBFYWKVXZJQ"
"""Letters by how many of a dictionary's words have them."""
ALPHABETICAL = 0.65
"""Share of games to imitate that go through the alphabet; the others go through FREQUENT."""
SLIPS = 0.1
"""Share of turns in games to imitate that name a random letter instead."""


def provide_words() -> None:
    """Have NLTK find words."""
    corpus = Path(sys.prefix, "nltk_data", "corpora", "words")
    try:
        nltk.data.find("corpora/words")
    except LookupError:
        if nltk.download("words", download_dir=str(corpus.parents[1]), quiet=True):
            return
        package = Path(next(p for p in sys.path if Path(p, "textarena").is_dir()), "textarena")
        texts = " ".join(file.read_text(errors="ignore") for file in package.rglob("*.json"))
        # The environment shows boards of their own where those of its first two games differ.
        words = {word for word in re.findall(r"\b[a-z]+\b", texts) if 4 <= len(word) <= 9}
        corpus.mkdir(parents=True)
        (corpus / "en-basic").write_text("\n".join(sorted(words)))


def begun(task: Any) -> Any:
    """Return the game of a task."""
    import textarena

    random.seed(task.data.info["seed"])
    game = textarena.make(env_id=GAME)
    game.reset(num_players=1)
    return game


def word_of(task: Any) -> str:
    """Return the word to find."""
    return str(begun(task).state.game_state["target_word"])


def played(task: Any, random: Random) -> Iterator[dict[str, str]]:
    """Yield the messages of a game that goes through letters in one of two orders."""
    from verifiers.v1.tasksets.textarena.taskset import _latest_feedback

    yield from row_of(task, "")["prompt"]
    game = begun(task)
    left = [*(ascii_uppercase if random.random() < ALPHABETICAL else FREQUENT)]
    while not game.state.done:
        slips = random.random() < SLIPS
        move = f"[{left.pop(random.randrange(len(left)) if slips else 0)}]"
        yield {"role": "assistant", "content": move}
        game.step(move)
        if not game.state.done:
            told = _latest_feedback(str(game.get_observation()[1]))
            yield {"role": "user", "content": told}


def _row(task: Any, word: str) -> dict[str, Any]:
    return {**row_of(task, GAME), "answer": word}


def phrases(prompts: Iterable[str]) -> list[str]:
    """Return the texts of a game that do not tell games apart, and the cells of the board."""
    parts = {part for prompt in prompts for part in re.split(r"(?<=\n)(?=  )", prompt)}
    cells = [f"  {sign}{end}" for sign in f"_{ascii_uppercase}" for end in ("", " ")]
    boards = ["".join(f"C{i:02} " for i in range(n)).strip() + "\n" for n in range(1, 30)]
    starts = [re.split(r"(?=C00)", part)[0] for part in parts if "C00" in part]
    ends = [part.lstrip(" _") for part in parts if part.startswith("  ")]
    again = (
        "You attempted an invalid move. Reason: You guessed the letter '' which has already been "
        "guessed. Please resubmit a valid move and remember to follow the game rules to avoid "
        "penalties."
    )
    return sorted(
        {*cells, *boards, *starts, *ends, *again.split("''"), "user\n", "assistant\n", "system\n"}
    )


def main() -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    provide_words()
    environment = environment_of(json.dumps({"taskset": {"id": "textarena", "game": GAME}}))
    trained: list[tuple[Any, str]] = []
    evaluated: dict[str, Any] = {}
    for task in islice(environment.taskset, NUM_TASKS):
        word = word_of(task)
        if zlib.crc32(word.encode()) % ONE_OF == 0:
            evaluated[word] = task
        else:
            trained.append((task, word))
    random = Random(given.seed)  # noqa: S311
    random.shuffle(trained)
    files = {
        "sft": ({"messages": [*played(task, random)]} for task, _ in trained[:NUM_IMITATED]),
        "rl": (_row(task, word) for task, word in trained[NUM_IMITATED:]),
        "evaluation": (_row(task, word) for word, task in evaluated.items()),
    }
    for name, rows in files.items():
        (given.out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = {task.data.prompt for task, _ in trained}
    system = {task.data.system_prompt for task, _ in trained}
    (given.out / "phrases.json").write_text(json.dumps([*phrases(texts), *system]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
