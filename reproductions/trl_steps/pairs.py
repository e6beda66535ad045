"""Write 128 pairs of a right answer and one whose first two letters are exchanged.

usage: python pairs.py DATA
"""

import json
import sys
from itertools import islice
from pathlib import Path

data = Path(sys.argv[1])
rows = (json.loads(line) for line in (data / "rl.jsonl").read_text().splitlines())
unlike = (row for row in rows if row["answer"][0] != row["answer"][1])
with (data / "pairs.jsonl").open("w") as pairs:
    for row in islice(unlike, 128):
        right = row["answer"]
        wrong = right[1] + right[0] + right[2:]
        pair = {"prompt": row["prompt"], "chosen": right, "rejected": wrong}
        pairs.write(json.dumps(pair) + "\n")
