"""Six scripts of verl train two steps here: their words, over which tiny sizes are given."""

from pathlib import Path

import pytest

from tests.jobs.test_main_ppo import main_ppo, words_of
from verl_hpc.metrics.log import read_metrics

WORDS = sorted(Path(__file__).with_name("verl_words").glob("*.txt"))
TINY = (
    "data.train_batch_size=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=512",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=512",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=512",
    "actor_rollout_ref.rollout.n=4",
    "trainer.logger=[file]",
    "trainer.nnodes=1",
    "verl_hpc.data.overlap=warn",
)
FSDP = ("actor_rollout_ref.actor.fsdp_config.dtype=float32",)
MEGATRON = (
    "critic.ppo_mini_batch_size=4",
    *(
        f"{model}.megatron.{word}"
        for model in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")
        for word in ("tensor_model_parallel_size=1", "dtype=float32")
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("file", WORDS, ids=lambda file: file.stem)
def test_a_script_of_verls_trains(file, tree, tmp_path):
    lines = file.read_text(encoding="utf-8").splitlines()
    said = [line for line in lines if line and not line.startswith("#")]
    ours = [word for word in words_of(tree, tmp_path) if "use_kl_in_reward" not in word]
    own = [*ours, *TINY, *(MEGATRON if "megatron" in file.stem else FSDP)]
    own.append(f"data.val_files={tree['data']['train']['paths'][0]}")
    if "critic.model.path=Qwen/Qwen3-8B" in said:
        own.append(f"critic.model.path={tree['model']['path']}")
    done = main_ppo([*said, *own])
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [row for row in read_metrics(tmp_path / "run") if "actor/grad_norm" in row]
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["actor/grad_norm"] > 0 for row in steps)
