"""A sparse file is a file: whatever is written and read, as with bytes in a row."""

from verl_hpc.checkpoint.tensor_file import SparseFile


def test_holes_take_no_memory():
    file = SparseFile()
    file.seek(1 << 40)
    file.write(b"end")
    file.seek((1 << 40) - 2)
    assert file.read(5) == b"\0\0end"
    assert (file.size, len(file._pages)) == ((1 << 40) + 3, 1)
