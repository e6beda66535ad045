"""An agent of the standard library alone: it asks the model for a sum, and does the sums that the
model asks it for.

A run starts it once for each response (`rollout.program`). The model writes 37*58=[37*58], reads
what the calculator says, 2146=, and answers 2146. The score is 1 for a right answer.
"""

from __future__ import annotations

import json
import operator
import os
import re
import urllib.request
from pathlib import Path

SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
MOST_TURNS = 2


def complete(text: str) -> str:
    """Return what the model says next."""
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/completions",
        json.dumps({"model": "policy", "prompt": text, "max_tokens": None}).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(request) as reply:
        return str(json.load(reply)["choices"][0]["text"])


def value_of(call: str) -> str:
    """Return the value of a sum between brackets."""
    sum_of_two = re.search(r"\[(\d+)([-+*])(\d+)\]$", call)
    if sum_of_two is None:
        return "?"
    first, sign, second = sum_of_two.groups()
    return str(SIGNS[sign](int(first), int(second)))


def main() -> None:
    """Converse about the row, and write the score."""
    row = json.loads(Path(os.environ["VERL_HPC_ROW"]).read_text())
    text = row["prompt"]
    said = complete(text)
    for _ in range(MOST_TURNS - 1):
        if not said.endswith("]"):
            break
        text += f"{said}{value_of(said)}="
        said = complete(text)
    score = float(said.strip() == str(row["ground_truth"]))
    Path(os.environ["VERL_HPC_SCORE"]).write_text(json.dumps(score))


if __name__ == "__main__":
    main()
