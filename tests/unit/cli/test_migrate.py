"""A verl command line as words and as one word."""

from tests.unit.migration.scripts import needs_bubblewrap
from verl_hpc.cli.main import main

COMMAND = (
    "python3 -m verl.trainer.main_ppo data.train_files=a.parquet data.val_files=b.parquet "
    "data.train_batch_size=64 actor_rollout_ref.model.path=model algorithm.adv_estimator=grpo "
    "actor_rollout_ref.rollout.n=5 actor_rollout_ref.rollout.name=vllm "
    "actor_rollout_ref.actor.ppo_mini_batch_size=32"
)


def shown(capsys, *words):
    return main(["migrate", *words]), capsys.readouterr()


def test_a_command_in_quotes_is_that_command(capsys):
    status, said = shown(capsys, COMMAND)
    assert status == 0, said.err
    assert "size: 64" in said.out
    assert shown(capsys, *COMMAND.split()) == (0, said)


def test_another_program_in_quotes_is_no_command_of_verls(capsys):
    status, said = shown(capsys, COMMAND.replace("main_ppo", "nosuch"))
    assert status == 1 and "'python3': expected key=value" in said.err


DATA = ("data.train_path=a.jsonl", "data.val_path=b.jsonl", "batch_size=8", "steps=3")


def test_a_tutorials_program_and_its_options(capsys):
    words = ["python", "ppo_simple.py", "--num_rollout_workers", "2", "--actor_model", "gpt2"]
    status, said = shown(capsys, *words, *DATA)
    assert status == 0, said.err
    assert "path: gpt2" in said.out and "Ranks: 2;" in said.out
    assert shown(capsys, " ".join([*words, *DATA])) == (0, said)


def test_torchruns_options(capsys):
    program = ["ppo_simple.py", "--use_fsdp", "--actor-model=gpt2", *DATA]
    status, said = shown(
        capsys, "torchrun", "--standalone", "--nnodes=2", "--nproc_per_node", "4", *program
    )
    assert status == 0, said.err
    assert "path: gpt2" in said.out and "Ranks: 8;" in said.out and "engine: fsdp" in said.out
    status, said = shown(capsys, "torchrun", "--max_restarts=3", *program)
    assert status == 1 and "max_restarts=3: before ppo_simple.py expected one of" in said.err


def test_an_option_without_a_value_is_told(capsys):
    status, said = shown(capsys, "python", "ppo_simple.py", "--actor_model", "--use_fsdp")
    assert status == 2 and "--actor_model: has no value" in said.err


def test_this_verbs_own_options(capsys):
    words = COMMAND.split()
    status, said = shown(capsys, *words[:3], "--config_name", "ppo_trainer", *words[3:])
    assert status == 0, said.err
    assert "size: 64" in said.out
    assert shown(capsys, "--keys", "data.seed")[0] == 0


def comments(said):
    """All of them, in a line."""
    lines = (line.strip("# ") for line in said.out.splitlines() if line.startswith("#"))
    return " ".join(lines)


def test_refused_keys_with_the_same_reason_are_told_together(capsys):
    servers = [
        f"actor_rollout_ref.rollout.agent.custom_async_server.{name}" for name in ("path", "name")
    ]
    words = [f"{servers[0]}=a.py", "trainer.val_only=true", f"{servers[1]}=A"]
    status, said = shown(capsys, *COMMAND.split(), *words)
    assert status == 3 and "refused 3 of verl's keys" in said.err
    assert f"{', '.join(servers)}: tools and further turns are" in comments(said)
    assert "trainer.val_only: a run takes" in comments(said)


def test_keys_of_which_the_same_is_to_know_are_told_together(capsys):
    keys = [f"{name}.model.use_fused_kernels" for name in ("actor_rollout_ref", "critic")]
    _, said = shown(capsys, *COMMAND.split(), *(f"{key}=true" for key in keys))
    assert f"{', '.join(keys)}: changes no number: the training engine" in comments(said)


@needs_bubblewrap
def test_variables_before_a_script(capsys, tmp_path, monkeypatch):
    script = tmp_path / "run.sh"
    script.write_text(f"SIZE=$(nproc)\n{COMMAND} data.train_batch_size=$SIZE")
    monkeypatch.setenv("SIZE", "32")
    status, said = shown(capsys, str(script))
    assert status != 0 and "give it: python -m verl_hpc migrate SIZE=... run.sh" in said.err
    status, said = shown(capsys, "SIZE=256", str(script), "trainer.experiment_name=c")
    assert status == 0 and "size: 256" in said.out and "name: c" in said.out, said.err
    status, said = shown(capsys, "SIZE=256", "SIZES=1", str(script))
    assert status != 0 and "SIZES=... is given, but the script has no such variable" in said.err
