"""Rows of a user's class: the file that they become, and classes that fail."""

import pytest

from tests.unit.config.trees import parse
from verl_hpc.config.load import parse_config
from verl_hpc.data.sources import open_source
from verl_hpc.errors import ConfigError, DataError
from verl_hpc.trainer.own_sources import as_files, rows_file, write_rows

CODE = """
import verl_hpc

calls = []

class OfTheInterface(verl_hpc.PromptSource):
    def rows(self):
        return ({"prompt": str(i)} for i in range(9))

class Good:
    def rows(self):
        calls.append(1)
        for i in range(3):
            yield {"prompt": f"{i}, start {len(calls)}", "answer": "1"}

class Endless:
    def rows(self):
        while True:
            yield {"prompt": "again"}

class Fails(Good):
    def rows(self):
        yield from Good.rows(self)
        raise OSError("the queue is gone")

class Empty:
    def rows(self):
        return []

class NoRows:
    def rows(self):
        return None

class Odd:
    def rows(self):
        return [{"prompt": "a"}, "b"]

class NoJson:
    def rows(self):
        return [{"prompt": {1, 2}}]
"""


def asked(directory, name, **more):
    (directory / "own.py").write_text(CODE)
    (directory / "runs").mkdir(exist_ok=True)
    train = {"kind": "source", "path": f"{directory}/own.py:{name}", **more}
    config = parse(data__train=train, directory=str(directory), name="runs")
    return config, rows_file(config, config.data.train)


def test_rows_are_written_once_and_read_as_files(tmp_path):
    config, file = asked(tmp_path, "Good")
    for _ in range(2):
        write_rows(config, anew=False)
        rows = open_source(as_files(config).data.train)
        assert [row.prompt for row in rows] == [f"{i}, start 1" for i in range(3)]
    assert as_files(config).data.train.paths == [str(file)]
    write_rows(config, anew=True)
    assert "start 2" in file.read_text()
    with pytest.raises(DataError, match="its rows are written when the run starts"):
        open_source(config.data.train)


def test_equal_classes_are_asked_once_and_others_have_files_of_their_own(tmp_path):
    config, file = asked(tmp_path, "Good")
    source = config.data.train.model_dump()
    tasks = {"a": {"recipe": "rl", "train": source}, "b": {"train": source | {"limit": 2}}}
    tree = config.model_dump(mode="json", exclude_unset=True) | {"tasks": tasks}
    del tree["data"]["train"]
    config = parse_config(tree)
    write_rows(config, anew=True)
    starts = {path.read_text().count("start 1") for path in file.parent.iterdir()}
    assert file.exists() and len(list(file.parent.iterdir())) == 2
    assert starts <= {0, 3}
    assert parse_config(as_files(config).model_dump(mode="json")).tasks["b"].train.paths


def test_no_more_rows_are_asked_for_than_the_limit(tmp_path):
    for name in ("Endless", "OfTheInterface"):
        config, file = asked(tmp_path, name, limit=5)
        write_rows(config, anew=False)
        assert len(file.read_text().splitlines()) == 5
        file.unlink()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Fails", r"fails behind 3 rows \(OSError: the queue is gone\)"),
        ("Empty", r"rows\(\) gave none"),
        ("NoRows", r"rows\(\) gave None; expected an iterator"),
        ("Odd", r"fails behind 1 rows \(TypeError: 'b'; expected a mapping"),
        ("NoJson", "behind 0 rows .*JSON"),
        ("Missing", "defines no 'Missing'"),
    ],
)
def test_a_class_that_fails_is_named_and_leaves_no_file(tmp_path, name, words):
    config, _ = asked(tmp_path, name)
    with pytest.raises(DataError, match=rf"data.train.path = .*own.py:{name}.*{words}"):
        write_rows(config, anew=False)
    assert list((tmp_path / "runs").rglob("*.*")) == []


def test_a_path_must_name_a_class():
    with pytest.raises(ConfigError, match=r"path = 'own.py': expected path/to/file.py:Class"):
        parse(data__train={"kind": "source", "path": "own.py"})
