"""A step that somebody has forged, with checksums to match, reads nothing outside of itself."""

import os
import shutil

import h5py
import numpy as np
import pytest

from tests.unit.checkpoint.steps import contents, reseal
from verl_hpc.checkpoint.responses import read_responses, write_responses
from verl_hpc.errors import DamageError
from verl_hpc.rollout.protocol import Response


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


def external_link(file, group, name, other):
    path = group[name].name
    del group[name]
    group[name] = h5py.ExternalLink(other, path)


def external_link_above(file, group, name, other):
    path = group.name
    del file[path]
    file[path] = h5py.ExternalLink(other, path)


def soft_link(file, group, name, other):
    group.move(name, "moved")
    group[name] = h5py.SoftLink(f"{group.name}/moved")


def virtual(file, group, name, other):
    old, path = group[name], group[name].name
    layout = h5py.VirtualLayout(old.shape, old.dtype)
    layout[...] = h5py.VirtualSource(other, path, old.shape)
    _replace(group, name, lambda: group.create_virtual_dataset(name, layout))


def external_storage(file, group, name, other):
    sizes, places = (group[name].shape, group[name].dtype), [(other, 0, 1 << 10)]
    _replace(group, name, lambda: group.create_dataset(name, *sizes, external=places))


def compressed(file, group, name, other):
    data = group[name][...]
    _replace(group, name, lambda: group.create_dataset(name, data=data, compression="gzip"))


def huge(file, group, name, other):
    dtype = group[name].dtype
    _replace(group, name, lambda: group.create_dataset(name, (1 << 40,), dtype, chunks=(1 << 20,)))


def _replace(group, name, create):
    attributes = dict(group[name].attrs)
    del group[name]
    create().attrs.update(attributes)


def of_other_elements(file, group, name, other):
    group[name].attrs["dtype"] = "load"


def of_other_bits(file, group, name, other):
    group[name].attrs["dtype"] = "float32"


FORGERIES = {
    external_link: "link to somewhere else",
    external_link_above: "link to somewhere else",
    soft_link: "link to somewhere else",
    virtual: "is somewhere else",
    external_storage: "is somewhere else",
    compressed: "otherwise filtered",
    huge: "more than the file has",
    of_other_elements: "load",
    of_other_bits: "meant to be torch.float32",
}
"""What is done to a file, to the group and the name of a dataset of weights in it, with the same
file of another step."""


@pytest.mark.parametrize("forge", FORGERIES)
def test_what_is_read_lies_in_the_file_that_was_named(step, original, forge):
    with h5py.File(step / "rank_00001.h5", "r+", libver="latest") as file:
        group = file["actor/model.norm.weight"]
        forge(file, group, *group, str(original / "rank_00001.h5"))
    reseal(step)
    refuses(step, FORGERIES[forge])


@pytest.mark.parametrize("name, path", [("rank_00001.h5", "rank"), ("index.h5", "regions/start")])
def test_random_states_and_the_index_lie_in_the_file_that_was_named(step, original, name, path):
    with h5py.File(step / name, "r+", libver="latest") as file:
        del file[path]
        file[path] = h5py.ExternalLink(str(original / name), path)
    reseal(step)
    refuses(step, "link to somewhere else")


def test_parts_of_a_tensor_are_inside_of_it(step):
    with h5py.File(step / "index.h5", "r+") as file:
        file["regions/stop"][0] = 1 << 40
    reseal(step)
    refuses(step, "is not a part of")


def test_finished_responses_are_not_read_from_elsewhere(tmp_path):
    step, other = tmp_path / "step", tmp_path / "other"
    step.mkdir()
    other.mkdir()
    for directory in (step, other):
        write_responses(directory, 0, "k", {1: Response((1, 2), (-1.0, -2.0), "length")})
    path = step / "rollout/replica_00000.h5"
    with h5py.File(path, "r+") as file:
        del file["tokens"]
        file["tokens"] = h5py.ExternalLink(str(other / "rollout/replica_00000.h5"), "tokens")
    with pytest.raises(DamageError, match=r"replica_00000\.h5: damaged \(tokens is a link"):
        list(read_responses(step))
    path.unlink()
    path.symlink_to(other / "rollout/replica_00000.h5")
    with pytest.raises(DamageError, match="not a regular file"):
        list(read_responses(step))
