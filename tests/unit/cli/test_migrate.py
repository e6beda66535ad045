"""A verl command line as words and as one word."""

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
