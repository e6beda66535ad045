"""A submission is held against the memory of its nodes before it waits for them."""

import pytest
import yaml

from tests.unit.cluster.requests import CPU_SITE, ROOT, RUN, SITE, write
from verl_hpc.cluster.fit import with_best_layout
from verl_hpc.cluster.job import plan_job
from verl_hpc.cluster.profile import load_profile
from verl_hpc.cluster.request import Request
from verl_hpc.cluster.run_directory import write_job
from verl_hpc.config.load import load_config

SIZES = ROOT / "configs/model"


@pytest.fixture
def submit(here, called):
    """A dry run of a small configuration with a real model's sizes: (status, stdout, stderr)."""
    write(here / "run.yaml", RUN | {"offload": {"optimizer": True, "gradients": True}})

    def run(*words, model="Qwen3-8B", nodes=2, way="--dry-run", site=None):
        write(here / "site.yaml", site or SITE | {"gpu": "A100-40"})
        if model is not None:
            (here / "model").mkdir(exist_ok=True)
            (here / "model/config.json").write_text((SIZES / f"{model}.json").read_text())
        files = ["--config", "run.yaml", "--cluster", "site.yaml", "--nodes", nodes]
        return called("submit", *files, "--time", "10", *([way] if way else []), *words)

    return run


FITTING = ("parallel.tensor_parallel=8", "rollout.tensor_parallel=4", "site.gpu=H100-80")


UNSPLIT = "parallel.tensor_parallel=1"
SWEEP = ("--sweep", "parallel.tensor_parallel=1,8", "rollout.tensor_parallel=4")
CORES = {"site": CPU_SITE | {"host_memory_gib": 16}}
LARGE = {"model": "Llama-3.1-405B-Instruct"}
NOT_CHECKED = "memory was not checked: "
NONE_SEEN = "model.path = model: no config.json there"
OUTCOMES = {
    "room": (FITTING, {}, 0, ["== memory\nmemory: ", "GiB to spare in every phase"]),
    "which GPUs": (["site.gpu=null", UNSPLIT], {}, 0,
                   [NOT_CHECKED + "site here does not say which GPUs its nodes have (gpu)"]),
    "no model": ([], {"model": None}, 0, [NOT_CHECKED + NONE_SEEN]),
    "no model of a role": ([*FITTING, "roles.reward.path=elsewhere"], {}, 0,
                           [NOT_CHECKED + "roles.reward.path = elsewhere: no config.json there"]),
    "cores": ([], {"site": CPU_SITE}, 0, ["how much memory its nodes have"]),
    "known cores": ([], CORES, 1, ["it does not fit on 2 x 2 cpu"]),
    "a sweep, run by run": (SWEEP, {}, 1, ["it does not fit"]),
    "a sweep by force": ([*SWEEP, "--force"], {}, 0, ["and is forced"]),
    "auto, no model": (["--auto"], {"model": None}, 1,
                       [NONE_SEEN, "`plan --search --write FILE`"]),
    "auto, too large": (["--auto"], LARGE, 1, ["nothing fits on 8 ranks of A100-40"]),
    "auto, a sweep": (["--auto", "--sweep", "seed=1,2"], {}, 1, ["--auto with --sweep"]),
    "auto, a script": (["--auto"], {"way": "--script-only"}, 1, ["--auto with --script-only"]),
    "auto, a placement": (["--auto", "placement.critic=9"], {}, 1,
                          ["--auto with placement.critic = 9: a search chooses"]),
    "auto, which GPUs": (["--auto", "site.gpu=null"], {}, 1,
                         ["--auto: a search cannot start: site here does not say"]),
}  # fmt: skip
"""Words, fields of `submit`, the status, and what is said, on stderr where that is not 0."""


@pytest.mark.parametrize("case", OUTCOMES)
def test_what_a_dry_run_says_of_memory(submit, case):
    words, fields, status, said = OUTCOMES[case]
    answer, *streams = submit(*words, **fields)
    assert (answer, streams[not status]) == (status, ""), streams
    assert [word for word in said if word not in streams[status]] == []


@pytest.mark.parametrize("way", ["--dry-run", "--script-only", None])
def test_a_run_that_does_not_is_refused_with_the_reason_and_a_change(submit, tmp_path, way):
    before = sorted(tmp_path.iterdir())
    status, out, err = submit("parallel.tensor_parallel=1", way=way)
    assert (status, out) == (1, "")
    assert "it does not fit on 2 x 4 A100-40: build (actor), rank 0: " in err
    assert "cheapest change found: " in err
    assert "--force submits it all the same" in err
    files = sorted(path for path in tmp_path.iterdir() if path.name not in ("model", "site.yaml"))
    assert files == before


def test_the_change_makes_it_fit(submit):
    _, _, err = submit("parallel.tensor_parallel=1")
    (line,) = [line for line in err.splitlines() if line.startswith("cheapest change found: ")]
    change = line.removeprefix("cheapest change found: ")
    words = [part.replace(": ", "=") for part in change.split("; ") if not part.endswith(" ranks")]
    ranks = [int(p.removesuffix(" ranks")) for p in change.split("; ") if p.endswith(" ranks")]
    given = ["parallel.tensor_parallel=1", *words]
    status, out, err = submit(*given, nodes=(ranks[0] // 4 if ranks else 2))
    assert status == 0, err
    assert "GiB to spare" in out


def test_force(submit):
    status, out, err = submit("parallel.tensor_parallel=1", "--force")
    assert (status, err) == (0, "")
    assert "memory: does NOT fit, and is forced: build (actor), rank 0" in out
    assert "--force" in out.split("== srun")[0], "the script's header says how it was made"


def test_a_script_says_on_the_side_that_nothing_was_checked(submit):
    status, out, err = submit(model=None, way="--script-only")
    assert status == 0
    assert out.startswith("#!/bin/bash") and "memory" not in out
    assert err.startswith("memory was not checked")


def test_a_published_model_that_is_not_seen_has_its_shipped_sizes(submit, tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/model").symlink_to(SIZES)
    status, out, _ = submit("model.path=Qwen/Qwen3-8B", *FITTING, model=None)
    assert status == 0
    assert "to spare in every phase, by the sizes of configs/model/Qwen3-8B.json" in out
    _, _, err = submit("model.path=Qwen/Qwen3-8B", "site.gpu=A100-40", model=None)
    assert "A100-40, by the sizes of configs/model/Qwen3-8B.json: " in err


def test_auto_shows_what_it_chose(submit):
    status, out, err = submit("--auto")
    assert (status, err) == (0, "")
    chosen = [line for line in out.splitlines() if line.endswith("[plan]")]
    assert any(line.startswith("parallel.tensor_parallel") for line in chosen)
    assert "GiB to spare in every phase" in out
    assert "--auto" in out.split("== srun")[0]


def test_the_run_directory_records_where_the_layout_came_from(submit, tmp_path, prints):
    submit()
    base = Request(
        load_config("run.yaml"), "run.yaml", (), load_profile("site.yaml"), 2, "10", tmp_path
    )
    request = with_best_layout(plan_job(base), "the command")
    assert request.record.by == "the command"
    assert request.config != base.config
    job = write_job(request, "", "")
    text = (job / "config.yaml").read_text()
    assert text.startswith("# Layout found by: the command\n")
    assert load_config(job / "config.yaml").model_dump() == request.config.model_dump()
    assert yaml.safe_load(text)["name"] == "run"
    words = ["--config", job / "config.yaml", "--explain", "parallel.tensor_parallel"]
    assert "[plan]\nfound by: the command\nwhy: " in prints("config", *words)
