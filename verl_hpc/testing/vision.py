"""Small random models that read images, made on the spot, with their processors.

`python -m verl_hpc.testing.vision --out DIR ...` makes one; an example starts from it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_hpc.testing.tiny import save_tokenizer

_TOKENS = (
    *("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"),
    *("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
    *("\n", "\n\n", "\n\n\n", "\n\n\n\n"),
)
_FIRST = 259
"""Id of the first of these tokens, behind those of bytes."""
_IMAGE = {"gemma3": "<start_of_image>"}
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}IMAGE{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_AXES = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
_QWEN_TOWER = {"depth": 2, "num_heads": 2, "spatial_merge_size": 2}
_DELTA_NET = {
    "rope_parameters": _AXES
    | {"mrope_interleaved": True, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25},
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
}
_QWEN3_TOWER = _QWEN_TOWER | {"patch_size": 16, "num_position_embeddings": 64}
_QWEN3_PIXELS = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen3VLProcessor",
    "patch_size": 16,
    "min_pixels": 32 * 32,
    "max_pixels": 64 * 96,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
_PIXELS = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_convert_rgb": True}

_FAMILIES: Mapping[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "qwen2_5_vl": (
        {"rope_parameters": _AXES},
        _QWEN_TOWER | {"patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1]},
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2_5_VLProcessor",
            "min_pixels": 28 * 28,
            "max_pixels": 56 * 84,
        },
    ),
    "qwen3_vl": (
        {"rope_parameters": _AXES | {"mrope_interleaved": True}},
        _QWEN3_TOWER | {"deepstack_visual_indexes": [0]},
        _QWEN3_PIXELS,
    ),
    "qwen3_5": (_DELTA_NET, _QWEN3_TOWER, _QWEN3_PIXELS),
    "qwen3_5_moe": (_DELTA_NET | _EXPERTS, _QWEN3_TOWER, _QWEN3_PIXELS),
    "gemma3": (
        {
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 32,
        },
        {
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 56,
            "patch_size": 14,
            "vision_use_head": False,
        },
        {
            "image_processor_type": "Gemma3ImageProcessor",
            "processor_class": "Gemma3Processor",
            "size": {"height": 56, "width": 56},
        },
    ),
}
"""Fields of the decoder, of the tower, and of the processor."""


def make_vision_model(
    directory: str | Path, family: str, *, seed: int = 0, noise: float = 0.0
) -> Path:
    """Write config, random weights, a tokenizer and a processor to `directory`.

    Args:
        family: one of `WITH_IMAGES` of `layout.not_mapped`.
        seed: of the random weights.
        noise: standard deviation of noise on every parameter.
    """
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    of_text, of_tower, of_processor = _FAMILIES[family]
    size = save_tokenizer(target, _TOKENS)
    _save_processor(target, family, of_processor)
    fields = {
        "vocab_size": size,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }
    fields |= of_text
    tower_fields = {"hidden_size": 64, "intermediate_size": 96} | of_tower
    if family != "gemma3":
        tower_fields["out_hidden_size"] = fields["hidden_size"]
    config = AutoConfig.for_model(
        family,
        text_config=fields,
        vision_config=tower_fields,
        tie_word_embeddings=False,
        eos_token_id=0,
        **_ids(family, of_processor),
    )
    config.dtype = torch.float32
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config).float()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=noise)
    model.generation_config.eos_token_id = 0
    # Qwen publishes the experts of a layer as one tensor, as transformers keeps them in memory.
    model.save_pretrained(target, save_original_format=family != "qwen3_5_moe")
    if family == "gemma3":
        _as_published(target / "model.safetensors")
    return target


def _ids(family: str, processor: Mapping[str, Any]) -> dict[str, int]:
    start, image, end, video, before, behind, soft, *_ = range(_FIRST, _FIRST + len(_TOKENS))
    if family == "gemma3":
        ids = {"boi_token_index": before, "eoi_token_index": behind, "image_token_index": soft}
        return ids | {"mm_tokens_per_image": _tokens_per_image(processor)}
    return {
        "vision_start_token_id": start,
        "image_token_id": image,
        "vision_end_token_id": end,
        "video_token_id": video,
    }


def _tokens_per_image(processor: Mapping[str, Any]) -> int:
    """Return the tokens of gemma3's images: one for 2 x 2 patches of 14 x 14 pixels."""
    return int((processor["size"]["height"] // 28) ** 2)


def _save_processor(target: Path, family: str, fields: Mapping[str, Any]) -> None:
    def write(name: str, content: Mapping[str, Any]) -> None:
        (target / name).write_text(json.dumps(content, indent=2), encoding="utf-8")

    write("preprocessor_config.json", {**_PIXELS, **fields})
    image = _IMAGE.get(family, "<|vision_start|><|image_pad|><|vision_end|>")
    (target / "chat_template.jinja").write_text(_TEMPLATE.replace("IMAGE", image), encoding="utf-8")
    if family != "gemma3":
        return
    length = _tokens_per_image(fields)
    write(
        "processor_config.json", {"processor_class": "Gemma3Processor", "image_seq_length": length}
    )
    tokenizer = target / "tokenizer_config.json"
    names = {"boi_token": _TOKENS[4], "eoi_token": _TOKENS[5], "image_token": _TOKENS[6]}
    settings = json.loads(tokenizer.read_text(encoding="utf-8"))
    write(tokenizer.name, settings | names | {"extra_special_tokens": names})


def _as_published(file: Path) -> None:
    """Give gemma3's tower the names of published files, which transformers 5 strips at load."""
    from safetensors.torch import load_file, save_file

    tensors = {
        name.replace("vision_tower.", "vision_tower.vision_model."): tensor
        for name, tensor in load_file(file).items()
    }
    save_file(tensors, file, metadata={"format": "pt"})


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m verl_hpc.testing.vision", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--family", default="qwen3_vl", choices=sorted(_FAMILIES))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    if (arguments.out / "config.json").exists():
        print(f"{arguments.out} holds a model already; choose another --out", file=sys.stderr)
        return 1
    make_vision_model(arguments.out, arguments.family, seed=arguments.seed)
    print(f"{arguments.out}: a {arguments.family} with random weights, and its processor")
    return 0


if __name__ == "__main__":
    sys.exit(main())
