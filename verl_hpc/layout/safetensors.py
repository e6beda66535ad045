"""A Hugging Face directory of safetensors files as a shard map: each tensor whole, in one file.

Only headers are read: eight bytes of length, then JSON (the safetensors format, version 0.x).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_hpc.errors import ModelError
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec, whole

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_LARGEST_HEADER = 100 * 2**20


def safetensors_shard_map(directory: str | Path) -> ShardMap:
    """Every tensor of every `*.safetensors` file below `directory`; holders are file paths.

    Raises:
        ModelError: no such directory, no safetensors in it, a damaged header, a file that the
            index names and that is missing, or a tensor that is in two files.
    """
    root = Path(directory)
    files = _files(root)
    tensors: dict[str, TensorSpec] = {}
    regions: list[Region] = []
    for file in files:
        for name, entry in read_header(file).items():
            if name in tensors:
                raise ModelError(f"{file}: tensor {name} is also in another file of {root}")
            spec = TensorSpec(tuple(entry["shape"]), _DTYPES[entry["dtype"]])
            tensors[name] = spec
            regions.append(whole(name, name, spec.shape, (str(file),)))
    return ShardMap(tensors, regions)


def _files(root: Path) -> list[Path]:
    if not root.is_dir():
        raise ModelError(f"model: no directory {root}; give a Hugging Face model directory")
    files = sorted(root.glob("*.safetensors"))
    index = root / "model.safetensors.index.json"
    if index.is_file():
        named = {root / name for name in json.loads(index.read_text())["weight_map"].values()}
        missing = sorted(str(f.name) for f in named if not f.is_file())
        if missing:
            raise ModelError(f"model: {index} names files that are missing: {', '.join(missing)}")
        files = sorted(named)
    if not files:
        raise ModelError(
            f"model: no *.safetensors in {root}; convert other formats with transformers' "
            "save_pretrained first"
        )
    return files


def read_header(file: Path) -> Mapping[str, Any]:
    """Tensor entries of one file: {name: {dtype, shape, data_offsets}}.

    Raises:
        ModelError: the header is not one, or the file is shorter than the header says.
    """
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= _LARGEST_HEADER:
            raise ModelError(f"{file}: not a safetensors file")
        try:
            header = json.loads(stream.read(length))
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise ModelError(f"{file}: damaged safetensors header; download it again") from None
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    size = file.stat().st_size
    if size < 8 + length + end:
        raise ModelError(
            f"{file}: {size} bytes, but its header speaks of {8 + length + end}; the file is "
            "truncated, download it again"
        )
    return header
