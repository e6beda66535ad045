"""Mutated configurations end in a plan or in one clean error, soon."""

import json
import os
import re
import time

import pytest

from tests.fuzz.configurations import UNCHANGED, mutants
from tests.fuzz.judge import NAMES
from tests.unit.layout.models import PUBLISHED
from verl_hpc.cli.main import main

SEED = 20261122
MOST_BYTES = 6000
MOST_SECONDS = 30.0


LLAMA = PUBLISHED["Llama-3.1-8B"][0]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "model").mkdir()
    return tmp_path


def fault(mutant, directory, capsys):
    """What is unclean about the end of a dry run; None if nothing is."""
    for name in ("run", "site"):
        text = getattr(mutant, name)
        (directory / f"{name}.yaml").write_bytes(text.encode(errors="surrogateescape"))
    begin = time.process_time()
    try:
        status = main(["submit", *mutant.words()])
    except SystemExit as error:
        status = error.code
    except BaseException as error:
        capsys.readouterr()
        return f"{type(error).__name__}: {error}"[:300]
    seconds = time.process_time() - begin
    out, err = capsys.readouterr()
    if seconds > MOST_SECONDS:
        return f"took {seconds:.1f} s"
    if status == 0:
        return None if out and not err else "accepted without a plan"
    if "Traceback" in err or len(err.encode(errors="replace")) > MOST_BYTES:
        return f"{len(err)} characters: {err[:200]}"
    if status == 2:
        return None if "error: " in err else f"status 2: {err[:200]}"
    named = re.match(rf"({NAMES}): .*\S", err) is not None
    return None if status == 1 and named else f"status {status}: {err[:200]}"


def check(directory, capsys, count, model):
    (directory / "model/config.json").write_text(json.dumps(model))
    found = [(m, fault(m, directory, capsys)) for m in mutants(SEED, count)]
    wrong = [f"{index}: {told}" for index, (_, told) in enumerate(found) if told is not None]
    assert len(found) == len({mutant.key for mutant, _ in found} - UNCHANGED) == count
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:30])


def test_some_mutated_configurations(here, capsys):
    """The model nearly always fits, since the search for what would fit takes seconds."""
    check(here, capsys, 150, LLAMA | {"num_hidden_layers": 2})


@pytest.mark.slow
def test_thousands_of_mutated_configurations(here, capsys):
    check(here, capsys, 4200, LLAMA)
