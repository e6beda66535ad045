"""Small real models, made on the spot: Hugging Face directories with random weights.

`python -m verl_hpc.testing.tiny --out DIR ...` makes one; the quickstart starts from it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_tokenizer(directory: Path, phrases: Sequence[str] = ()) -> int:
    """Write a tokenizer with one token per byte, and one for each of `phrases`.

    Token 0 ends a text and pads, 1 and 2 open and close a chat message.

    Returns:
        The vocabulary's size.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {t: i for i, t in enumerate((*SPECIAL_TOKENS, *symbols))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL_TOKENS[0],
        pad_token=SPECIAL_TOKENS[0],
        model_max_length=2048,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)
    return int(tokenizer.get_vocab_size())


def common_phrases(texts: Iterable[str]) -> list[str]:
    """Return the common beginning and end of all texts, which keep prompts short as tokens."""
    different = set(texts)
    beginning = _common_beginning(different)
    end = _common_beginning({text.removeprefix(beginning)[::-1] for text in different})[::-1]
    return [phrase for phrase in (beginning, end) if len(phrase) > 1]


def _common_beginning(texts: Collection[str]) -> str:
    if not texts:
        return ""
    pairs = zip(min(texts), max(texts), strict=False)
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def make_tiny_model(
    directory: str | Path,
    family: str = "llama",
    *,
    tied: bool = False,
    head: Literal["language_model", "score"] = "language_model",
    seed: int = 0,
    noise: float = 0.0,
    prompts: Iterable[str] = (),
    phrases: Sequence[str] = (),
    **sizes: Any,
) -> Path:
    """Write config, random weights (float32 safetensors) and a tokenizer to `directory`.

    Args:
        family: a `model_type` that transformers knows.
        tied: share embedding and output weights.
        head: score makes a sequence classifier with one label, as reward models are.
        seed: seed of the random weights.
        noise: standard deviation of noise on every parameter and buffer that is stored, so that
            biases and norms, which start at 0 and 1, differ in tests.
        prompts: texts whose common beginning and common end become one token each; every other byte
            is a token.
        phrases: further texts that become one token each.
        sizes: fields of the Hugging Face configuration. By default heads have 32 elements, the
            smallest that vLLM takes on CPUs, and there are 4, or as many as fit into hidden_size.
    """
    import torch
    import transformers
    from transformers.utils import logging

    from verl_hpc.hf.model import stored_buffers

    logging.disable_progress_bar()
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    vocab_size = save_tokenizer(target, [*common_phrases(prompts), *phrases])
    fields: dict[str, Any] = {
        "vocab_size": vocab_size,
        **_heads(sizes),
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "tie_word_embeddings": tied,
    }
    fields |= sizes
    fields.setdefault("head_dim", fields["hidden_size"] // fields["num_attention_heads"])
    if head == "score":
        fields["num_labels"] = 1
    config = transformers.AutoConfig.for_model(family, **fields)
    config.dtype = torch.float32
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kind = (
            transformers.AutoModelForCausalLM
            if head == "language_model"
            else transformers.AutoModelForSequenceClassification
        )
        model = kind.from_config(config).float()
        if noise:
            with torch.no_grad():
                for tensor in (*model.parameters(), *stored_buffers(model).values()):
                    tensor.add_(torch.randn_like(tensor), alpha=noise)
    if model.can_generate():
        model.generation_config.eos_token_id = 0
    model.save_pretrained(target)
    return target


def _heads(sizes: Mapping[str, Any]) -> dict[str, int]:
    """Return the default sizes that fit the given ones."""
    hidden: int = sizes.get("hidden_size", 32 * sizes.get("num_attention_heads", 4))
    heads: int = sizes.get("num_attention_heads", max(hidden // 32, 1))
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if heads % 2 else heads // 2,
    }


def prompts_of(config_file: Path, most: int = 2000) -> Iterator[str]:
    """Yield prompts of a run's training data."""
    from verl_hpc.config.load import load_config
    from verl_hpc.data.sources import open_source

    source = open_source(load_config(config_file).data.train)
    for index in range(min(len(source), most)):
        yield str(source[index].prompt)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m verl_hpc.testing.tiny", description=__doc__)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--family", default="llama")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tied", action="store_true", help="share embedding and output weights")
    parser.add_argument(
        "--prompts-of",
        type=Path,
        metavar="YAML",
        help="give the tokenizer a token for what all prompts of this run begin with, and for "
        "what they end with; else it has one for each byte",
    )
    parser.add_argument(
        "--phrases", type=Path, metavar="JSON", help="a list of texts that become one token each"
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
        prompts=prompts_of(arguments.prompts_of) if arguments.prompts_of else (),
        phrases=json.loads(arguments.phrases.read_text()) if arguments.phrases else (),
        **json.loads(arguments.sizes),
    )
    print(f"{arguments.out}: a {arguments.family} with random weights, and its tokenizer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
