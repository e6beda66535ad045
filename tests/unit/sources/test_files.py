"""Files of a data set: directories, globs and stores, their order, and stores that fail."""

import json
import re

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.unit.config.trees import parse
from tests.unit.data.conftest import write_parquet
from verl_hpc.config.data import FilesConfig
from verl_hpc.data.fingerprint import fingerprint
from verl_hpc.data.sources import open_source
from verl_hpc.errors import DataError
from verl_hpc.sources import files as stores
from verl_hpc.sources.files import check_protocol, found_files, list_files
from verl_hpc.sources.local import put_settings


@pytest.fixture(params=["here", "store"])
def root(request, tmp_path):
    """A directory, and a function that writes the rows of a file in it."""
    place = str(tmp_path) if request.param == "here" else f"memory://{tmp_path.name}"
    with_parents = fsspec.filesystem("file" if request.param == "here" else "memory")
    for name in ("b.jsonl", "a.jsonl", "_SUCCESS", "notes.txt", "below/c.jsonl"):
        with_parents.makedirs(f"{place}/{name}".rpartition("/")[0], exist_ok=True)
        rows = [{"prompt": f"{name} {i}"} for i in range(2)]
        with fsspec.open(f"{place}/{name}", "w") as file:
            file.write("\n".join(map(json.dumps, rows)))
    return place


def names(path, root):
    return [file.rpartition(f"{root.rpartition('/')[2]}/")[2] for file in list_files(path)]


def test_directories_and_globs_are_their_files_by_name(root):
    assert names(root, root) == names(f"{root}/", root) == ["a.jsonl", "b.jsonl"]
    assert names(f"{root}/*.jsonl", root) == ["a.jsonl", "b.jsonl"]
    assert names(f"{root}/**/*.jsonl", root) == ["a.jsonl", "b.jsonl", "below/c.jsonl"]
    assert list_files(f"{root}/gone.jsonl") == [f"{root}/gone.jsonl"]


def test_what_holds_no_files_is_refused(root):
    for path in (f"{root}/*.parquet", f"{root}/gone/*"):
        with pytest.raises(DataError, match=f"^{re.escape(path)}: (matches no|has no) file"):
            list_files(path)
    if "://" in root:
        with pytest.raises(DataError, match=f"^{root}/gone/: cannot be read .FileNotFoundError"):
            list_files(f"{root}/gone/")
    with fsspec.open(f"{root}/a.parquet", "w") as file:
        file.write("")
    with pytest.raises(DataError, match=r"both .parquet and .jsonl, .*name one kind"):
        list_files(root)


def test_a_run_reads_its_directories_as_files_of_one_rank(root):
    train = {"kind": "files", "paths": [root, f"{root}/below/c.jsonl"]}
    config = parse(data__train=train)
    files = found_files(config)
    used = put_settings(config, files).data.train
    assert files == {"data.train.paths": used.paths} and len(used.paths) == 3
    source = open_source(used)
    assert [p.prompt for p in source] == [p.prompt for p in open_source(config.data.train)]
    assert source[4].prompt == "below/c.jsonl 0" and source[4].origin.startswith(used.paths[2])
    # The rows decide, not whether they were named one by one.
    assert fingerprint(used) == fingerprint(config.data.train)
    with fsspec.open(f"{root}/aa.jsonl", "w") as file:
        file.write('{"prompt": "new"}')
    assert fingerprint(used) != fingerprint(config.data.train)


class Flaky(MemoryFileSystem):
    """A store that fails as often as it is told."""

    protocol = "flaky"
    fails = 0

    def _open(self, *arguments, **options):
        Flaky.answer()
        return FlakyFile(super()._open(*arguments, **options))

    @staticmethod
    def answer():
        if Flaky.fails:
            Flaky.fails -= 1
            raise OSError("the store is down")


class FlakyFile:
    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def read(self, *size):
        Flaky.answer()
        return self.file.read(*size)


def test_a_store_that_is_down_is_asked_again_and_then_named(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "WAITS_S", (0.0, 0.0))
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    with fsspec.open("flaky://rows.jsonl", "w") as file:
        file.write('{"prompt": "a"}')
    config = parse(data__train={"kind": "files", "paths": ["flaky://rows.jsonl"]})
    Flaky.fails = 2
    assert open_source(config.data.train)[0].prompt == "a"
    Flaky.fails = 9
    with pytest.raises(DataError, match=r"flaky://rows.jsonl: .*is down\), asked 3 times"):
        open_source(config.data.train)
    assert Flaky.fails == 6
    Flaky.fails = 0


def test_a_read_of_parquet_that_fails_begins_again_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "WAITS_S", (0.0, 0.0))
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    rows = [{"prompt": f"p{i}"} for i in range(9)]
    with fsspec.open("flaky://rows.parquet", "wb") as file:
        file.write(write_parquet(tmp_path / "rows.parquet", rows).read_bytes())
    source = open_source(FilesConfig(paths=["flaky://rows.parquet"]))
    Flaky.fails = 2
    assert [p.prompt for p in source.scan()] == [row["prompt"] for row in rows]
    assert Flaky.fails == 0
    Flaky.fails = 3
    with pytest.raises(DataError, match="flaky://rows.parquet: .*asked 3 times"):
        source[5]
    assert source[5].prompt == "p5"


def test_a_protocol_without_its_package_is_named():
    check_protocol("s3://bucket/a.jsonl")
    with pytest.raises(DataError, match=r"nowhere://a.jsonl: .*nowhere.*s3fs"):
        check_protocol("nowhere://a.jsonl")
