"""A series of runs: their settings, their jobs, and what is said of them."""

import json
import subprocess

import pytest
import yaml

from benchmarks import scaling, scaling_series
from benchmarks.scaling_series import cpu_rows, cpu_table, on_cluster, on_ranks, series
from tests.unit.config.trees import tree
from verl_hpc.config.load import dump_config
from verl_hpc.errors import ClusterError
from verl_hpc.planner.timing.calibrate import Measured


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.yaml"
    settings = tree(name="run", steps=4, directory=str(tmp_path / "runs"), batch__size=8)
    path.write_text(yaml.safe_dump(settings))
    return path


def finish(one, steps=4):
    one.directory.mkdir(parents=True, exist_ok=True)
    rows = [{"step": step, "timing_s/step": 1.0} for step in range(1, steps + 1)]
    (one.directory / "config.yaml").write_text(dump_config(one.config))
    (one.directory / "metrics.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows))


@pytest.mark.parametrize(("weak", "batches"), [(False, [8, 8, 8]), (True, [8, 16, 32])])
def test_runs_of_a_series_differ_in_name_and_batch_alone(config, weak, batches):
    runs = series(config, ["site.python=python", "optimizer.lr=0.5"], (2, 4, 8), weak, "nodes")
    assert [one.size for one in runs] == [2, 4, 8]
    assert [one.config.batch.size for one in runs] == batches
    assert len({one.directory for one in runs}) == 3
    for one in runs:
        assert {"site.python=python", "optimizer.lr=0.5", "checkpoint.every=0"} < set(one.words)
        assert one.config.optimizer.lr == 0.5 and one.config.checkpoint.every == 0
        assert one.config.evaluation.every == 0 and not one.config.evaluation.at_start
    assert runs[0].config.name == f"run_{'weak' if weak else 'strong'}_nodes2"


def test_a_run_is_done_when_its_last_step_is_in(config):
    """A run of other settings is not taken for it."""
    one, _ = series(config, [], (1, 2), False, "ranks")
    assert not one.is_done
    finish(one, steps=3)
    assert not one.is_done
    finish(one)
    assert one.is_done
    other, _ = series(config, ["optimizer.lr=0.5"], (1, 2), False, "ranks")
    with pytest.raises(SystemExit, match="a run of other settings is there"):
        other.is_done  # noqa: B018


class Cluster:
    """Submissions and a queue, on paper."""

    def __init__(self, monkeypatch, runs, finishes=True):
        self.runs = {one.config.name: one for one in runs}
        self.submitted, self.most, self.finishes = [], 0, finishes
        self.queue = {}
        monkeypatch.setattr(subprocess, "run", self.submit)
        monkeypatch.setattr(scaling_series, "my_jobs", self.my_jobs)
        self.answers = 0

    def submit(self, command, **options):
        (name,) = [word.removeprefix("name=") for word in command if word.startswith("name=")]
        one = self.runs[name]
        nodes = int(command[command.index("--nodes") + 1])
        assert nodes == one.size
        self.submitted.append(nodes)
        (one.directory / "job").mkdir(parents=True)
        facts = {"job_id": str(nodes), "submitted": "", "nodes": nodes, "ranks": nodes, "time": "1"}
        (one.directory / "job" / "submitted.jsonl").write_text(json.dumps(facts) + "\n")
        self.queue[str(nodes)] = one
        self.most = max(self.most, len(self.queue))
        return subprocess.CompletedProcess(command, 0, f"job {nodes}: {name}\n", "")

    def my_jobs(self):
        self.answers += 1
        if self.answers == 1:
            raise ClusterError("the controller does not answer")
        if self.answers > 2:
            for one in self.queue.values():
                finish(one, 4 if self.finishes else 2)
            self.queue = {}
        return dict.fromkeys(self.queue, "RUNNING")


@pytest.mark.parametrize(("one_by_one", "most"), [(False, 3), (True, 1)])
def test_jobs_are_waited_for(config, monkeypatch, one_by_one, most):
    runs = series(config, [], (1, 2, 4), False, "nodes")
    cluster = Cluster(monkeypatch, runs)
    on_cluster(runs, config, "site.yaml", "10", one_by_one, 0.0)
    assert cluster.submitted == [1, 2, 4] and cluster.most == most
    # What is done is not submitted again.
    on_cluster(runs, config, "site.yaml", "10", one_by_one, 0.0)
    assert cluster.submitted == [1, 2, 4]


def test_a_job_that_ends_early_and_a_refused_submission_end_the_series(config, monkeypatch):
    runs = series(config, [], (1, 2), False, "nodes")
    cluster = Cluster(monkeypatch, runs, finishes=False)
    with pytest.raises(SystemExit, match=r"nodes1: ended before step 4; .* logs"):
        on_cluster(runs, config, "site.yaml", "10", True, 0.0)
    assert cluster.submitted == [1]
    refused = subprocess.CompletedProcess([], 1, "", "ConfigError: it does not fit\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: refused)
    with pytest.raises(SystemExit, match="ConfigError: it does not fit"):
        on_cluster(runs, config, "site.yaml", "10", True, 0.0)


def test_ranks_leave_what_they_ran_on(config, monkeypatch):
    runs = series(config, [], (1, 2), False, "ranks")
    commands = []

    def ran(command, log, timeout_s):
        commands.append(command)
        finish(next(one for one in runs if f"name={one.config.name}" in command))

    monkeypatch.setattr(scaling_series, "run", ran)
    on_ranks(runs, config)
    assert [command[command.index("-n") + 1] for command in commands] == ["1", "2"]
    site = yaml.safe_load((runs[1].directory / "job/site.yaml").read_text())
    assert site["tasks_per_node"] == 2 and site["gpus_per_node"] == 0
    on_ranks(runs, config)
    assert len(commands) == 2


def test_cpu_seconds_of_other_sizes_are_predicted():
    def run(name, products, layers):
        cost = {"training": products, "layers": layers}
        # Near where factors of CPU ranks start: two equations do not draw them far.
        return Measured(name, {"update": 2.0 * products + 3e-3 * layers}, {"update": cost}, False)

    runs = [run("a", 1.0, 100.0), run("b", 1.0, 400.0), run("c", 0.25, 400.0)]
    rows = cpu_rows(runs, [True, True, False])
    assert [row[0] for row in rows] == ["a", "b", "c"]
    assert [row[3] for row in rows] == [True, True, False]
    for _, measured, predicted, _ in rows:
        assert predicted == pytest.approx(measured, rel=0.15)
    _, _, *lines = cpu_table([("a", 2.0, 2.5, True), ("b", 2.0, 1.0, False)]).splitlines()
    assert lines == ["| a | 2 | 2.5 | +25% | fitted to it |", "| b | 2 | 1 | -50% | predicted |"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--config", "x.yaml"], "belong to --cluster SITE, or to --ranks"),
        (["steps=3"], "belong to --cluster SITE, or to --ranks"),
        (["--cluster", "s", "--ranks", "1,2"], "not both"),
        (["--cluster", "s"], "--config, --nodes, --time: needed"),
        (["--ranks", "1,2"], "--config: needed"),
        (["--ranks", "2", "--config", "x.yaml"], "two sizes or more"),
        (["--ranks", "1,2", "--config", "x.yaml", "--fit", "4"], "and --fit of them"),
    ],
)
def test_options_that_do_not_go_together(words, said, capsys):
    with pytest.raises(SystemExit):
        scaling.main(words)
    assert said in capsys.readouterr().err
