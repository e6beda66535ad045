"""Read a tokenizer from a directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from verl_hpc.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(path: str | Path, vocab_size: int | None = None) -> PreTrainedTokenizerBase:
    """Read a tokenizer from a directory, never from the network, and never run code it brings.

    A tokenizer without a padding token pads with its end-of-sequence token.

    Args:
        path: the directory.
        vocab_size: rows of the model's embedding; None does not compare.

    Raises:
        ModelError: no directory, no tokenizer in it or half of one, one without an end-of-sequence
            token, with a chat template that is not text, a length that is not a number, or one with
            token ids that the model has no row for.
    """
    from transformers import AutoTokenizer

    if not Path(path).is_dir():
        raise ModelError(f"tokenizer: no directory {path}; set model.tokenizer, or model.path")
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # tokenizers raises no other for a file that it cannot read
        raise ModelError(
            f"tokenizer: {path} holds none that can be read: {type(error).__name__}: {error}"
        ) from error
    if not (Path(path) / "tokenizer_config.json").is_file():
        # transformers falls back to the special tokens of its class, which may differ.
        raise ModelError(
            f"tokenizer: {path} has no tokenizer_config.json, which names the special tokens; is "
            "the download whole?"
        )
    if tokenizer.eos_token is None or tokenizer.eos_token_id is None:
        raise ModelError(f"tokenizer: {path} names no eos_token; add it to tokenizer_config.json")
    if not isinstance(tokenizer.chat_template, str | dict | None):
        raise ModelError(f"tokenizer: {path}: chat_template is not a string")
    if not isinstance(tokenizer.model_max_length, int | float):
        raise ModelError(
            f"tokenizer: {path}: model_max_length = {tokenizer.model_max_length!r} is not a number"
        )
    largest = max(tokenizer.get_vocab().values(), default=0)  # more than their number if some lack
    if vocab_size is not None and largest >= vocab_size:
        raise ModelError(
            f"tokenizer: {path} has token ids up to {largest}, and the model's vocab_size is "
            f"{vocab_size}; give the model its own tokenizer"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
