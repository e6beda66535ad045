"""A reward that random weights earn a part of, and that writes down every response."""

import json
from pathlib import Path


def score(solution_str, response_ids, prompt, file):
    """Return the share of small letters in a response, and append its tokens to a file."""
    reward = sum("a" <= character <= "z" for character in solution_str) / max(len(solution_str), 1)
    row = {"prompt": prompt, "ids": list(map(int, response_ids)), "reward": reward}
    with Path(file).open("a") as lines:
        lines.write(json.dumps(row) + "\n")
    return reward
