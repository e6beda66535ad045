"""Model directories that are incomplete, damaged, or of other kinds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.cases import Case, End, Place, damage_file, edit_json, replace_file, set_field

WEIGHTS = "model.safetensors"

_CONFIG: tuple[tuple[dict[str, Any], End], ...] = (
    ({"hidden_size": 0}, "error"),
    ({"hidden_size": -1}, "error"),
    ({"hidden_size": "64"}, "error"),
    ({"hidden_size": 65}, "error"),
    ({"hidden_size": 32.5}, "error"),
    ({"hidden_size": None}, "error"),
    ({"hidden_size": ...}, "error"),
    ({"intermediate_size": 0}, "error"),
    ({"intermediate_size": 129}, "error"),
    ({"num_attention_heads": 3}, "error"),
    ({"num_attention_heads": 0}, "error"),
    ({"num_key_value_heads": 0}, "error"),
    ({"num_key_value_heads": 3}, "error"),
    ({"num_key_value_heads": None}, "either"),
    ({"head_dim": 7}, "error"),
    ({"head_dim": None}, "same"),
    ({"vocab_size": 10**12}, "error"),
    ({"vocab_size": 1}, "error"),
    ({"vocab_size": "x"}, "error"),
    ({"num_hidden_layers": 2.5}, "error"),
    ({"num_hidden_layers": 0}, "error"),
    ({"num_hidden_layers": 99}, "error"),
    ({"num_hidden_layers": 10**9}, "error"),
    ({"num_hidden_layers": 1}, "error"),
    ({"rms_norm_eps": None}, "error"),
    ({"rms_norm_eps": "x"}, "error"),
    ({"rms_norm_eps": -1}, "error"),
    ({"rope_parameters": {"rope_theta": "x", "rope_type": "default"}}, "error"),
    ({"rope_parameters": {"rope_theta": -1.0, "rope_type": "default"}}, "error"),
    ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}}, "error"),
    ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3"}}, "error"),
    ({"rope_parameters": [1]}, "error"),
    ({"rope_parameters": None, "rope_theta": "x"}, "error"),
    ({"max_position_embeddings": "512"}, "error"),
    ({"max_position_embeddings": 8}, "error"),
    ({"tie_word_embeddings": False}, "error"),
    ({"tie_word_embeddings": "yes"}, "error"),
    ({"hidden_act": "gelu"}, "error"),
    ({"hidden_act": 5}, "error"),
    ({"model_type": "gpt2"}, "error"),
    ({"model_type": None}, "error"),
    ({"model_type": ["qwen2"]}, "error"),
    ({"model_type": "llama"}, "either"),
    ({"quantization_config": {"quant_method": "fp8"}}, "error"),
    ({"dtype": "int8"}, "error"),
    ({"dtype": 5}, "error"),
    ({"use_sliding_window": True, "sliding_window": 4}, "error"),
    ({"eos_token_id": None}, "either"),
    ({"eos_token_id": "x"}, "error"),
    ({"eos_token_id": 10**6}, "either"),
    ({"eos_token_id": [0, 1]}, "either"),
    ({"attention_dropout": "x"}, "same or error"),
    ({"initializer_range": None}, "same or error"),
    ({"architectures": 5}, "same or error"),
    ({"layer_types": ["x"]}, "same or error"),
    ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}, "error"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "error"),
    ({"model_type": "mistral"}, "error"),
    ({"pad_token_id": 10**9}, "error"),
    ({"pad_token_id": -5}, "same"),
    ({"attn_implementation": "nope"}, "error"),
    ({"is_encoder_decoder": True}, "error"),
    ({"return_dict": False}, "error"),
    ({"auto_map": {"AutoConfig": "evil.Evil"}}, "same or error"),
    ({"unknown": {"a": [1]}}, "same"),
)


def _config(changes: dict[str, Any], end: End) -> Case:
    def change(place: Place) -> None:
        edit_json(place.model / "config.json", **changes)

    shown = json.dumps({k: "(none)" if v is ... else v for k, v in changes.items()})
    return Case(f"config.json {shown}", change, end)


def _file(name: str, content: bytes | None, end: End = "error") -> Case:
    shown = "missing" if content is None else repr(content[:40])
    return Case(
        f"{name} {shown} {len(content or b'')}", replace_file(f"model/{name}", content), end
    )


def _tensors(name: str, edit: Callable[[dict[str, Any]], None], end: End = "error") -> Case:
    def change(place: Place) -> None:
        from safetensors.torch import load_file, save_file

        tensors = {k: v.clone() for k, v in load_file(place.model / WEIGHTS).items()}
        edit(tensors)
        save_file(tensors, place.model / WEIGHTS, metadata={"format": "pt"})

    return Case(f"weights {name}", change, end)


def _value(value: float) -> Callable[[dict[str, Any]], None]:
    return lambda t: t["model.layers.1.mlp.up_proj.weight"][3].fill_(value)


def _replaced(name: str, make: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    return lambda t: t.update({name: make(t[name]).contiguous()})


def _header(name: str, edit: Callable[[dict[str, Any]], object]) -> Case:
    def damage(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        edit(header)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + length :]

    return Case(f"header {name}", damage_file(f"model/{WEIGHTS}", damage))


def _bytes(name: str, damage: Callable[[bytes], bytes]) -> Case:
    return Case(f"weights {name}", damage_file(f"model/{WEIGHTS}", damage))


def _link(name: str) -> Case:
    def change(place: Place) -> None:
        (place.model / name).unlink()
        (place.model / name).symlink_to(name)

    return Case(f"{name} a link to itself", change)


def _extra(name: str, make: Callable[[Path], object], end: End = "error") -> Case:
    """One more file in the model's directory, which checkpoints copy."""
    return Case(f"one more file, {name}", lambda place: make(place.model / "x.txt"), end)


def _pipe(name: str) -> Case:
    def change(place: Place) -> None:
        (place.model / name).unlink()
        os.mkfifo(place.model / name)

    return Case(f"{name} a pipe", change)


def _index(content: str) -> Case:
    return _file(f"{WEIGHTS}.index.json", content.encode())


def _path(name: str, path: str) -> Case:
    return Case(f"model.path {name}", set_field("model.path", path))


NORM = "model.norm.weight"
CASES = (
    *(_config(changes, end) for changes, end in _CONFIG),
    *(_file("config.json", c) for c in (None, b"", b"{", b"[]", b"null", b"5", b"\xff\xfe", b"{}")),
    _file("config.json", b"[" * 100_000),
    _file("config.json", b'{"hidden_size": ' + b"9" * 5000 + b"}"),
    *(_file(WEIGHTS, c) for c in (None, b"", b"PK\x03\x04", bytes(100), b"\xff" * 100)),
    _file("generation_config.json", b"{"),
    _file("generation_config.json", b"[]"),
    *map(_link, ("config.json", WEIGHTS)),
    *map(_pipe, ("config.json", "generation_config.json", "tokenizer.json")),
    _extra("a pipe", os.mkfifo),
    _extra("a directory", Path.mkdir),
    _extra("a link to nothing", lambda file: file.symlink_to("nowhere")),
    _extra("a link to itself", lambda file: file.symlink_to(file.name)),
    _extra("a link to a file", lambda file: file.symlink_to("config.json"), "same"),
    _extra("a name of two lines", lambda file: file.with_name("a\nb.txt").touch(), "same"),
    _extra("a name that is not valid text", lambda file: Path(f"{file.parent}/\udcff.txt").touch()),
    *map(_index, ("[1]", "{", "{}", "null", '{"weight_map": {"a": 5}}', '{"weight_map": [1]}')),
    _index('{"weight_map": {"a": "gone.safetensors"}}'),
    _index('{"weight_map": {"a": "../../etc/passwd"}}'),
    *(_tensors(f"{v}", _value(v)) for v in (float("nan"), float("inf"), float("-inf"))),
    _tensors("of 1e38", _value(1e38), "either"),
    _tensors("of zeros", lambda t: [v.zero_() for v in t.values()], "either"),
    _tensors("of another shape", _replaced(NORM, lambda v: v[:5])),
    _tensors("transposed", _replaced("model.layers.0.mlp.up_proj.weight", lambda v: v.T)),
    _tensors("of int64", _replaced(NORM, lambda v: v.long())),
    _tensors("of uint8", _replaced(NORM, lambda v: v.byte())),
    _tensors("of bfloat16", _replaced(NORM, lambda v: v.bfloat16()), "either"),
    _tensors("of float64", _replaced(NORM, lambda v: v.double()), "same"),
    _tensors("without a tensor", lambda t: t.pop(NORM)),
    _tensors("with one more", lambda t: t.update({"more": t[NORM].clone()}), "same"),
    _header("a negative offset", lambda h: h[NORM].update(data_offsets=[-8, 120])),
    _header("swapped offsets", lambda h: h[NORM]["data_offsets"].reverse()),
    _header("another dtype", lambda h: h[NORM].update(dtype="F99")),
    _header("a negative shape", lambda h: h[NORM].update(shape=[-32])),
    _header("no shape", lambda h: h[NORM].pop("shape")),
    _header("an entry that is null", lambda h: h.update({NORM: None})),
    _bytes("cut", lambda data: data[:-100]),
    _bytes("longer", lambda data: data + b"more"),
    _bytes("with a damaged header", lambda data: data[:8] + b"\xff" * 8 + data[16:]),
    _path("missing", "gone"),
    _path("empty", ""),
    _path("a file", "reward.py"),
    _path("a long name", "x" * 5000),
    _path("of the hub", "Qwen/Qwen3-0.6B"),
)
