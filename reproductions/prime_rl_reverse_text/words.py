"""Write short texts to reverse, with answers for SFT, as prime-rl's environment asks for them.

usage: python words.py OUT
"""

import json
import random
import sys
from pathlib import Path

ASKED = "Reverse the text character-by-character. Put your answer in <reversed_text> tags."
SYLLABLES = ["ka", "lo", "mi", "ne", "ru", "sa", "to", "ve", "di", "po", "bu", "ge"]
OUT = Path(sys.argv[1])


def rows(number, seed):
    """Yield rows of texts of two to four syllables."""
    draw = random.Random(seed)
    for _ in range(number):
        text = "".join(draw.choices(SYLLABLES, k=draw.randint(2, 4)))
        prompt = [{"role": "system", "content": ASKED}, {"role": "user", "content": text}]
        yield {"prompt": prompt, "answer": f"<reversed_text>{text[::-1]}</reversed_text>"}


OUT.mkdir(parents=True, exist_ok=True)
for name, number in (("sft", 320), ("rl", 160)):
    lines = (json.dumps(row) + "\n" for row in rows(number, name))
    (OUT / f"{name}.jsonl").write_text("".join(lines))
