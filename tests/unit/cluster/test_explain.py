"""The dry run."""

import re

import pytest

from tests.unit.cluster.goldens import golden
from tests.unit.cluster.requests import CONTAINERS, profile, request
from verl_hpc.cluster.explain import explain
from verl_hpc.cluster.job import plan_job

ROW = re.compile(r".* \[(run config|site|command line|default)(: .+)?\]")


def sections(text):
    parts = re.split(r"^== (.*)\n", text, flags=re.M)[1:]
    return dict(zip(parts[::2], (part.strip("\n") for part in parts[1::2]), strict=True))


def shown(directory, *overrides, **fields):
    asked = request(directory, *overrides, site=profile(directory, **fields))
    return sections(explain(plan_job(asked), ()))


def test_every_value_has_its_origin():
    for file in ("pyxis.txt", "bwrap_lab.txt"):
        for title, text in sections(golden(file)).items():
            if title not in ("script", "srun", "after the job"):
                for line in text.splitlines():
                    assert ROW.fullmatch(line), line


RUN = "run configuration, where it is not the default"
CRITIC = ("algorithm.advantage.name=gae", "roles.critic.dtype=bfloat16")
ROWS = [
    (["seed=3"], {}, RUN, r"seed +3 +\[command line\]"),
    (["rollout={num_samples: 6}"], {}, RUN, r"rollout.num_samples +6 +\[command line\]"),
    ([], {}, RUN, r"data.train.task +chain_sum +\[run config\]"),
    (CRITIC, {}, RUN, r"roles.critic.dtype +bfloat16 +\[command line\]"),
    ([*CRITIC, "roles.critic.optimizer={lr: 0.01}"], {}, RUN,
     r"roles.critic.optimizer.lr +0.01 +\[command line\]"),
    ([], {"container": CONTAINERS["bwrap"]}, "mounts", r"/data +-> /in:ro +\[site\]"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "fields", "section", "row"), ROWS)
def test_settings_and_who_gave_them(tmp_path, overrides, fields, section, row):
    assert re.search(rf"^{row}$", shown(tmp_path, *overrides, **fields)[section], re.M)


def test_what_is_the_default_is_not_shown(tmp_path):
    assert "optimizer.lr" not in shown(tmp_path)[RUN]
    assert "none" in shown(tmp_path)["mounts"]


def test_passed_variables_show_no_value(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    text = shown(tmp_path, pass_environment=["HF_TOKEN"])["environment of the ranks"]
    assert re.search(r"^HF_TOKEN +\(the submitter's\) +\[site\]$", text, re.M)
    assert "hunter2" not in text


def test_what_happens_afterwards(tmp_path):
    for by, most, words in (("requeue", 5, "5 times"), ("chain", 2, "3 jobs")):
        assert words in shown(tmp_path, restarts={"by": by, "most": most})["after the job"]
