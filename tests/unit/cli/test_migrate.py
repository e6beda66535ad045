"""A verl command line as words and as one word."""

import pytest

from tests.unit.migration.scripts import needs_bubblewrap

COMMAND = (
    "python3 -m verl.trainer.main_ppo data.train_files=a.parquet data.val_files=b.parquet "
    "data.train_batch_size=64 actor_rollout_ref.model.path=model algorithm.adv_estimator=grpo "
    "actor_rollout_ref.rollout.n=5 actor_rollout_ref.rollout.name=vllm "
    "actor_rollout_ref.actor.ppo_mini_batch_size=32"
)


@pytest.fixture
def shown(called):
    return lambda *words: called("migrate", *words)


def test_a_command_in_quotes_is_that_command_and_no_other_program(shown, refuses):
    status, out, err = shown(COMMAND)
    assert status == 0, err
    assert "size: 64" in out
    assert shown(*COMMAND.split()) == (0, out, err)
    told = refuses("migrate", COMMAND.replace("main_ppo", "nosuch"))
    assert "'python3': expected key=value" in told


DATA = ("data.train_path=a.jsonl", "data.val_path=b.jsonl", "batch_size=8", "steps=3")


def test_a_tutorials_program_and_its_options(shown):
    words = ["python", "ppo_simple.py", "--num_rollout_workers", "2", "--actor_model", "gpt2"]
    status, out, err = shown(*words, *DATA)
    assert status == 0, err
    assert "path: gpt2" in out and "Ranks: 2;" in out
    assert shown(" ".join([*words, *DATA])) == (0, out, err)
    status, _, err = shown("python", "ppo_simple.py", "--actor_model", "--use_fsdp")
    assert status == 2 and "--actor_model: has no value" in err


def test_torchruns_options(prints, refuses):
    program = ["ppo_simple.py", "--use_fsdp", "--actor-model=gpt2", *DATA]
    launcher = ["torchrun", "--standalone", "--nnodes=2", "--nproc_per_node", "4"]
    out = prints("migrate", *launcher, *program)
    assert "path: gpt2" in out and "Ranks: 8;" in out and "engine: fsdp" in out
    told = refuses("migrate", "torchrun", "--max_restarts=3", *program)
    assert "max_restarts=3: before ppo_simple.py expected one of" in told


def test_this_verbs_own_options(prints):
    words = COMMAND.split()
    out = prints("migrate", *words[:3], "--config_name", "ppo_trainer", *words[3:])
    assert "size: 64" in out
    prints("migrate", "--keys", "data.seed")


def test_keys_of_which_the_same_is_to_know_are_told_together(shown):
    kernels = [f"{name}.model.use_fused_kernels" for name in ("actor_rollout_ref", "critic")]
    words = ["distillation.enabled=true", "trainer.val_only=true", "distillation.nnodes=2"]
    status, out, err = shown(*COMMAND.split(), *words, *(f"{key}=true" for key in kernels))
    assert status == 3 and "refused 3 of verl's keys" in err
    told = " ".join(line.strip("# ") for line in out.splitlines() if line.startswith("#"))
    reason = "distillation is a recipe of its own"
    assert f"distillation.enabled, distillation.nnodes: {reason}" in told
    assert "trainer.val_only: a run takes" in told
    assert f"{', '.join(kernels)}: changes no number: the training engine" in told


@needs_bubblewrap
def test_variables_before_a_script(prints, called, tmp_path, monkeypatch):
    script = tmp_path / "run.sh"
    script.write_text(f"SIZE=$(nproc)\n{COMMAND} data.train_batch_size=$SIZE")
    monkeypatch.setenv("SIZE", "32")
    status, _, err = called("migrate", script)
    assert status != 0 and "give it: python -m verl_hpc migrate SIZE=... run.sh" in err
    out = prints("migrate", "SIZE=256", script, "trainer.experiment_name=c")
    assert "size: 256" in out and "name: c" in out
    status, _, err = called("migrate", "SIZE=256", "SIZES=1", script)
    assert status != 0 and "SIZES=... is given, but the script has no such variable" in err
