"""Steps of format 3 are read as before."""

import json

import h5py
import numpy as np
import pytest

from tests.unit.checkpoint.steps import contents, reseal, spoil_chunk
from verl_hpc.checkpoint import datasets, schema
from verl_hpc.checkpoint.manifest import read_manifest, write_manifest
from verl_hpc.errors import DamageError


def rewrite(path):
    """A rank's file as format 3 had it: chunks of whole rows, checksums beside each dataset."""
    with h5py.File(path) as new:
        stored, names = {}, []
        new.visititems(lambda n, i: names.append(n) if isinstance(i, h5py.Dataset) else None)
        stored = {n: (new[n][...], dict(new[n].attrs)) for n in names if n != schema.SUMS}
    save_id, _ = stored.pop(schema.SAVE_ID)
    with h5py.File(path, "w", libver="latest") as file:
        file.attrs["save_id"] = save_id.tobytes().decode()
        for name, (array, attributes) in stored.items():
            rows = max(array.shape[0] // 3, 1)  # the last chunk is not whole
            chunks = (rows, *array.shape[1:])
            dataset = file.create_dataset(name, data=array, chunks=chunks, fletcher32=True)
            dataset.attrs["dtype"] = attributes["dtype"]
            parts = [array[i : i + rows] for i in range(0, len(array), rows)]
            sums = [datasets.xxhash.xxh3_64_intdigest(np.ascontiguousarray(p)) for p in parts]
            dataset.attrs["xxh3_64"] = np.array(sums, np.uint64)


@pytest.fixture
def old(step, monkeypatch):
    for path in step.glob("rank_*.h5"):
        rewrite(path)
    reseal(step)
    monkeypatch.setattr(schema, "FORMAT_VERSION", 3)
    write_manifest(step, read_manifest(step))
    monkeypatch.undo()
    assert json.loads((step / "manifest.json").read_text())["format"] == 3
    return step


def test_it_reads_the_same(old, original, tmp_path):
    assert contents(old, tmp_path / "old") == contents(original, tmp_path / "new")


def test_its_damage_is_noticed(old, tmp_path):
    spoil_chunk(old / "rank_00001.h5", lambda size: bytes([1]) * size)
    with pytest.raises(DamageError, match=r"rank_00001\.h5: .*norm\.weight.* another checksum"):
        contents(old, tmp_path / "out")
