"""Runs of ours as verl's command lines: the same resolved configurations."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.migration.scripts import needs_bubblewrap
from verl_hpc.config import tree
from verl_hpc.config.load import load_config
from verl_hpc.config.plain_yaml import read_yaml, write_yaml
from verl_hpc.errors import LaunchError
from verl_hpc.migration.legacy import older
from verl_hpc.migration.table import rows
from verl_hpc.migration.translate import load_run, migrate
from verl_hpc.trainer.start import _ranks_to_start

ROOT = Path(__file__).parents[3]
DATA = "runs/quickstart-latest/data"
QUICKSTART = f"""
model_engine=megatron
algorithm.adv_estimator=grpo
data.train_files={DATA}/rl.jsonl
data.val_files={DATA}/evaluation.jsonl
data.train_batch_size=64
data.max_prompt_length=10
data.max_response_length=8
actor_rollout_ref.model.path=runs/quickstart-latest/quickstart_sft/checkpoints/latest
actor_rollout_ref.actor.megatron.dtype=float32
actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2
actor_rollout_ref.actor.megatron.sequence_parallel=False
actor_rollout_ref.actor.optim.lr=1e-4
actor_rollout_ref.actor.optim.weight_decay=0
actor_rollout_ref.actor.optim.betas=[0.9,0.95]
actor_rollout_ref.actor.ppo_mini_batch_size=32
actor_rollout_ref.actor.use_dynamic_bsz=True
actor_rollout_ref.actor.clip_ratio_high=0.28
actor_rollout_ref.rollout.name=vllm
actor_rollout_ref.rollout.tensor_model_parallel_size=1
actor_rollout_ref.rollout.n=8
actor_rollout_ref.rollout.temperature=0.6
+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=53687091.2
trainer.logger=['console']
trainer.total_training_steps=80
trainer.test_freq=10
trainer.save_freq=40
trainer.max_actor_ckpt_to_keep=2
trainer.default_local_dir=runs/quickstart
verl_hpc.reward.function=exact_match
verl_hpc.data.chat=never
""".split()
PPO = [
    *QUICKSTART,
    "algorithm.adv_estimator=gae",
    "data.train_batch_size=128",
    "actor_rollout_ref.actor.ppo_mini_batch_size=64",
    "actor_rollout_ref.rollout.n=4",
    "critic.megatron.tensor_model_parallel_size=2",
    "critic.megatron.sequence_parallel=False",
    "critic.megatron.dtype=float32",
    "critic.optim.lr=5e-4",
    "critic.optim.weight_decay=0",
    "critic.optim.betas=[0.9,0.95]",
    "trainer.critic_warmup=6",
    "trainer.default_local_dir=runs/quickstart_ppo",
]


@pytest.mark.parametrize(("name", "words"), [("quickstart", QUICKSTART), ("quickstart_ppo", PPO)])
def test_the_quickstarts_are_the_same_runs_in_verls_keys(name, words):
    ours = load_config(ROOT / f"configs/run/examples/{name}.yaml")
    assert migrate(words).config() == ours


def test_the_file_that_migrate_prints_is_the_same_run(tmp_path, prints):
    file = tmp_path / "run.yaml"
    file.write_text(prints("migrate", "python3", "-m", "verl.trainer.main_ppo", *QUICKSTART))
    assert load_config(file) == load_config(ROOT / "configs/run/examples/quickstart.yaml")


def test_a_file_of_verls_keys_is_the_same_run(tmp_path):
    keys = {}
    for word in QUICKSTART[:-1]:
        name, _, value = word.lstrip("+").partition("=")
        *sections, last = name.split(".")
        node = keys
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = value if "/" in value else read_yaml(value)
    file = tmp_path / "verl.yaml"
    file.write_text(write_yaml(keys))
    ours = load_config(ROOT / "configs/run/examples/quickstart.yaml")
    assert load_run(file, QUICKSTART[-1:]).config() == ours


def test_a_file_of_ours_is_read_once(monkeypatch):
    file = ROOT / "configs/run/examples/quickstart.yaml"
    expected, read, files = load_config(file, ["seed=3"]), tree._read, []
    monkeypatch.setattr(tree, "_read", lambda path: files.append(path) or read(path))
    assert load_run(file, ["seed=3"]) == expected
    assert len(files) == len(set(files)) > 0


def test_what_was_refused_is_a_comment_and_the_status(called):
    words = [*QUICKSTART, "trainer.device=npu", "data.train_max_samples=10"]
    status, out, err = called("migrate", *words)
    assert status == 3
    assert "#   trainer.device: ranks take the GPUs" in out
    assert "#   data.train_max_samples: the first rows" in out
    assert "refused 1 of verl's keys" in err


def test_the_table_of_all_keys_and_by_a_word(prints):
    told = prints("migrate", "--keys", "cliprange_value")
    assert told == "critic.cliprange_value\n    -> critic.value_clip\n"
    shown = prints("migrate", "--keys").splitlines()
    keys = [*(row.key for row in rows()), *older().renamed, *older().tutorials]
    assert sorted(shown[::2]) == sorted(keys)
    meanings = dict(zip(shown[::2], shown[1::2], strict=True))
    assert meanings["algorithm.lam"] == "    -> algorithm.advantage.lam   (of gae)"
    model_dtype = meanings["actor_rollout_ref.actor.fsdp_config.model_dtype"]
    assert model_dtype.startswith("    verl's default alone, or None, or fp32, or float32, or bf16")
    assert meanings["trainer.val_only"].startswith("    verl's default alone: a run takes at least")
    assert "; instead: evaluation.at_start" in meanings["trainer.val_only"]
    assert meanings["lr"] == "    a tutorial's name of actor_rollout_ref.actor.optim.lr"


@needs_bubblewrap
def test_a_script_is_migrated_without_torch(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("python3 -m verl.trainer.main_ppo \\\n" + " \\\n".join(QUICKSTART[:-1]))
    program = (
        "import sys; from verl_hpc.cli.main import main; "
        f"status = main(['migrate', {str(script)!r}]); "
        "heavy = {'torch', 'numpy', 'mpi4py', 'h5py', 'vllm'} & set(sys.modules); "
        "assert not heavy, heavy; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "name: quickstart" in done.stdout


def main_ppo(*words):
    command = [sys.executable, "-m", "verl_hpc.trainer.main_ppo", *words]
    environ = os.environ | {"PYTHONHASHSEED": "0"}
    return subprocess.run(command, env=environ, capture_output=True, text=True)


def test_main_ppo_says_what_it_takes():
    done = main_ppo("--help")
    assert done.returncode == 0
    assert "verl_hpc.SECTION.FIELD=value" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.train_file=x"], "did you mean data.train_files"),
        ([*QUICKSTART, "trainer.logger=[clearml]"], "no tracker clearml here"),
        ([*QUICKSTART, "trainer.n_gpus_per_node=4", "--ranks", "2"], "is for 4 ranks"),
    ],
)
def test_main_ppo_refuses(words, said):
    done = main_ppo(*words)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", "many"], "expected a number"),
        (["--bootstrap=ray"], "expected mpi or slurm"),
        (["--config"], "is given without a value"),
    ],
)
def test_main_ppos_own_options(words, said, capsys):
    from verl_hpc.trainer.main_ppo import main as main_ppo_here

    assert main_ppo_here([*QUICKSTART, *words]) == 1
    assert said in capsys.readouterr().err


def test_ranks_are_compared_with_those_of_the_launcher(monkeypatch):
    for name in ("PMI_RANK", "PMI_SIZE", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    assert _ranks_to_start(None, None) is None
    assert _ranks_to_start(None, 4) == 4
    assert _ranks_to_start(None, 1) is None
    assert _ranks_to_start(4, 4) == 4
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "4")
    assert _ranks_to_start(None, 4) is None
    with pytest.raises(LaunchError, match="is for 8 ranks .* and there are 4"):
        _ranks_to_start(None, 8)
