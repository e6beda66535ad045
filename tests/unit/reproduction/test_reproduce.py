"""Cases of the verb reproduce, with programs that take no time."""

import json
import shlex
from pathlib import Path

import pytest

from tests.unit.cluster.requests import ROOT
from verl_hpc.cli.main import main
from verl_hpc.migration.translate import load_run
from verl_hpc.reproduction.case import MEASURE, Case, find_cases
from verl_hpc.reproduction.run import Places

MEASURED = """
import json, sys
from pathlib import Path
count = len((Path(sys.argv[1]) / "count").read_text())
print(json.dumps({"values": {"count": count}, "curves": {"Count": {"ours": [[0, 1], [1, 2]]}}}))
"""
COUNT = "python -c \"open('{out}/count', 'a').write('x')\""
SMALL = f"""
title: Count to one
source: a book of numbers
minutes: 1
commands:
  - {json.dumps(COUNT)}
rows:
  - {{name: count, theirs: "1", within: [1, 1]}}
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Write a case, and run the verb on it in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(text=SMALL, *words, measure=MEASURED):
        directory = tmp_path / "reproductions" / "small"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "case.yaml").write_text(text)
        (directory / MEASURE).write_text(measure)
        return main(["reproduce", *words])

    return run


def count(tmp_path):
    return len((tmp_path / "runs/reproduce/small/count").read_text())


def test_a_case_is_run_once_and_again_when_its_commands_change(small, tmp_path, capsys):
    assert small() == 0
    assert "count   1       1     1          agrees" in capsys.readouterr().out
    assert small() == 0
    assert count(tmp_path) == 1
    assert small(SMALL.replace('"1"', '"one"')) == 0
    assert "one" in capsys.readouterr().out
    assert count(tmp_path) == 1, "another row repeats no command"
    assert small(SMALL.replace("'x'", "'yy'"), measure=MEASURED + "\n") == 1
    assert count(tmp_path) == 2, "results of other commands stayed"


def test_a_case_that_failed_goes_on_behind_its_finished_commands(small, tmp_path, capsys):
    more = SMALL.replace("rows:", "  - cat {out}/second\nrows:")
    assert small(more) == 1
    assert "No such file" in capsys.readouterr().out
    (tmp_path / "runs/reproduce/small/second").touch()
    assert small(more) == 0
    assert count(tmp_path) == 1


def test_a_figure_that_disagrees_needs_a_reason(small, tmp_path, capsys):
    wrong = SMALL.replace("[1, 1]", "[2, null]")
    assert small(wrong) == 1
    assert "at least 2  DISAGREES" in capsys.readouterr().out
    assert small(wrong.replace("null]", "null], reason: We count differently.")) == 0
    assert "We count differently." in capsys.readouterr().out
    page = (tmp_path / "runs/reproduce/reproduce.html").read_text()
    assert "differs, as explained" in page and "We count differently." in page
    assert "a book of numbers" in page and "<svg" in page and "<script" not in page


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        ("{gpus: 1000}", "needs 1000 GPUs"),
        ("{files: ['{data}/none']}", "/none, which is not there"),
        ("{files: ['{weights}/Qwen/Qwen3']}", "Qwen/Qwen3 in a directory that --weights names"),
        ("{packages: [no_such_package]}", "the Python package no_such_package"),
    ],
)
def test_a_case_without_what_it_needs_is_not_run(small, tmp_path, capsys, needs, reason):
    assert small(SMALL.replace("rows:", f"needs: {needs}\nrows:")) == 0
    told = capsys.readouterr().out
    assert "not run" in told and reason in told
    assert not (tmp_path / "runs/reproduce/small").exists()
    assert small(SMALL) == 0, "a case that was not run is run when it can be"
    assert count(tmp_path) == 1


@pytest.mark.parametrize(
    ("measure", "told"),
    [
        ("raise SystemExit('no figure')", "no figure"),
        ("print('{}')", "no JSON object with"),
        ("""print('{"values": {"other": 1}}')""", "failed"),
        ("""print('{"values": {"count": NaN}}')""", "DISAGREES"),
    ],
)
def test_what_measures_nothing_is_told(small, capsys, measure, told):
    assert small(measure=measure) == 1
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("within: [1, 1]", "within: [2, 1]", "the least value comes first"),
        ("within: [1, 1]", "within: [null, null]", "agrees with anything"),
        ("minutes: 1", "minuts: 1", "minutes"),
        ("rows:\n", "rows:\n  - {name: count, theirs: '2', within: [2, 2]}\n", "is the name of"),
    ],
)
def test_a_malformed_case_is_refused(small, tmp_path, capsys, old, new, told):
    assert small(SMALL.replace(old, new)) == 1
    assert told in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_directory_with_other_files_is_refused(small, tmp_path, capsys):
    (tmp_path / "runs/reproduce/small").mkdir(parents=True)
    (tmp_path / "runs/reproduce/small/thesis.tex").touch()
    assert small() == 1
    assert "choose another --directory" in capsys.readouterr().err
    assert (tmp_path / "runs/reproduce/small/thesis.tex").exists()


def test_commands_start_ranks_of_their_own_inside_a_batch_job(small, monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    show = "import os; open('{out}/count', 'w').write(os.environ.get('SLURM_JOB_ID', 'x'))"
    assert small(SMALL.replace(json.dumps(COUNT), json.dumps(f'python -c "{show}"'))) == 0
    assert (tmp_path / "runs/reproduce/small/count").read_text() == "x"


def test_list_runs_nothing(small, tmp_path, capsys):
    assert small(SMALL, "--list") == 0
    assert capsys.readouterr().out == "small  Count to one (about 1 minutes)\n"
    assert not (tmp_path / "runs").exists()


SHIPPED = sorted(path.parent.name for path in ROOT.glob("reproductions/*/case.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_runs_of_shipped_cases_are_valid(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    case = Case(ROOT / "reproductions" / name)
    places = Places(Path("runs/reproduce"), Path("data"), Path("weights"))
    for text in case.file.commands:
        words = shlex.split(places.put_into(text, case))
        assert not any("{out}" in word or "{case}" in word for word in words)
        if "train" in words[:4]:
            after = words[words.index("--config") + 1 :]
            load_run(after[0], after[1:])
    assert case.file.minutes <= 30 or case.file.needs.gpus


def test_all_shipped_cases_are_found(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert [case.name for case in find_cases([])] == SHIPPED
