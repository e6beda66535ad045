"""Directories written by the safetensors library itself, and damaged ones."""

import json

import pytest
import torch
from safetensors.torch import save_file

from verl_hpc.errors import ModelError
from verl_hpc.layout.safetensors import read_header, safetensors_shard_map
from verl_hpc.layout.shard_map import ITEM_BYTES, TensorSpec, shard_sizes


def save(directory, name="model.safetensors", **tensors):
    file = directory / name
    save_file(tensors or {"w": torch.zeros(4, 3)}, file, metadata={"format": "pt"})
    return file


def refused(directory, message):
    with pytest.raises(ModelError, match=message):
        safetensors_shard_map(directory)


def forge(directory, **entries):
    """A file with entries as they are given, and bytes of one matrix."""
    header = json.dumps(entries).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(48)
    (directory / "model.safetensors").write_bytes(content)


def index(directory, **weight_map):
    file = directory / "model.safetensors.index.json"
    file.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_every_element_type(tmp_path, dtype):
    save(tmp_path, w=torch.zeros(2, 3).to(getattr(torch, dtype)))
    found = safetensors_shard_map(tmp_path)
    assert found.tensors == {"w": TensorSpec((2, 3), dtype)}
    assert found.num_bytes == 6 * ITEM_BYTES[dtype]


def test_each_tensor_is_held_whole_by_its_file(tmp_path):
    first = save(tmp_path, "a.safetensors", u=torch.zeros(4, 3), v=torch.zeros(2, 2, 2))
    second = save(tmp_path, "b.safetensors", w=torch.zeros(5))
    shard_map = safetensors_shard_map(str(tmp_path))
    assert shard_map.holders == (str(first), str(second))
    held = {r.tensor: (r.holders, r.box.shape, r.view) for r in shard_map.regions}
    assert {t: h[:2] for t, h in held.items()} == {
        "u": ((str(first),), (4, 3)),
        "v": ((str(first),), (2, 2, 2)),
        "w": ((str(second),), (5,)),
    }
    view = held["v"][2]
    assert (view.name, view.offset, view.strides) == ("v", 0, (4, 2, 1))
    assert shard_sizes(shard_map) == {str(first): 4 * 20, str(second): 4 * 5}


def test_a_scalar(tmp_path):
    save(tmp_path, s=torch.tensor(3.0))
    assert safetensors_shard_map(tmp_path).tensors == {"s": TensorSpec((), "float32")}


def test_the_header_is_what_was_saved(tmp_path):
    header = read_header(save(tmp_path, w=torch.zeros(4, 3)))
    assert header == {"w": {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}}


def test_only_files_of_the_index_are_read(tmp_path):
    """Some published directories hold the same weights a second time under other names."""
    save(tmp_path, "model-1.safetensors", u=torch.zeros(2))
    save(tmp_path, "model-2.safetensors", w=torch.zeros(2))
    save(tmp_path, "consolidated.safetensors", other=torch.zeros(2))
    index(tmp_path, u="model-1.safetensors", w="model-2.safetensors")
    assert sorted(safetensors_shard_map(tmp_path).tensors) == ["u", "w"]


def test_files_the_index_names_and_that_are_missing(tmp_path):
    save(tmp_path, "model-2.safetensors", w=torch.zeros(2))
    index(tmp_path, u="model-3.safetensors", v="model-1.safetensors", w="model-2.safetensors")
    message = r"index.json names files that are missing: model-1.safetensors, model-3.safetensors$"
    refused(tmp_path, message)


def test_a_tensor_in_two_files(tmp_path):
    save(tmp_path, "a.safetensors", w=torch.zeros(2))
    save(tmp_path, "b.safetensors", w=torch.zeros(2))
    refused(tmp_path, r"b.safetensors: tensor w is also in another file")


def test_no_directory(tmp_path):
    refused(tmp_path / "absent", r"no directory .*/absent; give a Hugging Face")


def test_a_directory_without_safetensors(tmp_path):
    (tmp_path / "pytorch_model.bin").touch()
    refused(tmp_path, rf"no \*.safetensors in {tmp_path}; convert other")


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    file = save(tmp_path, w=torch.zeros(4, 3))
    content = file.read_bytes()
    read_header(file)
    for length in range(len(content)):
        file.write_bytes(content[:length])
        with pytest.raises(ModelError, match=r"model.safetensors: "):
            read_header(file)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda good: good[:-5], r"{short} bytes, .* {size}; .* download it again"),
        (lambda good: good + b"more", "truncated or damaged"),
        (
            lambda good: good[:8] + b"\xff" * 4 + good[12:],
            "model.safetensors: damaged safetensors header",
        ),
    ],
    ids=["cut off", "longer", "no JSON"],
)
def test_a_damaged_file(tmp_path, damage, told):
    file = save(tmp_path)
    good = file.read_bytes()
    file.write_bytes(damage(good))
    refused(tmp_path, told.format(short=len(good) - 5, size=len(good)))


@pytest.mark.parametrize("content", [b"PK\x03\x04 a zip file, say", b"\xff" * 64, b""])
def test_another_format_under_the_name(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    refused(tmp_path, r"model.safetensors: not a safetensors file")


@pytest.mark.parametrize(
    "text",
    ["[1]", "{}", '{"weight_map": [1]}', '{"weight_map": {"w": 5}}', "null", "{", '"x"',
     '{"weight_map": {"w": "../other/model.safetensors"}}',
     '{"weight_map": {"w": "/etc/passwd"}}', '{"weight_map": {"w": "a\\u0000b"}}',
     '{"weight_map": {"w": ""}}'],
)  # fmt: skip
def test_an_index_that_is_none(tmp_path, text):
    save(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    refused(tmp_path, r"model.safetensors.index.json")


@pytest.mark.parametrize("entry", [None, [], {}, {"dtype": "F32", "shape": [4, 3]}], ids=str)
def test_an_entry_that_is_none(tmp_path, entry):
    forge(tmp_path, w=entry)
    refused(tmp_path, r"model.safetensors: .*tensor w .*download")


@pytest.mark.parametrize(
    "dtype, shape, data_offsets",
    [
        ("F99", [4, 3], [0, 48]),
        (["F32"], [4, 3], [0, 48]),
        ("F32", [4, 3], [-48, 0]),
        ("F32", [4, 3], [0, 44]),
        ("F32", [4, 3], [0]),
        ("F32", [4, 3], [0, "48"]),
        ("F32", [4.0, 3], [0, 48]),
        ("F32", "43", [0, 48]),
        ("F32", [2**62, 2**62], [0, 48]),
        ("F32", [4, 3], [4, 52]),
    ],
)
def test_an_entry_with_values_that_cannot_be(tmp_path, dtype, shape, data_offsets):
    forge(tmp_path, w={"dtype": dtype, "shape": shape, "data_offsets": data_offsets})
    refused(tmp_path, r"model.safetensors: .*tensor w .*download")


def test_tensors_that_share_bytes(tmp_path):
    entry = {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}
    forge(tmp_path, v=entry, w=entry)
    refused(tmp_path, "tensor w begins at byte 0, where the one before ends")


def test_links_and_directories_that_are_no_files(tmp_path):
    (tmp_path / "a.safetensors").symlink_to("a.safetensors")
    (tmp_path / "b.safetensors").mkdir()
    refused(tmp_path, "no files, or links to none: a.safetensors, b.safetensor")
