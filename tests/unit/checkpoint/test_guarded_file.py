"""HDF5 on a disk that is full: an error at the end, and the process lives on."""

import errno
import subprocess
import sys

import h5py
import numpy as np
import pytest

from verl_hpc.checkpoint.guarded_file import GuardedFile


def test_what_is_written_is_an_ordinary_hdf5_file(tmp_path):
    values = np.arange(100_000, dtype=np.float32)
    with GuardedFile(tmp_path / "a.h5") as raw, h5py.File(raw, "w") as file:
        file.create_dataset("x", data=values, chunks=(1000,), fletcher32=True)
        file["y"] = 3
    with h5py.File(tmp_path / "a.h5") as file:
        assert np.array_equal(file["x"][...], values)
        assert file["y"][()] == 3


@pytest.mark.parametrize("room", [0, 512, 5_000, 300_000])
def test_the_first_failed_write_is_raised_once_hdf5_is_done(tmp_path, monkeypatch, room):
    from verl_hpc.checkpoint import guarded_file

    def pwrite(descriptor, data, start):
        if start + len(data) > room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data, start)

    real = guarded_file.os.pwrite
    monkeypatch.setattr(guarded_file.os, "pwrite", pwrite)
    with (
        pytest.raises(OSError, match="No space left on device"),
        GuardedFile(tmp_path / "a.h5") as raw,
        h5py.File(raw, "w") as file,
    ):
        file.create_dataset("x", data=np.ones(100_000, dtype=np.float32), fletcher32=True)


FULL = """
import h5py, numpy as np, resource, signal
from verl_hpc.checkpoint.guarded_file import GuardedFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with GuardedFile({path!r}) as raw, h5py.File(raw, "w") as file:
        for i in range(50):
            file.create_dataset(f"group/x{{i}}", data=np.ones(10_000), chunks=(100,))
except OSError as error:
    print("told:", error.strerror)
"""


def test_the_process_ends_in_order_when_the_system_refuses_writes(tmp_path):
    """A real limit of the system, and HDF5's own clean-up at exit."""
    script = FULL.format(path=str(tmp_path / "a.h5"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "told: File too large\n"), done.stderr
