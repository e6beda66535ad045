"""Models whose completions always have full length, and prompts that are equally long."""

from __future__ import annotations

import json
from pathlib import Path


def numbers_prompt(index: int) -> str:
    """Numbers of two digits, so that all prompts have the same number of tokens."""
    a, b, c = (10 + index * step % 90 for step in (1, 7, 13))
    return f"Take {a}, add {b}, subtract {c}. What is left? Answer:"


def never_ending(model: Path, target: Path) -> Path:
    """Copy a model and put an end-of-sequence token on it that it has no output for.

    Neither vLLM nor transformers can then stop before the last token that they may generate.
    """
    from transformers import AutoTokenizer

    target.mkdir()
    for file in model.iterdir():
        if file.suffix == ".safetensors":
            (target / file.name).symlink_to(file.resolve())
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"eos_token": "<|never|>"})
    end = tokenizer.eos_token_id
    for name in ("config.json", "generation_config.json"):
        fields = json.loads((model / name).read_text())
        (target / name).write_text(json.dumps(fields | {"eos_token_id": end}))
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    assert end >= vocabulary, f"token {end} of {vocabulary}: the model could still produce it"
    tokenizer.save_pretrained(target)
    return target


def prompt_length(model: Path, prompts: list[str]) -> int:
    """Tokens of each prompt."""
    from transformers import AutoTokenizer

    lengths = {len(ids) for ids in AutoTokenizer.from_pretrained(model)(prompts)["input_ids"]}
    assert len(lengths) == 1, f"prompts of {lengths} tokens: they must be equally long"
    return lengths.pop()
