"""From problems to token ids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from verl_hpc.data.problem import PAIR_COLUMNS, Problem, Prompt
from verl_hpc.errors import DataError, ModelError
from verl_hpc.runtime.limit import TimeLimitExceeded, time_limit

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Chat = Literal["auto", "always", "never"]
Overlong = Literal["error", "drop", "truncate_left"]

TEMPLATE_S = 20.0
"""A chat template is a program, and needs milliseconds."""


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


def is_chat(problem: Problem, chat: Chat) -> bool:
    """Whether a prompt goes through the chat template."""
    return chat == "always" or (chat == "auto" and not isinstance(problem.prompt, str))


def encode_prompt(problem: Problem, tokenizer: PreTrainedTokenizerBase, chat: Chat) -> list[int]:
    """Token ids of a prompt.

    ========  ==============================  ===================
    chat      a chat list                     a string
    ========  ==============================  ===================
    auto      chat template                   as it stands
    always    chat template                   as one user message
    never     its contents, one a paragraph   as it stands
    ========  ==============================  ===================

    Raises:
        DataError: a chat template is needed and the tokenizer has none, or it fails; no tokens.
        ModelError: the chat template does not end.
    """
    prompt = problem.prompt
    if is_chat(problem, chat):
        ids = _encode_chat(prompt, tokenizer, problem.where)
    elif isinstance(prompt, str):
        ids = list(tokenizer.encode(prompt))
    else:
        ids = list(tokenizer.encode("\n\n".join(message["content"] for message in prompt)))
    if not ids:
        raise DataError(
            f"{problem.where}: the prompt has no tokens; is the tokenizer whole, and its chat "
            "template not empty?"
        )
    return ids


def encode_examples(
    problem: Problem, tokenizer: PreTrainedTokenizerBase, chat: Chat, num_answers: int = 1
) -> list[list[int]]:
    """Token ids of a prompt and of its answers, which end with the end-of-sequence token.

    Args:
        num_answers: 1 is the answer to imitate, 2 are the chosen and the rejected one of a pair.

    Raises:
        DataError: as `encode_prompt`, and where the problem has no answer, or no pair of them.
    """
    answers = (problem.answer, problem.rejected)[:num_answers]
    if num_answers == 2 and None in answers:
        raise DataError(
            f"{problem.where}: no pair of answers; columns {PAIR_COLUMNS[0]} and {PAIR_COLUMNS[1]} "
            "have to be there"
        )
    if None in answers:
        raise DataError(
            f"{problem.where}: no answer to imitate; set answer_key of the data set to the column "
            "of its text, where that is neither answer nor response"
        )
    encoded = [tokenizer.encode(answer or "", add_special_tokens=False) for answer in answers]
    ends = [[*ids, tokenizer.eos_token_id] for ids in encoded]
    return [encode_prompt(problem, tokenizer, chat), *ends]


def fit_prompt(ids: list[int], max_tokens: int, policy: Overlong, where: str) -> list[int] | None:
    """A prompt that is short enough, or None where `policy` drops it.

    Args:
        where: what errors call the row.

    Raises:
        DataError: the prompt is too long and `policy` is error.
    """
    if len(ids) <= max_tokens:
        return ids
    if policy == "drop":
        return None
    if policy == "truncate_left":
        return ids[-max_tokens:]
    raise DataError(
        f"{where}: the prompt has {len(ids)} tokens, rollout.max_prompt_tokens = {max_tokens}; "
        "raise it, or set rollout.overlong_prompt to drop or truncate_left"
    )


def _encode_chat(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, where: str) -> list[int]:
    if tokenizer.chat_template is None:
        raise DataError(
            f"{where}: the prompt needs a chat template and the tokenizer has none; "
            "use the tokenizer of a chat model, or set data.chat to never"
        )
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    try:
        with time_limit(TEMPLATE_S):
            ids = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
    except TimeLimitExceeded as error:
        raise ModelError(  # of all rows, so that they are fixed at once
            f"{where}: the tokenizer's chat template did not end within {TEMPLATE_S:g} s"
        ) from error
    except Exception as error:  # a template is a program
        raise DataError(
            f"{where}: the tokenizer's chat template failed: {type(error).__name__}: {error}"
        ) from error
    return list(ids)
