"""A task with images: say in which cell of a grid a shape is.

`python -m verl_hpc.testing.places --out DIR --seed N` writes sft.jsonl, rl.jsonl and
evaluation.jsonl, with rows such as {"prompt": [{"role": "user", "content": "<image>"}], "images":
[{"base64": ...}], "answer": "b3"}. Images of evaluation are the same for every seed; no seed has
one of them in training.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from random import Random

from verl_hpc.data.split import is_held_out
from verl_hpc.testing.task_files import task_main, write_files

SIDE, CELLS = 64, 4
"""Pixels of a side of an image, and cells along it."""
ROWS = {"sft": 4000, "rl": 4000, "evaluation": 256}
"""Rows of each file."""
EVALUATION_SHARE = 0.1
"""Share of all images that never occur in training."""


def rows(num_rows: int, seed: str, *, held_out: bool) -> Iterator[dict[str, object]]:
    """Draw rows with images that are held out for evaluation, or all others."""
    from PIL import Image, ImageDraw

    random, cell = Random(seed), SIDE // CELLS  # noqa: S311
    while num_rows:
        row, column = random.randrange(CELLS), random.randrange(CELLS)
        size = random.randint(cell // 2, cell - 4)
        left, top = (random.randint(0, cell - size - 1) for _ in range(2))
        shape, color = random.choice(("rectangle", "ellipse")), random.choices(range(128, 256), k=3)
        ground = random.choices(range(96), k=3)
        facts = f"{row} {column} {size} {left} {top} {shape} {color} {ground}"
        if is_held_out(facts, EVALUATION_SHARE) != held_out:
            continue
        num_rows -= 1
        image = Image.new("RGB", (SIDE, SIDE), tuple(ground))
        x, y = column * cell + left, row * cell + top
        getattr(ImageDraw.Draw(image), shape)((x, y, x + size, y + size), fill=tuple(color))
        file = BytesIO()
        image.save(file, "png")
        yield {
            "prompt": [{"role": "user", "content": "<image>"}],
            "images": [{"base64": b64encode(file.getvalue()).decode()}],
            "answer": f"{'abcd'[row]}{column + 1}",
        }


def write(directory: Path, seed: int) -> str:
    """Write all files; see `write_files`."""
    return write_files(directory, seed, ROWS, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    return task_main("verl_hpc.testing.places", __doc__, write, argv)


if __name__ == "__main__":
    sys.exit(main())
