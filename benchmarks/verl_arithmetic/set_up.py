"""Make a run's directory of verl's digit completion: data, start weights and a tokenizer.

verl has removed the test; its data and weights are in the parent of commit 5fa911b3c, in
tests/e2e/arithmetic_sequence:

    git clone https://github.com/volcengine/verl && git -C verl checkout 5fa911b3c^
    python -m benchmarks.verl_arithmetic.set_up --source verl/tests/e2e/arithmetic_sequence

usage: python -m benchmarks.verl_arithmetic.set_up --source DIR [--out runs/verl_arithmetic]
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

CHARACTERS = "SEPU0123456789,:"
"""By token id: separator behind a prompt, end, padding, unknown, and what is written."""
SEPARATOR, END, PADDING, UNKNOWN = "S", "E", "P", "U"
TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}" + SEPARATOR + "{% endif %}"
)


def write_tokenizer(directory: Path) -> None:
    """A tokenizer of characters, in the form that transformers reads."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {character: token for token, character in enumerate(CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        sep_token=SEPARATOR,
        chat_template=TEMPLATE,
        model_max_length=2048,
    ).save_pretrained(directory)


def set_up(source: Path, out: Path) -> None:
    """Copy data and weights of verl to `out`, and write the tokenizer beside the weights."""
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        _copy(source / "model" / name, out / "model" / name)
    for name in ("train.parquet", "test.parquet"):
        _copy(source / "data" / name, out / "data" / name)
    write_tokenizer(out / "model")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="verl's arithmetic_sequence")
    parser.add_argument("--out", type=Path, default=Path("runs/verl_arithmetic"))
    options = parser.parse_args(arguments)
    set_up(options.source, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
