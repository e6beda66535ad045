"""A Hugging Face directory of safetensors files as a shard map: each tensor whole, in one file.

Only headers are read: eight bytes of length, then JSON (the safetensors format, version 0.x).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_hpc.config.explain import shown
from verl_hpc.errors import ModelError
from verl_hpc.layout.json_file import read_json_object
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
    files = safetensors_files(root)
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


def safetensors_files(root: Path) -> list[Path]:
    """Files of a model's weights: those that its index names, or all there are.

    Raises:
        ModelError: no such directory, none in it, or not all of the index.
    """
    if not root.is_dir():
        raise ModelError(f"model: no directory {root}; give a Hugging Face model directory")
    files = sorted(root.glob("*.safetensors"))
    index = root / "model.safetensors.index.json"
    if index.is_file():
        names = read_json_object(index).get("weight_map")
        if not isinstance(names, dict) or not all(map(_is_file_name, names.values())):
            raise ModelError(f"model: {index}: weight_map must give each tensor the name of a file")
        files = sorted({root / name for name in names.values()})
    missing = sorted(str(f.name) for f in files if not f.is_file())
    if missing and index.is_file():
        raise ModelError(f"model: {index} names files that are missing: {', '.join(missing)}")
    if missing:
        raise ModelError(f"model: {root}: no files, or links to none: {', '.join(missing)}")
    if not files:
        raise ModelError(
            f"model: no *.safetensors in {root}; convert other formats with transformers' "
            "save_pretrained first"
        )
    return files


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name and "\0" not in name


def read_header(file: Path) -> Mapping[str, Any]:
    """Tensor entries of one file: {name: {dtype, shape, data_offsets}}.

    Raises:
        ModelError: the header is not one, contradicts itself, or describes more or fewer bytes
            than the file has.
    """
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= _LARGEST_HEADER:
                raise ModelError(f"{file}: not a safetensors file")
            header = json.loads(stream.read(length))
        size = file.stat().st_size
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ModelError(f"{file}: damaged safetensors header; download it again")
    # The tensors must fill the rest of the file without gaps, in the order of their offsets.
    header.pop("__metadata__", None)
    end = 0
    for start, stop, name in sorted(_range(file, name, entry) for name, entry in header.items()):
        if start != end:
            raise ModelError(
                f"{file}: tensor {name} begins at byte {start}, where the one before ends at "
                f"{end}; download it again"
            )
        end = stop
    if size != 8 + length + end:
        raise ModelError(
            f"{file}: {size} bytes, but its header describes {8 + length + end}; the file is "
            "truncated or damaged, download it again"
        )
    return header


def _range(file: Path, name: str, entry: Any) -> tuple[int, int, str]:
    """Byte range of a tensor.

    Raises:
        ModelError: the entry has another type, or its bytes are not those of its shape.
    """
    if isinstance(entry, dict) and str(entry.get("dtype")) in _DTYPES:
        shape: Any = entry.get("shape")
        offsets: Any = entry.get("data_offsets")
        if _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2:
            num_bytes = TensorSpec(tuple(shape), _DTYPES[entry["dtype"]]).num_bytes
            if offsets[1] - offsets[0] == num_bytes:
                return offsets[0], offsets[1], name
    raise ModelError(
        f"{file}: the header's entry of tensor {name:.200} is damaged: {shown(entry)}; download "
        "the file again"
    )


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)
