"""`report scaling` on the files of real writers."""

import json
import os
from pathlib import Path

import pytest

from tests.unit.cli.status_runs import heavy_imports, make_run, work
from tests.unit.waiting import within
from verl_hpc.cli.main import main
from verl_hpc.runs.jobs import record_job


def sized(directory, name, ranks, seconds, steps=10, batch=32, told="facts", **fields):
    """A run of that many ranks whose steps took that long."""
    run = make_run(directory / "runs", name, batch={"size": batch}, **fields)
    work(run, steps, **{"timing_s/step": seconds})
    if told == "facts":
        (run / "facts.json").write_text(json.dumps({"ranks": f"{ranks} on {ranks // 2} nodes"}))
    elif told == "jobs":
        (run / "job").mkdir()
        record_job(run / "job", {"job_id": "1", "nodes": ranks // 2, "ranks": ranks})
    return run


@pytest.fixture
def report(prints):
    return lambda *words: prints("report", "scaling", *words)


def test_the_page_of_two_sizes(here, report, refuses):
    sized(here, "small", 2, lambda step: 10.0)
    sized(here, "large", 4, lambda step: 6.25, steps=20, told="jobs")
    shown = report("small", "runs/large")
    assert "| large | 2 | 4 | 6.25 | 6.25 to 6.25 | 5 | 1.60 | 2.00 | 80.0% | yes | 320 |" in shown
    assert "steps 4 to 10 of every run (7 steps)" in shown
    assert "Centres ask for at least 3 sizes; these runs have 2." in shown
    assert "runs/small: no job/job.sbatch to attach" in shown
    assert report("small", "large", "--out", "page.md") == "page.md\n"
    assert (here / "page.md").read_text() == shown
    assert shown.startswith("# Scaling\n")
    told = refuses("report", "scaling", "small", "large", "--out", "gone/page.md")
    assert "--out gone/page.md: No such file" in told


def test_first_steps_evaluation_and_saves_are_not_counted(here, report):
    def seconds(step):
        return 500.0 if step <= 3 else 110.0 if step == 5 else 10.0

    extra = {
        "timing_s/testing": lambda step: 60.0 if step == 5 else None,
        "timing_s/save_checkpoint": lambda step: 40.0 if step == 5 else None,
    }
    for name, ranks in (("small", 2), ("large", 4)):
        work(sized(here, name, ranks, 0.0), 10, **{"timing_s/step": seconds}, **extra)
    shown = report("small", "large")
    assert "| small | 1 | 2 | 10 | 10 to 10 |" in shown
    assert "testing" not in shown
    assert "10 to 500" in report("small", "large", "--skip", "0")


def test_critic_warmup_is_not_counted(here, report):
    for name, ranks in (("small", 2), ("large", 4)):
        gae = {"advantage": {"name": "gae"}}
        sized(here, name, ranks, 9.0, algorithm=gae, critic={"warmup_steps": 5})
    assert "steps 6 to 10" in report("small", "large")


@pytest.mark.parametrize("told", ["facts", "jobs"])
def test_gpus_are_told_by_their_memory(here, report, told):
    for name, ranks in (("small", 2), ("large", 4)):
        run = sized(here, name, ranks, 9.0, told=told)
        work(run, 10, **{"perf/max_memory_allocated_gb": 70.0})
    assert "GPU-hours" in report("small", "large")


@pytest.fixture
def refused(called):
    """Ask for a page that there cannot be; gives its standard error."""

    def refused(*words):
        status, out, err = called("report", "scaling", *words)
        assert (status, out) == (1, "")
        assert "Traceback" not in err
        return err

    return refused


def test_what_is_refused(here, refused):
    sized(here, "a", 2, 10.0)
    sized(here, "b", 4, 6.0)
    sized(here, "other_model", 4, 6.0, model={"path": "other"})
    sized(here, "other_batch", 4, 6.0, batch=48)
    sized(here, "short", 4, 6.0, steps=5)
    sized(here, "unknown", 4, 6.0, told="")
    for words, told in (
        ("a", "at least two sizes"),
        ("", "at least two sizes"),
        ("a a", "runs/a is given twice"),
        ("a other_model", "model.path = model and other"),
        ("a b other_batch", "batch.size = 48 on 4 ranks"),
        ("a short", "runs/short: 5 steps done; at least 3 after the first 3"),
        ("a unknown", "it has neither: let it end first"),
        ("a b --skip -1", "--skip -1"),
    ):
        assert told in refused(*words.split())
    assert "did you mean b?" not in refused("a", "zzz")
    empty = make_run(here / "runs", "empty", batch={"size": 32})
    assert "metrics.jsonl: no such file" in refused("a", "empty")
    (empty / "metrics.jsonl").write_text("")
    assert "runs/empty: 0 steps done" in refused("a", "empty")


@pytest.mark.parametrize("kind", ["pipe", "directory", "link", "{", "[]", "[" * 100_000])
@pytest.mark.parametrize("words", [["runs/b"], ["scaling", "runs/a", "runs/b"]])
def test_facts_that_cannot_be_read(here, capsys, kind, words):
    sized(here, "a", 2, 10.0)
    facts = sized(here, "b", 4, 6.0) / "facts.json"
    facts.unlink()
    ways = {"pipe": os.mkfifo, "directory": Path.mkdir}
    ways["link"] = lambda path: path.symlink_to("/nowhere/x")
    ways.get(kind, lambda path: path.write_text(kind))(facts)
    assert within(20, main, ["report", *words]) == 1
    said = capsys.readouterr().err
    assert said.startswith("DataError: ") and "runs/b/facts.json: cannot be read as " in said


def test_the_report_of_one_run_takes_no_options_of_the_other(here, refuses):
    assert "did you mean `report scaling` or `report compare`?" in refuses("report", "a", "b")
    refuses("report", "a", "--out", "x")


def test_a_login_node_imports_nothing_heavy(here):
    sized(here, "a", 2, 10.0)
    sized(here, "b", 4, 6.0)
    assert heavy_imports(["report", "scaling", "a", "b"], here) == ""


def test_a_report_into_a_directory_that_cannot_be_written(tmp_path, refuses):
    run = make_run(tmp_path, "run")
    work(run, 2)
    (run / "report.html").mkdir()
    said = refuses("report", run)
    assert said.startswith(f"ConfigError: cannot write a report into {run}: ")
    assert "copy config.yaml, facts.json and metrics.jsonl" in said
