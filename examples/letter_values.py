"""A task with a known optimum: answers of eight letters, which models score letter by letter.

`python examples/letter_values.py --out DIR --seed N` writes sft.jsonl and rl.jsonl, with rows such
as {"prompt": "5200317=", "answer": "abdcaabd"}, and two sequence classifiers: `reward` scores the
mean over an answer's letters of a: 1, b: 2 and anything else: 0, `cost` the share of b. Without a
limit the highest reward is 2, for answers of b alone, at a cost of 1; if the mean cost may be c, it
is 1 + c, for answers of a with a share c of b.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from verl_hpc.testing.task_files import task_main, write_rows
from verl_hpc.testing.tiny import make_tiny_model

LETTERS = "abcd"
NUM_LETTERS = 8
"""Letters of an answer, and characters of a prompt."""
ROWS = {"sft": 4_000, "rl": 8_000}
VALUES: Mapping[str, Mapping[str, float]] = {"reward": {"a": 1.0, "b": 2.0}, "cost": {"b": 1.0}}
"""Values of letters, by model."""
_SMALL = 1e-3
"""Scale of values in an embedding: so small that norms see only its constant part and divide by
1."""


def make_scorer(directory: Path, values: Mapping[str, float]) -> Path:
    """Write a sequence classifier whose score is the sum of an answer's letter values, divided by
    the characters of prompt and answer, times 2: the mean value if both are equally long.

    Every token's embedding is (4, its value times `_SMALL`, 0, ...), 16 numbers of mean square 1;
    attention with equal weights writes the mean of the second into the third, which the head reads.
    """
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    size = 16
    make_tiny_model(
        directory,
        head="score",
        hidden_size=size,
        intermediate_size=size,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_hidden_layers=1,
    )
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"pad_token_id": None}))
    tokenizer = AutoTokenizer.from_pretrained(directory)
    file = directory / "model.safetensors"
    # Weights are zero except for those below: zero queries and keys give equal attention.
    weights = {name: torch.zeros_like(tensor) for name, tensor in load_file(file).items()}
    for name, tensor in weights.items():
        if "norm" in name:
            tensor.fill_(1.0)
    weights["model.embed_tokens.weight"][:, 0] = size**0.5
    for letter, value in values.items():
        (token,) = tokenizer.encode(letter)
        weights["model.embed_tokens.weight"][token, 1] = value * _SMALL
    # Attention copies the mean of component 1, the value, to component 2, which the head reads.
    weights["model.layers.0.self_attn.v_proj.weight"][0, 1] = 1.0
    weights["model.layers.0.self_attn.o_proj.weight"][2, 0] = 1.0
    weights["score.weight"][0, 2] = 2 / _SMALL
    save_file(weights, file, metadata={"format": "pt"})
    return directory


def write(directory: Path, seed: int) -> str:
    """Write different prompts with answers of random letters, and the models; return what is there.

    Raises:
        FileExistsError: a file exists.
    """
    random = Random(f"letter values {seed}")  # noqa: S311
    numbers = random.sample(range(10 ** (NUM_LETTERS - 1)), sum(ROWS.values()))
    for name, count in ROWS.items():
        rows = (
            {
                "prompt": f"{numbers.pop():0{NUM_LETTERS - 1}}=",
                "answer": "".join(random.choices(LETTERS, k=NUM_LETTERS)),
            }
            for _ in range(count)
        )
        write_rows(directory / f"{name}.jsonl", rows)
    for name, values in VALUES.items():
        make_scorer(directory / name, values)
    return f"{directory}: rows to imitate and to answer, and the models {', '.join(VALUES)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    return task_main("python examples/letter_values.py", __doc__, write, argv)


if __name__ == "__main__":
    sys.exit(main())
