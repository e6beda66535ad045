"""`report compare`: run directories in, a table and a page out."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.unit.cli.status_runs import HEAVY, make_run, work
from verl_hpc.cli.main import main
from verl_hpc.metrics.names import VALIDATION


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for i in range(6):
        run = make_run(tmp_path / "runs" / "sweep", f"{i}", seed=i % 3, steps=20 + i // 3)
        work(run, 4, **{VALIDATION: lambda step, i=i: (step + i) / 10})
        (run / "facts.json").write_text(json.dumps({"ranks": "4 on 2 nodes"}))
    return tmp_path / "runs" / "sweep"


def test_a_sweep_is_a_table_and_a_page(sweep, tmp_path, capsys):
    assert main(["report", "compare", "runs/sweep", "--out", "page.html"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        *("run", "evaluation", "score", "steps", "training", "time", "rank-hours", "tokens")
    ]
    assert [line.split()[0] for line in lines[1:7]] == ["5", "4", "3", "2", "1", "0"]
    assert lines[1].split() == ["5", "0.9", "4", "40.0s", "0.04444", "8,000"]
    assert lines[7:] == ["page.html"]
    page = (tmp_path / "page.html").read_text()
    assert "steps=21 (3 seeds)" in page


def test_a_run_without_facts_has_no_rank_hours(sweep, capsys):
    (sweep / "0" / "facts.json").unlink()
    assert main(["report", "compare", "sweep/0", "sweep/1"]) == 0
    assert capsys.readouterr().out.splitlines()[2].split() == [
        "0",
        "0.4",
        "4",
        "40.0s",
        "-",
        "8,000",
    ]


@pytest.mark.parametrize(
    "words, problem",
    [
        (["runs/sweep/0"], "at least two runs are needed, and there is 1"),
        (["runs/sweep/0", "runs/sweep/0"], "there is 1"),
        (["runs/sweep/0", "sweep/9"], "sweep/9: no such run; did you mean"),
        (["runs/sweep", "--skip", "2"], "no option but --out"),
        ([], "there are none"),
    ],
)
def test_words_that_name_no_comparison_are_refused(sweep, capsys, words, problem):
    assert main(["report", "compare", *words]) != 0
    assert problem in capsys.readouterr().err


def test_comparing_imports_nothing_heavy(sweep):
    code = (
        "import sys; from verl_hpc.cli.main import main; "
        "main(['report', 'compare', 'runs/sweep']); "
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
