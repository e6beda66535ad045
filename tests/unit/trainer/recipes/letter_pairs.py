"""Pairs of answers to letters, of which the better one has an a where the other has a b."""

import json
from itertools import product
from random import Random

LETTERS = "cdefghijk"
GENERATED = {"kind": "reasoning_gym", "task": "chain_sum", "size": 4}


def letter_pairs(count, seed=0):
    """Rows with different prompts; nobody learns the order of their letters."""
    random = Random(seed)
    prompts = random.sample(["".join(p) for p in product(LETTERS, repeat=3)], count)
    rows = []
    for prompt in prompts:
        rest = random.choice(LETTERS)
        chosen, rejected = ("".join(random.sample([key, rest], 2)) for key in "ab")
        rows.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    return rows


def split(rows, held_out):
    """Rows of training and the last so many, none of whose pairs is in training."""
    train, rest = rows[:-held_out], rows[-held_out:]
    known = [tuple(row.values()) for row in train]
    assert sum(tuple(row.values()) in known for row in rest) == 0
    assert len({row["prompt"] for row in rows}) == len(rows)
    return train, rest


def write(directory, name, rows):
    (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"kind": "files", "paths": [str(directory / name)]}


def labelled(rows):
    """Each answer by itself."""
    return [
        {"prompt": row["prompt"], "completion": row[name], "label": name == "chosen"}
        for row in rows
        for name in ("chosen", "rejected")
    ]
