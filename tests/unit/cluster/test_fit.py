"""A submission is held against the memory of its nodes before it waits for them."""

import pytest
import yaml

from tests.unit.cluster.requests import CPU_SITE, ROOT, RUN, SITE, write
from verl_hpc.cli.main import main
from verl_hpc.cluster.fit import with_best_layout
from verl_hpc.cluster.job import plan_job
from verl_hpc.cluster.profile import load_profile
from verl_hpc.cluster.request import Request
from verl_hpc.cluster.run_directory import write_job
from verl_hpc.config.load import load_config

SIZES = ROOT / "configs/model"


@pytest.fixture
def submit(tmp_path, monkeypatch, capsys):
    """A dry run of a small configuration with a real model's sizes: (status, stdout, stderr)."""
    write(tmp_path / "run.yaml", RUN | {"offload": {"optimizer": True, "gradients": True}})
    write(tmp_path / "site.yaml", SITE | {"gpu": "A100-40"})
    monkeypatch.chdir(tmp_path)

    def run(*words, model="Qwen3-8B", nodes=2, way="--dry-run"):
        if model is not None:
            (tmp_path / "model").mkdir(exist_ok=True)
            (tmp_path / "model/config.json").write_text((SIZES / f"{model}.json").read_text())
        files = ["--config", "run.yaml", "--cluster", "site.yaml", "--nodes", str(nodes)]
        status = main(["submit", *files, "--time", "10", *([way] if way else []), *words])
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


FITTING = ("parallel.tensor_parallel=8", "rollout.tensor_parallel=4", "site.gpu=H100-80")


def test_a_run_that_fits_is_told_how_much_room_it_has(submit):
    status, out, err = submit(*FITTING)
    assert (status, err) == (0, "")
    assert "== memory\nmemory: " in out and "GiB to spare in every phase" in out


@pytest.mark.parametrize("way", ["--dry-run", "--script-only", None])
def test_a_run_that_does_not_is_refused_with_the_reason_and_a_change(submit, tmp_path, way):
    before = sorted(tmp_path.iterdir())
    status, out, err = submit("parallel.tensor_parallel=1", way=way)
    assert (status, out) == (1, "")
    assert "it does not fit on 2 x 4 A100-40: build (actor), rank 0: " in err
    assert "cheapest change found: " in err
    assert "--force submits it all the same" in err
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "model"] == before


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


def test_a_site_that_does_not_say_which_gpu(submit):
    status, out, _ = submit("site.gpu=null", "parallel.tensor_parallel=1")
    assert status == 0
    assert "memory was not checked: site here does not say which GPUs its nodes have (gpu)" in out


def test_a_model_that_is_not_seen_from_here(submit):
    status, out, _ = submit(model=None)
    assert status == 0
    assert "memory was not checked: no config.json of the actor's model is seen from here" in out


def test_a_role_whose_model_is_not_seen(submit):
    _, out, _ = submit(*FITTING, "roles.reward.path=elsewhere")
    assert "memory was not checked: no config.json of the reward's model" in out


def test_cores_of_unknown_memory(submit, tmp_path):
    write(tmp_path / "site.yaml", CPU_SITE)
    status, out, _ = submit()
    assert status == 0 and "how much memory its nodes have" in out


def test_cores_of_a_known_memory(submit, tmp_path):
    write(tmp_path / "site.yaml", CPU_SITE | {"host_memory_gib": 16})
    status, _, err = submit()
    assert status == 1 and "it does not fit on 2 x 2 cpu" in err


def test_a_script_says_on_the_side_that_nothing_was_checked(submit):
    status, out, err = submit(model=None, way="--script-only")
    assert status == 0
    assert out.startswith("#!/bin/bash") and "memory" not in out
    assert err.startswith("memory was not checked")


def test_a_sweep_is_checked_run_by_run(submit):
    words = ["--sweep", "parallel.tensor_parallel=1,8", "rollout.tensor_parallel=4"]
    status, _, err = submit(*words)
    assert status == 1 and "it does not fit" in err
    status, out, _ = submit(*words, "--force")
    assert status == 0 and "and is forced" in out


def test_auto_shows_what_it_chose(submit):
    status, out, err = submit("--auto")
    assert (status, err) == (0, "")
    chosen = [line for line in out.splitlines() if line.endswith("[plan]")]
    assert any(line.startswith("parallel.tensor_parallel") for line in chosen)
    assert "GiB to spare in every phase" in out
    assert "--auto" in out.split("== srun")[0]


@pytest.mark.parametrize(
    ("words", "way", "answer"),
    [
        (["--sweep", "seed=1,2"], "--dry-run", "--auto with --sweep"),
        ([], "--script-only", "--auto with --script-only"),
        (["placement.critic=9"], "--dry-run", "--auto with placement.critic = 9: a search chooses"),
        (["site.gpu=null"], "--dry-run", "--auto: a search cannot start: site here does not say"),
    ],
)
def test_what_auto_does_not_go_with(submit, words, way, answer):
    status, out, err = submit("--auto", *words, way=way)
    assert (status, out) == (1, "")
    assert answer in err


def test_auto_without_a_model(submit):
    status, _, err = submit("--auto", model=None)
    assert status == 1
    assert "no config.json of the actor's model is seen from here: model.path = model; give" in err
    assert "`plan --search --write FILE`" in err


def test_auto_where_nothing_fits(submit):
    status, _, err = submit("--auto", model="Llama-3.1-405B-Instruct")
    assert status == 1 and "nothing fits on 8 ranks of A100-40" in err


def test_the_run_directory_records_where_the_layout_came_from(submit, tmp_path, capsys):
    submit()
    base = Request(
        load_config("run.yaml"), "run.yaml", (), load_profile("site.yaml"), 2, "10", tmp_path
    )
    request = with_best_layout(base, plan_job(base), "the command")
    assert request.record.by == "the command"
    assert request.config != base.config
    job = write_job(request, "", "")
    text = (job / "config.yaml").read_text()
    assert text.startswith("# Layout found by: the command\n")
    assert load_config(job / "config.yaml").model_dump() == request.config.model_dump()
    assert yaml.safe_load(text)["name"] == "run"
    words = ["--config", str(job / "config.yaml"), "--explain", "parallel.tensor_parallel"]
    assert main(["config", *words]) == 0
    shown = capsys.readouterr().out
    assert "[plan]\nfound by: the command\nwhy: " in shown
