"""Models whose completions always have full length, and prompts that are equally long."""

from __future__ import annotations

from pathlib import Path


def numbers_prompt(index: int) -> str:
    """Numbers of two digits, so that all prompts have the same number of tokens."""
    a, b, c = (10 + index * step % 90 for step in (1, 7, 13))
    return f"Take {a}, add {b}, subtract {c}. What is left? Answer:"


def never_ending(model: Path, target: Path) -> Path:
    """A copy of a model that never samples its end-of-sequence token, of the same sizes and speed.

    The token is a new one. The first hidden dimension is positive at every token, and the new row
    of the output layer is negative there alone: its logit is far below all others. What the model
    says is lost; only its times are of use.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"eos_token": "<|never|>"})
    end = tokenizer.eos_token_id
    decoder = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    size = max(end + 1, decoder.config.vocab_size)
    decoder.resize_token_embeddings(size, mean_resizing=False)
    with torch.no_grad():
        decoder.get_input_embeddings().weight[:, 0] = 1.0
        row = decoder.get_output_embeddings().weight[end]
        row.zero_()
        row[0] = -10.0
    decoder.config.eos_token_id = decoder.generation_config.eos_token_id = end
    decoder.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


def prompt_length(model: Path, prompts: list[str]) -> int:
    """Tokens of each prompt."""
    from transformers import AutoTokenizer

    lengths = {len(ids) for ids in AutoTokenizer.from_pretrained(model)(prompts)["input_ids"]}
    assert len(lengths) == 1, f"prompts of {lengths} tokens: they must be equally long"
    return lengths.pop()
