"""Write pairs of a right answer and one with two letters in the wrong order.

usage: python pairs.py DATA
"""

import json
import sys
from pathlib import Path

data = Path(sys.argv[1])
with (data / "pairs.jsonl").open("w") as pairs:
    for line in (data / "rl.jsonl").read_text().splitlines()[:128]:
        row = json.loads(line)
        right = row["answer"]
        wrong = right[1] + right[0] + right[2:]
        pairs.write(json.dumps({"prompt": row["prompt"], "chosen": right, "rejected": wrong}))
        pairs.write("\n")
