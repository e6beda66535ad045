"""A step whose files somebody has exchanged is read from its own files, or not at all."""

import os
import shutil

import h5py
import numpy as np
import pytest

from tests.unit.checkpoint.steps import contents, reseal
from verl_hpc.errors import DamageError


def refuses(step, match):
    out = step.parent / "out"
    with pytest.raises(DamageError, match=match):
        contents(step, out)
    assert not out.exists()
    assert not (step.parent / ".out.partial").exists()


@pytest.mark.parametrize("named", ["{outside}", "../{name}", "hf/{name}", "rank_00007.h5", "x.h5"])
def test_files_of_the_index_are_those_of_the_manifest(step, original, named):
    outside = step.parent / "rank_00000.h5"
    shutil.copyfile(original / "rank_00000.h5", outside)
    shutil.copyfile(outside, step / "rank_00007.h5")
    with h5py.File(step / "index.h5", "r+") as file:
        names = file["regions/files"][:].tolist()
        del file["regions/files"]
        names[0] = named.format(outside=outside, name=outside.name).encode()
        file["regions/files"] = np.array(names, np.bytes_)
    reseal(step)
    refuses(step, r"index\.h5: damaged .*not part of a step")


LINKED = ["rank_00001.h5", "index.h5", "state.json", "config.yaml", "hf/config.json", "hf"]


@pytest.mark.parametrize("name", [*LINKED, "manifest.json"])
def test_links_are_not_followed(step, name):
    """Their targets have the very bytes that were written."""
    target = step.parent / "elsewhere"
    shutil.move(step / name, target)
    (step / name).symlink_to(target)
    refuses(step, "not a regular file|its directory is a symbolic link")


@pytest.mark.parametrize("name", ["rank_00001.h5", "state.json", "hf/config.json"])
def test_a_pipe_is_not_waited_for(step, name):
    (step / name).unlink()
    os.mkfifo(step / name)
    refuses(step, "not a regular file")


def test_a_file_besides_those_of_the_model_is_not_exported(step):
    (step / "hf/tokenizer_config.json").unlink()
    refuses(step, r"tokenizer_config\.json is missing")
    (step / "hf/tokenizer_config.json").symlink_to("/etc/hostname")
    refuses(step, "not a regular file")


def test_hf_has_no_more_files_than_were_written(step):
    (step / "hf/extra.json").symlink_to("/etc/hostname")
    refuses(step, r"hf: damaged \(has .*extra\.json")


def test_parts_of_a_tensor_are_inside_of_it(step):
    with h5py.File(step / "index.h5", "r+") as file:
        file["regions/stop"][0] = 1 << 40
    reseal(step)
    refuses(step, "is not a part of")
