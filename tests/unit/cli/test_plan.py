"""`python -m verl_hpc plan` as a user meets it."""

import json
from dataclasses import replace

import pytest
import yaml

from tests.unit.cluster.requests import ROOT, RUN, SITE, write
from tests.unit.cluster.test_hardware import MEASURED
from verl_hpc.cli.main import main
from verl_hpc.cli.plan_text import KINDS, by_kind
from verl_hpc.config.load import load_config
from verl_hpc.errors import ConfigError
from verl_hpc.hardware.node import KINDS as GPUS
from verl_hpc.planner.memory.phase import Phase
from verl_hpc.planner.timing.cost import CPU_RANKS, Basis
from verl_hpc.planner.timing.efficiency_file import read_efficiency

PPO = ROOT / "configs/run/ppo_70b.yaml"
H100 = ROOT / "slurm/h100_infiniband_pyxis.yaml"
SIZES = ROOT / "configs/model"
MODEL = ["--model-config", str(SIZES / "Llama-3.1-70B-Instruct.json")]
PPO_WORDS = ["--config", str(PPO), "--cluster", str(H100)]
PPO_16 = [*PPO_WORDS, *MODEL, "--nodes", 16]


@pytest.fixture
def plan(called):
    return lambda *words: called("plan", *words)


@pytest.fixture
def figures(plan):
    """What the verb prints as JSON."""
    return lambda *words: json.loads(plan(*words, "--json")[1])


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Words for a run and a site in an empty directory, which is the working one."""
    write(tmp_path / "run.yaml", RUN)
    write(tmp_path / "site.yaml", SITE | {"gpu": "A100-40"})
    monkeypatch.chdir(tmp_path)
    return ["--config", "run.yaml", "--cluster", "site.yaml"]


def give_model(tmp_path, name="Llama-3.1-8B"):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text((SIZES / f"{name}.json").read_text())


def test_what_a_user_reads(plan):
    status, out, err = plan(*PPO_16)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("ppo_70b: rl (gae, ppo_clip) on 16 nodes x 8 H100-80: 128 ranks")
    (verdict,) = [line for line in lines if line.startswith("it fits")]
    assert verdict.endswith("GiB to spare: least in update (actor), rank 0")
    for text in ("update (critic)", "a step", "tokens/s", ", without evaluations"):
        assert text in out
    (told,) = [line.split() for line in lines if line.startswith("  a step ")]
    seconds, low, to, high = told[2:]
    assert to == "to" and float(low[1:]) < float(seconds) < float(high[:-1])
    assert "Seconds are by factors fitted to 25 published steps" in out
    assert max(map(len, lines)) <= 120
    assert not [line for line in lines if line != line.rstrip()]


def test_what_does_not_fit_has_status_1_and_a_change(plan):
    status, out, _ = plan(*PPO_WORDS, *MODEL, "--nodes", 4)
    assert status == 1
    assert "it does NOT fit: log_probs (actor), rank 0: " in out
    assert "cheapest change found: " in out
    assert "tokens/s" not in out


def test_explain_has_every_term_and_assumption(plan, figures):
    _, out, _ = plan(*PPO_16, "--explain")
    assert "actor.moments: elements of the same ranges x 8" in out
    flat = " ".join(out.split()).replace("- ", "-")
    for line in figures(*PPO_16)["assumptions"]:
        assert " ".join(line.split()).replace("- ", "-") in flat


def test_numbers_of_nodes(plan):
    words = [*PPO_WORDS, *MODEL]
    for more, told in (
        ([], "on 8 nodes x 8"),
        (["--max-nodes", 16], "on 16 nodes x 8"),
        (["--max-nodes", 16, "--objective", "gpu-hours"], "on 8 nodes x 8"),
    ):
        assert told in plan(*words, *more)[1], more


def test_overrides_of_run_and_site(plan):
    words = ("steps=3", "site.gpu=H200", "parallel.pipeline_parallel=2")
    _, out, _ = plan(*PPO_16, *words)
    assert "H200" in out and "the whole run: 3 steps" in out and "tp=8 pp=2 dp=8" in out


def test_means_that_are_given(figures):
    shorter, longer = figures(*PPO_16), figures(*PPO_16, "--prompt", 1024, "--response", 3072)
    assert "A mean" not in " ".join(longer["assumptions"])
    assert longer["operators"]["update_actor"] > 1.5 * shorter["operators"]["update_actor"]


def test_a_search_is_written_and_read_back(plan, figures, tmp_path):
    file = tmp_path / "found.yaml"
    status, out, _ = plan(*PPO_16, "--search", "--explain", "--write", file, "steps=7")
    assert status == 0
    assert "settings that change:" in out and "why the others lost" in out
    assert file.read_text().startswith("# Layout found by: python -m verl_hpc plan --search")
    assert load_config(file).steps == 7
    assert f" --model-config {MODEL[1]} " in file.read_text().splitlines()[0]
    one = figures(*PPO_16, "--search", "steps=7")
    other = figures("--config", file, "--cluster", H100, *MODEL, "--nodes", 16)
    for key in ("fits", "phases", "step_seconds", "placement", "layouts"):
        assert one[key] == other[key]
    assert main(["config", "--config", str(file), "--explain", "rollout.tensor_parallel"]) == 0


def test_the_record_has_all_that_a_search_depends_on(plan, tmp_path):
    factors, found = tmp_path / "factors.yaml", tmp_path / "found.yaml"
    factors.write_text("training: 0.4\n")
    words = ["--model-config", f"critic={MODEL[1]}", "--efficiency", factors, "--write", found]
    assert plan(*PPO_16, "--search", *words)[0] == 0
    made_by = found.read_text().splitlines()[0]
    assert f" --model-config {MODEL[1]} --model-config critic={MODEL[1]} " in made_by
    assert f" --efficiency {factors}" in made_by


def test_what_a_search_keeps_of_a_layout_can_be_given(plan):
    words = ["parallel.recompute=full", "placement={}", "roles.critic.parallel=null"]
    status, out, err = plan(*PPO_16, "--search", *words)
    assert (status, err) == (0, "")
    assert "recompute: full" in out


def test_labels_that_an_including_file_takes_away(plan, tmp_path):
    tree = yaml.safe_load(PPO.read_text()) | {"placement": {"critic": "1/4", "train": "3/4"}}
    write(tmp_path / "apart.yaml", tree)
    words = ["--config", tmp_path / "apart.yaml", "--cluster", H100, *MODEL, "--nodes", 16]
    status, _, err = plan(*words, "--search", "--write", tmp_path / "found.yaml")
    assert status == 0, err
    assert yaml.safe_load((tmp_path / "found.yaml").read_text())["placement"] == {}
    assert load_config(tmp_path / "found.yaml").placement == {}


def test_the_configuration_itself_is_not_written_over(plan, tmp_path):
    (tmp_path / "run.yaml").write_text(PPO.read_text())
    words = ["--config", tmp_path / "run.yaml", "--cluster", H100, *MODEL, "--nodes", 16]
    status, _, err = plan(*words, "--search", "--write", tmp_path / "run.yaml")
    assert status == 1 and "that is --config itself" in err
    assert (tmp_path / "run.yaml").read_text() == PPO.read_text()


BAD = [
    (["--nodes", 1, "--max-nodes", 2], "--nodes and --max-nodes are both given"),
    (["--nodes", 10**20], f"--nodes {10**20}: from 1 to 65533"),
    (["--search"], "--nodes or --max-nodes"),
    (["--nodes", 1, "--search", "placement.actor=9-8"], "--search with placement.actor = 9-8: a"),
    (["--nodes", 1, "--search", "roles.reward.placement=x"], "with roles.reward.placement = x"),
    (["--nodes", 1, "--search", "parallel.tensor_parallel=4"], "parallel.tensor_parallel = 4"),
    (["--nodes", 8193, "--search"], "--nodes 8193 x 4 ranks = 32772: a search takes up to 32768"),
    (["--max-nodes", 20000, "--search"], "give 8192 nodes or fewer, or plan without a search"),
    (["--nodes", 1, "--write", "x.yaml"], "add --search"),
    (["--nodes", 1, "--objective", "time"], "give --max-nodes"),
    (["--nodes", 1, "--out", "x"], "--out: only plan calibrate RUN... takes it; leave"),
    (["--nodes", 1, "--response", 9999], "rollout.max_response_tokens"),
    (["--nodes", 1, "--prompt", "nan"], "--prompt nan: a number from 1 up"),
    (["--nodes", 1, "--model-config", "critc=x"], "no role critc; this run has actor"),
    (["--nodes", 1, "--model-config", "x", "--model-config", "y"], "given twice"),
    (["--nodes", 1, "--model-config", "gone.json"], "no config.json at gone.json"),
    (["--nodes", 1, "site.gpu=H100"], "\n  gpu = 'H100': no such kind; choose one of A100-40"),
    (["--nodes", 1, "site.gpu=null"], "gpu is not given"),
    (["calibrte", "runs/n1"], "plan calibrte: a setting is field=value; did you mean calibrate?"),
    (["--nodes", 1, "--efficiency", "gone.yaml"], "--efficiency gone.yaml: no such file; give"),
    (["--nodes", 1, "--efficiency", "."], "--efficiency .: is a directory; give"),
    (["--nodes", 1, "sed=1"], "did you mean seed"),
    (["--nodes", 1, "parallel.tensor_parallel=3"], "does not divide"),
]


@pytest.mark.parametrize(("words", "answer"), BAD)
def test_mistakes_are_answered_in_a_few_lines(plan, small, tmp_path, words, answer):
    give_model(tmp_path)
    status, out, err = plan(*small, *words)
    assert (status, out) == (1, "")
    assert answer in err
    assert len(err.splitlines()) <= 3


def test_without_a_configuration_a_site_or_a_model(small, refuses):
    assert "--config is needed" in refuses("plan")
    assert "--cluster is needed" in refuses("plan", "--config", PPO)
    told = refuses("plan", *small, "--nodes", 1)
    assert "model.path = model: no config.json there" in told
    assert "`plan` takes --model-config FILE" in told


def test_a_published_model_that_is_not_here_has_its_shipped_sizes(plan, figures, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = [*PPO_WORDS, "--nodes", 16]
    told = figures(*words, "model.path=meta-llama/Llama-3.1-70B-Instruct")
    file = "configs/model/Llama-3.1-70B-Instruct.json"
    said = f"model.path = meta-llama/Llama-3.1-70B-Instruct has the sizes of {file}, since it is"
    assert any(line.startswith(said) for line in told["assumptions"])
    given = figures(*words, *MODEL)
    assert given["phases"] == told["phases"]
    assert not any("has the sizes of" in line for line in given["assumptions"])
    assert "no config.json there" in plan(*words, "model.path=meta-llama/Llama-3.1-71B")[2]


def test_a_role_with_a_model_of_its_own(plan, figures, small, tmp_path):
    give_model(tmp_path)
    words = [*small, "--nodes", 4, "roles.reward.path=judge"]
    assert "--model-config reward=FILE" in plan(*words)[2]
    judge = SIZES / "Llama-3.1-405B-Instruct.json"
    one = figures(*words, "--model-config", f"reward={judge}")
    (tmp_path / "judge").symlink_to("model")
    other = figures(*words)
    weights = [next(p for p in t["phases"] if p["name"] == "load")["terms"] for t in (one, other)]
    assert weights[0]["reward.weights"] > 40 * weights[1]["reward.weights"]


def test_a_search_where_nothing_fits(plan, small, tmp_path):
    give_model(tmp_path, "Llama-3.1-405B-Instruct")
    status, out, err = plan(*small, "--nodes", 1, "--search")
    assert (status, out) == (1, "")
    assert "nothing fits on 4 ranks of A100-40" in err
    status, _, err = plan(*small, "--max-nodes", 2, "--search")
    assert status == 1 and "nothing fits on 8 ranks" in err


def test_kinds_lose_no_byte():
    terms = {"a.weights": 1, "a.masters": 2, "rollout.weights": 4, "context": 8, "a.logits": 16}
    found = by_kind(Phase("load", "", 0, terms, {}, None, None))
    assert [*found.items()] == [*zip(KINDS, (1, 0, 2, 16, 4, 8), strict=True)]


def test_only_cores_exceed_their_peak(tmp_path):
    (tmp_path / "a.yaml").write_text("training: 2\nlayers: 2\n")
    cores = read_efficiency(tmp_path / "a.yaml", GPUS["cpu"])
    basis = Basis(f"of {tmp_path / 'a.yaml'}")
    assert cores == replace(CPU_RANKS, basis=basis, training=2.0, layers=2.0)
    with pytest.raises(ConfigError, match="training = 2: a fraction of the peak of H200"):
        read_efficiency(tmp_path / "a.yaml", GPUS["H200"])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("trainng: 1", "did you mean training"),
        ("zzz: 1", "no such factor; choose one of: training, inference"),
        ("training: 50", "training = 50: a fraction of the peak of H100-80 is needed, above 0 and"),
        ("layers: -1", "from 0 up"),
        ("spread: wide", "spread = 'wide': a number from 0 up is needed"),
    ],
)
def test_factors_that_are_none(plan, tmp_path, text, answer):
    (tmp_path / "a.yaml").write_text(text)
    status, _, err = plan(*PPO_16, "--efficiency", tmp_path / "a.yaml")
    assert status == 1 and answer in err


def test_measured_figures_are_planned_with_and_said(plan, figures, tmp_path):
    path = tmp_path / "measured.json"
    tree = MEASURED | {"nodes": 16, "ranks_per_node": 8, "device_memory_gib": 77.0}
    path.write_text(json.dumps(tree))
    told = figures(*PPO_16, "--measured", path)
    assert {phase["limit_bytes"] for phase in told["phases"]} == {77 * 2**30}
    assert any("Measured on 16 nodes" in line for line in told["assumptions"])
    assert any("Other figures of H100-80: NVIDIA H100" in line for line in told["assumptions"])
    assert figures(*PPO_16, f"site.measured={path}")["phases"] == told["phases"]
    assert "\nMeasured on 16 nodes of site here" in plan(*PPO_16, "--measured", path)[1]
    path.write_text(json.dumps(tree | {"device": "cpu"}))
    status, _, err = plan(*PPO_16, "--measured", path)
    assert status == 1 and "device = cpu" in err
