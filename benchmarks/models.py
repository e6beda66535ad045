"""Models whose completions always have full length, and prompts that are equally long."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any


def numbers_prompt(index: int) -> str:
    """Numbers of two digits, so that all prompts have the same number of tokens."""
    a, b, c = (10 + index * step % 90 for step in (1, 7, 13))
    return f"Take {a}, add {b}, subtract {c}. What is left? Answer:"


def never_ending(model: Path, target: Path) -> Path:
    """A copy of a model that never samples its end-of-sequence token, of the same sizes and speed.

    What the model says is lost; only its times are of use.
    """
    return _with_end(model, target, lambda _: -10.0)


def ending_after(mean: float, model: Path, target: Path) -> Path:
    """The same of one that samples the token once in `mean` tokens, whatever came before, so that
    lengths are geometric."""

    def weight(decoder: Any) -> float:
        import torch

        tokens = torch.arange(1, 129).view(1, -1) % decoder.config.vocab_size
        with torch.no_grad():
            hidden = decoder.model(tokens).last_hidden_state[0]
            others = decoder.get_output_embeddings()(hidden).logsumexp(-1)
        return float(((others - math.log(mean - 1)) / hidden[:, 0]).mean())

    return _with_end(model, target, weight)


def _with_end(model: Path, target: Path, weight: Callable[[Any], float]) -> Path:
    """With a new end-of-sequence token. The first hidden dimension is nearly the same at every
    token, and the new row of the output layer is `weight` there and zero elsewhere."""
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
        row[0] = -100.0  # as good as not there
        row[0] = weight(decoder)
    decoder.config.eos_token_id = decoder.generation_config.eos_token_id = end
    decoder.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


def num_operations(model: Path) -> float:
    """Of a forward pass, a token: two for each weight that is multiplied with."""
    from transformers import AutoModelForCausalLM

    decoder = AutoModelForCausalLM.from_pretrained(model)
    embedding = decoder.get_input_embeddings().weight
    tied = decoder.get_output_embeddings().weight is embedding
    return 2.0 * (decoder.num_parameters() - (0 if tied else embedding.numel()))


def prompt_length(model: Path, prompts: list[str]) -> int:
    """Tokens of each prompt."""
    from transformers import AutoTokenizer

    lengths = {len(ids) for ids in AutoTokenizer.from_pretrained(model)(prompts)["input_ids"]}
    assert len(lengths) == 1, f"prompts of {lengths} tokens: they must be equally long"
    return lengths.pop()
