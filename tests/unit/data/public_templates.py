# ruff: noqa: RUF001 (special tokens have such bars)
"""Public chat templates, as TRL's package has them, with a tokenizer of bytes for each.

The special tokens of a template are those of its model; every other byte is a token, so that what
is text is text in any template. TRL is never imported.
"""

import importlib.util
import re
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_SPECIAL = re.compile(
    r"<\|[^|<>\s'\"]+\|>|<｜[^｜]+｜>|<(?:start|end)_of_turn>|\[gMASK\]|<sop>|"
    r"<\|(?:turn|channel|tool_call|tool_response)>|<(?:turn|channel|tool_call|tool_response)\|>"
)
BEGIN, END = "<bos>", "<eos>"

# For each template: what stands before the answer "yes" to "hi" in a prompt for generation, and
# what the model has to write. A prompt may end with the beginning of thoughts that this answer,
# which has none, leaves out.
ANSWERS = {
    "cohere": ("<|CHATBOT_TOKEN|>", "yes<|END_OF_TURN_TOKEN|>"),
    "cohere2": ("<|START_RESPONSE|>", "yes<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"),
    "deepseek_r1_distill": ("<｜Assistant｜><think>\n", "yes<｜end▁of▁sentence｜>"),
    "deepseekv3": ("<｜Assistant｜><think>\n", "yes<｜end▁of▁sentence｜>"),
    "gemma": ("<start_of_turn>model\n", "yes<end_of_turn>"),
    "gemma3": ("<start_of_turn>model\n", "yes<end_of_turn>"),
    "glm4moe": ("<|assistant|>", "\n<think></think>\nyes<|user|>"),
    "gptoss": ("<|start|>assistant", "<|channel|>final<|message|>yes<|return|>"),
    "lfm2": ("<|im_start|>assistant\n", "yes<|im_end|>"),
    "lfm2_2_5": ("<|im_start|>assistant\n", "yes<|im_end|>"),
    "lfm2_v2": ("<|im_start|>assistant\n", "yes<|im_end|>"),
    "llama3": ("<|end_header_id|>\n\n", "yes<|eot_id|>"),
    "llama3_1": ("<|end_header_id|>\n\n", "yes<|eot_id|>"),
    "llama3_2": ("<|end_header_id|>\n\n", "yes<|eot_id|>"),
    "muse_glimmer": ("<|start|>assistant", " to=user<|message|>yes<|eot|>"),
    "nemotron_3_nano": ("<|im_start|>assistant\n<think>\n", "</think>yes<|im_end|>"),
    "nemotron_3_super": ("<|im_start|>assistant\n<think>\n", "</think>yes<|im_end|>"),
    "phi3": ("<|assistant|>\n", "yes<|end|>"),
    "phi3_5": ("<|assistant|>\n", "yes<|end|>"),
    "qwen2_5": ("<|im_start|>assistant\n", "yes<|im_end|>"),
    "qwen3": ("<|im_start|>assistant\n", "<think>\n\n</think>\n\nyes<|im_end|>"),
    "qwen3_5_nothink": ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "yes<|im_end|>"),
    "qwen3_5_think": ("<|im_start|>assistant\n<think>\n", "\n</think>\n\nyes<|im_end|>"),
    "qwen3_6": ("<|im_start|>assistant\n<think>\n", "\n</think>\n\nyes<|im_end|>"),
    "qwen3_8": ("<|im_start|>assistant\n<think>\n", "\n</think>\n\nyes<|im_end|>"),
    "qwen3_instruct_2507": ("<|im_start|>assistant\n", "yes<|im_end|>"),
}
MARKED = [f"{name}_training" for name in ANSWERS if name not in ("llama3_1", "llama3_2")]
"""Templates that mark what the model writes, for transformers' assistant mask."""
MARKED[MARKED.index("lfm2_2_5_training")] = "lfm2_2_5"


def end_of(name: str) -> str:
    """The special token that ends a turn of the model."""
    _, answer = ANSWERS[name.removesuffix("_training")]
    return _SPECIAL.findall(answer)[-1]


@cache
def tokenizer_of(name: str, first: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes with a template and its special tokens.

    Args:
        first: texts of the first tokens; no text is encoded as one that is not special.
    """
    spec = importlib.util.find_spec("trl")
    assert spec is not None and spec.submodule_search_locations, "requirements/dev.txt has TRL"
    directory = Path(spec.submodule_search_locations[0]) / "chat_templates"
    text = (directory / f"{name}.jinja").read_text()
    special = [BEGIN, END, *sorted(set(_SPECIAL.findall(text)))]
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    texts = [t if t in special else whole.pre_tokenize_str(t)[0][0] for t in first]
    words = dict.fromkeys((*texts, *special, *sorted(pre_tokenizers.ByteLevel.alphabet())))
    backend = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in special])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BEGIN, eos_token=END)
    fast.chat_template = text
    return fast
