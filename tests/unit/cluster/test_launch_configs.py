"""The runs that launch/ starts: valid, and laid out on the ranks that their scripts ask for."""

import json
import os
import re
import shlex
import shutil
import subprocess
from itertools import pairwise

import pytest

from tests.unit.cluster.goldens import LAUNCH, launch_command
from tests.unit.cluster.requests import ROOT
from verl_hpc.cluster.hardware import hardware_of
from verl_hpc.cluster.profile import load_profile
from verl_hpc.config.load import load_config
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.planner.memory.ledger import ledger
from verl_hpc.planner.timing.launches import MOST_SHARE
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.step import predict_step

# The model's sizes in configs/model; tp, pp, replicas, cp, ep and engines, as the first lines of
# each configuration say.
RUNS = {
    "ppo_70b": ("Llama-3.1-70B-Instruct", (8, 4, 4, 1, 1, 16)),
    "grpo_8b": ("Qwen3-8B", (2, 1, 8, 1, 1, 16)),
    "grpo_32b_fp8": ("Qwen2.5-32B-Instruct", (4, 2, 4, 1, 1, 8)),
    "sft_8b": ("Llama-3.1-8B", (2, 1, 4, 1, 1, 8)),
    "grpo_32k_context": ("Qwen3-8B", (2, 1, 2, 4, 1, 16)),
    "grpo_8b_lora_1node": ("Qwen3-8B", (2, 1, 4, 1, 1, 8)),
    "grpo_qwen3_30b_a3b": ("Qwen3-30B-A3B", (2, 1, 8, 1, 8, 4)),
    "grpo_qwen3_235b_a22b": ("Qwen3-235B-A22B", (4, 8, 8, 1, 8, 16)),
    "dpo_8b": ("Llama-3.1-8B", (2, 1, 4, 1, 1, 8)),
    "reward_model_8b": ("Llama-3.1-8B", (2, 1, 4, 1, 1, 8)),
    "distillation_8b": ("Qwen3-8B", (2, 1, 4, 1, 1, 8)),
    "grpo_code_8b": ("Qwen3-8B", (2, 1, 8, 1, 1, 16)),
    "grpo_deepseek_v3": ("DeepSeek-V3", (8, 8, 8, 1, 32, 16)),
    "grpo_glm_4_5_air": ("GLM-4.5-Air", (2, 4, 8, 1, 8, 8)),
    "grpo_vl_7b": ("Qwen2.5-VL-7B-Instruct", (1, 1, 8, 1, 1, 8)),
    "grpo_gpt_oss_20b": ("gpt-oss-20b", (1, 1, 16, 1, 1, 8)),
}

# Models of roles that have another than the actor's.
OTHERS = {"distillation_8b": {"teacher": "Qwen3-32B"}}

# Whole dense models, and the tokens of a prompt and its response on average; assumed.
DENSE = {"ppo_70b": 970, "grpo_8b": 600, "grpo_32b_fp8": 1200, "sft_8b": 1000}


def arguments(name):
    words = launch_command((LAUNCH / f"{name}.sbatch").read_text())
    return {option[2:]: value for option, value in pairwise(words) if option.startswith("--")}


def sizes_of(name):
    return ROOT / f"configs/model/{RUNS[name][0]}.json"


MODELS = {name: json.loads(sizes_of(name).read_text()) for name in RUNS}


def site_of(name):
    return load_profile(ROOT / arguments(name)["cluster"]).site


def num_ranks(name):
    return int(arguments(name)["nodes"]) * site_of(name).ranks_per_node


def laid_out(name):
    """The configuration, the model of each role, and the layouts on the nodes of the script."""
    config, others = load_config(ROOT / f"configs/run/{name}.yaml"), OTHERS.get(name, {})
    archs = {
        role: read_architecture(
            ROOT / f"configs/model/{others.get(role, RUNS[name][0])}.json", settings.parallel.engine
        )
        for role, settings in config.role_settings.items()
    }
    first, per_node = next(iter(archs.values())), site_of(name).ranks_per_node
    ranks = num_ranks(name)
    return config, archs, run_layouts(config, first, ranks, archs=archs, ranks_per_node=per_node)


@pytest.mark.parametrize("name", RUNS)
def test_the_model_can_be_cut_as_the_configuration_says(name):
    config, archs, layouts = laid_out(name)
    (train,) = {layouts.train[role] for role in archs if role not in OTHERS.get(name, {})}
    sizes = train.tp, train.pp, train.num_replicas, train.cp, train.ep, layouts.num_replicas
    assert sizes == RUNS[name][1]
    # Every data-parallel replica gets its share of each optimizer step.
    samples = config.batch.size * (1 if config.recipe == "sft" else config.rollout.num_samples)
    assert samples % (config.batch.mini_batches * train.num_replicas) == 0
    if name in DENSE:
        # 1F1B with m micro-batches on p stages is busy m / (m + p - 1) of the time.
        tokens = samples // (config.batch.mini_batches * train.dp) * DENSE[name]
        assert -(-tokens // config.batch.max_tokens_per_micro_batch) >= 2 * train.pp


@pytest.mark.parametrize("name", RUNS)
def test_it_fits_by_the_ledger_and_is_not_bound_by_launches(name):
    hardware = hardware_of(site_of(name), "H100-80")
    misfit = ledger(*laid_out(name), hardware).first_misfit
    assert misfit is None, misfit.why_not()
    step = predict_step(*laid_out(name), Machine(hardware))
    assert step.launch_shares
    assert max(step.launch_shares.values()) < MOST_SHARE, step.launch_shares


@pytest.mark.parametrize("name", [*RUNS, "ppo_lab"])
def test_names_agree(name):
    path = f"configs/run/{'' if name in RUNS else 'examples/'}{name}.yaml"
    config = load_config(ROOT / path)
    assert config.name == name
    assert (config.model.fp8 is not None) == name.endswith("fp8")
    assert arguments(name)["config"] == path
    assert config.steps % (config.checkpoint.every or 1) == 0


def test_the_lab_run_is_on_two_nodes_and_its_model_is_the_one_that_its_comment_makes():
    assert num_ranks("ppo_lab") == 4
    text = (ROOT / "configs/run/examples/ppo_lab.yaml").read_text()
    comment = " ".join(re.findall(r"^#(.*?)\\?$", text, re.M))
    words = shlex.split(comment[comment.index("python -m") :])
    config = load_config(ROOT / "configs/run/examples/ppo_lab.yaml")
    assert words[words.index("--out") + 1] == config.model.path


def quickstart(directory, environ):
    """Run the script as far as it comes without Python: it stops where nobody made the problems."""
    (directory / "launch").mkdir()
    shutil.copy(LAUNCH / "quickstart.sh", directory / "launch")
    command = [directory / "launch/quickstart.sh"]
    environ = os.environ | {"PYTHON": "true", "MPIEXEC": "true"} | environ
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "name",
    [f"quickstart{end}" for end in ("", "_sft", "_ppo", "_lora")]
    + [f"grpo_{kind}" for kind in ("async", "split", "context")],
)
def test_the_configurations_of_the_quickstart_read_what_it_made_last(tmp_path, name):
    done = quickstart(tmp_path, {})
    (made,) = re.findall(r"--out (runs/\S+)/data", done.stdout)
    config = load_config(ROOT / f"configs/run/examples/{name}.yaml")
    for path in (config.model.path, *config.data.train.paths, *config.data.evaluation.paths):
        link = tmp_path / "runs" / path.split("/")[1]
        assert link.is_symlink()
        assert link.resolve() == tmp_path / made
        # A run of its own would be written among what the quickstart made.
        assert tmp_path / config.run_directory != link


def test_a_quickstart_in_a_directory_of_the_users_leaves_no_link(tmp_path):
    quickstart(tmp_path, {"RUNS": str(tmp_path / "mine")})
    assert not (tmp_path / "runs").exists()


def test_the_asynchronous_quickstart_and_its_twin_differ_in_staleness_alone():
    late, sync = (
        load_config(ROOT / f"configs/run/examples/grpo_{n}.yaml") for n in ("async", "split")
    )
    assert (late.rollout.staleness, sync.rollout.staleness) == (1, 0)
    rollout = late.rollout.model_copy(update={"staleness": 0})
    assert late.model_copy(update={"name": sync.name, "rollout": rollout}) == sync
    layouts = run_layouts(late, read_architecture(ROOT / "configs/model/Qwen3-8B.json"), 4)
    assert layouts.train["actor"].dp == 2 and layouts.replicas == ((2,), (3,))
