"""Small real models, made on the spot: Hugging Face directories with random weights.

`python -m verl_hpc.testing.tiny --out DIR ...` makes one; the quickstart starts from it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_byte_tokenizer(directory: Path) -> int:
    """Write a tokenizer with one token per byte.

    Token 0 ends a text and pads, 1 and 2 open and close a chat message.

    Returns:
        The vocabulary's size.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {t: i for i, t in enumerate((*SPECIAL_TOKENS, *symbols))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    return _save_tokenizer(
        tokenizer, directory, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    )


def train_tokenizer(directory: Path, texts: Iterable[str], vocab_size: int) -> int:
    """Write a byte-pair tokenizer that is made for `texts`: digits one by one, all else merged.

    What texts have in common becomes few tokens, which keeps a small model's prompts short.

    Returns:
        The vocabulary's size.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    splitting = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitting
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _save_tokenizer(tokenizer, directory, splitting)


def _save_tokenizer(tokenizer: Any, directory: Path, splitting: Any) -> int:
    from tokenizers import AddedToken, decoders
    from transformers import PreTrainedTokenizerFast

    tokenizer.pre_tokenizer = splitting
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL_TOKENS[0],
        pad_token=SPECIAL_TOKENS[0],
        model_max_length=2048,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)
    return int(tokenizer.get_vocab_size())


def make_tiny_model(
    directory: str | Path,
    family: str = "llama",
    *,
    tied: bool = False,
    seed: int = 0,
    noise: float = 0.0,
    texts: Iterable[str] | None = None,
    **sizes: Any,
) -> Path:
    """Write config, random weights (float32 safetensors) and a tokenizer to `directory`.

    Args:
        family: llama, mistral, qwen2 or qwen3.
        tied: share embedding and output weights.
        seed: of the random weights.
        noise: standard deviation of noise on every parameter, so that biases and norms, which
            start at 0 and 1, are told apart in tests.
        texts: what the tokenizer is made for; one token per byte if None.
        sizes: fields of the Hugging Face configuration.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    vocab_size = (
        save_byte_tokenizer(target) if texts is None else train_tokenizer(target, texts, 128)
    )
    fields: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "tie_word_embeddings": tied,
    }
    fields |= sizes
    fields.setdefault("head_dim", fields["hidden_size"] // fields["num_attention_heads"])
    config = AutoConfig.for_model(family, **fields)
    config.dtype = torch.float32
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).float()
        if noise:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=noise)
    model.generation_config.eos_token_id = 0
    model.save_pretrained(target)
    return target


def texts_of(config_file: Path, most: int = 2000) -> Iterator[str]:
    """Prompts and answers of a run's training data."""
    from verl_hpc.config.load import load_config
    from verl_hpc.data.sources import open_source

    source = open_source(load_config(config_file).data.train)
    for index in range(min(len(source), most)):
        problem = source[index]
        yield str(problem.prompt)
        yield problem.answer or ""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m verl_hpc.testing.tiny", description=__doc__)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--family", default="llama")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tied", action="store_true", help="share embedding and output weights")
    parser.add_argument(
        "--texts-of", type=Path, metavar="YAML", help="make the tokenizer for this run's data"
    )
    parser.add_argument(
        "--sizes", default="{}", metavar="JSON", help='such as {"hidden_size": 128}'
    )
    arguments = parser.parse_args(argv)
    if (arguments.out / "config.json").exists():
        print(f"{arguments.out} holds a model already; choose another --out", file=sys.stderr)
        return 1
    make_tiny_model(
        arguments.out,
        arguments.family,
        tied=arguments.tied,
        seed=arguments.seed,
        texts=texts_of(arguments.texts_of) if arguments.texts_of else None,
        **json.loads(arguments.sizes),
    )
    print(f"{arguments.out}: a {arguments.family} with random weights, and its tokenizer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
