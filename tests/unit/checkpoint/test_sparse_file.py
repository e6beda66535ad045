"""A sparse file is a file: whatever is written and read, as with bytes in a row."""

import random
from io import BytesIO

from verl_hpc.checkpoint.sparse_file import SparseFile


def test_it_does_what_bytes_in_memory_do():
    chance = random.Random(3)
    ours, theirs = SparseFile(), BytesIO(bytes(60_000))
    ours.truncate(60_000)
    for _ in range(500):
        place, count = chance.randrange(50_000), chance.randrange(10_000)
        assert ours.seek(place) == theirs.seek(place)
        if chance.random() < 0.5:
            data = chance.randbytes(count)
            assert ours.write(data) == theirs.write(data)
        else:
            assert ours.read(count) == theirs.read(count)
        assert ours.tell() == theirs.tell()
    assert ours.size == 60_000


def test_holes_take_no_memory():
    file = SparseFile()
    file.seek(1 << 40)
    file.write(b"end")
    file.seek((1 << 40) - 2)
    assert file.read(5) == b"\0\0end"
    assert (file.size, len(file._pages)) == ((1 << 40) + 3, 1)
