"""The runs that launch/ starts: valid, and laid out on the ranks that their scripts ask for."""

import os
import re
import shlex
import shutil
import subprocess
from itertools import pairwise

import pytest

from tests.unit.cluster.goldens import LAUNCH, launch_command
from tests.unit.cluster.requests import ROOT
from tests.unit.layout.models import PUBLISHED
from verl_hpc.cluster.profile import load_profile
from verl_hpc.config.load import load_config
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.planner.layouts import run_layouts

QWEN25_32B = {
    "model_type": "qwen2",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
}
LLAMA_31 = {"max_position_embeddings": 131072}
QWEN3 = {"max_position_embeddings": 40960}
MODELS = {
    "ppo_70b": PUBLISHED["Llama-3.1-70B"][0] | LLAMA_31,
    "grpo_8b": PUBLISHED["Qwen3-8B"][0] | QWEN3,
    "grpo_32b_fp8": QWEN25_32B,
    "sft_8b": PUBLISHED["Llama-3.1-8B"][0] | LLAMA_31,
}
# tp, pp, dp and engines, as the first lines of each configuration say.
LAYOUTS = {
    "ppo_70b": (8, 4, 4, 16),
    "grpo_8b": (2, 1, 8, 16),
    "grpo_32b_fp8": (4, 2, 4, 8),
    "sft_8b": (2, 1, 4, 8),
}


def arguments(name):
    words = launch_command((LAUNCH / f"{name}.sbatch").read_text())
    return {option[2:]: value for option, value in pairwise(words) if option.startswith("--")}


def num_ranks(name):
    given = arguments(name)
    site = load_profile(ROOT / given["cluster"], {}).site
    return int(given["nodes"]) * site.ranks_per_node


@pytest.mark.parametrize("name", MODELS)
def test_the_model_can_be_cut_as_the_configuration_says(name):
    config = load_config(ROOT / f"configs/run/{name}.yaml")
    layouts = run_layouts(config, architecture_from(MODELS[name]), num_ranks(name))
    train = layouts.train["actor"]
    assert set(layouts.train.values()) == {train}
    assert (train.tp, train.pp, train.dp, layouts.num_replicas) == LAYOUTS[name]
    # Every data-parallel replica gets its share of each optimizer step.
    samples = config.batch.size * (1 if config.recipe == "sft" else config.rollout.num_samples)
    assert samples % (config.batch.mini_batches * train.dp) == 0


@pytest.mark.parametrize("name", [*MODELS, "ppo_lab"])
def test_names_agree(name):
    config = load_config(ROOT / f"configs/run/{name}.yaml")
    assert config.name == name
    assert arguments(name)["config"] == f"configs/run/{name}.yaml"
    assert config.steps % (config.checkpoint.every or 1) == 0


def test_the_lab_run_uses_all_ranks_of_two_nodes():
    assert num_ranks("ppo_lab") == 4


def test_the_lab_model_is_the_one_that_its_comment_makes():
    text = (ROOT / "configs/run/ppo_lab.yaml").read_text()
    comment = " ".join(re.findall(r"^#(.*?)\\?$", text, re.M))
    words = shlex.split(comment[comment.index("python -m") :])
    assert (
        words[words.index("--out") + 1] == load_config(ROOT / "configs/run/ppo_lab.yaml").model.path
    )


def test_fp8_is_asked_for_where_the_name_says_so():
    for name in MODELS:
        fp8 = load_config(ROOT / f"configs/run/{name}.yaml").model.fp8
        assert (fp8 is not None) == name.endswith("fp8")


def quickstart(directory, environ):
    """Run the script as far as it comes without Python: it stops where nobody made the problems."""
    (directory / "launch").mkdir()
    shutil.copy(LAUNCH / "quickstart.sh", directory / "launch")
    command = [directory / "launch/quickstart.sh"]
    environ = os.environ | {"PYTHON": "true", "MPIEXEC": "true"} | environ
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "name",
    [
        "quickstart_sft",
        "quickstart",
        "quickstart_ppo",
        "quickstart_lora",
        "grpo_async",
        "grpo_split",
    ],
)
def test_the_configurations_of_the_quickstart_read_what_it_made_last(tmp_path, name):
    done = quickstart(tmp_path, {})
    (made,) = re.findall(r"--out (runs/\S+)/data", done.stdout)
    config = load_config(ROOT / f"configs/run/{name}.yaml")
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
    late, sync = (load_config(ROOT / f"configs/run/grpo_{n}.yaml") for n in ("async", "split"))
    assert (late.rollout.staleness, sync.rollout.staleness) == (1, 0)
    rollout = late.rollout.model_copy(update={"staleness": 0})
    assert late.model_copy(update={"name": sync.name, "rollout": rollout}) == sync
    layouts = run_layouts(late, architecture_from(PUBLISHED["Qwen3-8B"][0] | QWEN3), 4)
    assert layouts.train["actor"].dp == 2 and layouts.replicas == ((2,), (3,))
