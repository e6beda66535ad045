"""What a step says of each task, and what becomes of a reward that takes too long."""

import re

import pytest

from verl_hpc.errors import RewardError


def test_each_task_has_a_line_of_the_log(make_trainer, caplog):
    trainer = make_trainer(batch_size=12)
    with caplog.at_level("INFO"):
        (metrics,) = trainer.train(1)
    lines = [line for line in caplog.messages if line.startswith("step 1 ")]
    assert len(lines) == 3
    for name, line in zip(trainer.tasks, lines, strict=True):
        score = f"{metrics[f'task/{name}/reward']:.4g}"
        assert re.fullmatch(rf"step 1 {name}: \d+ prompts, reward {score}, \d+ tokens/s", line)


def test_a_reward_of_a_users_has_a_time_limit(make_trainer, tmp_path):
    """Likeness of code to an answer may take for ever."""
    source = "import time\ndef likeness(response, reference):\n    time.sleep(60)\n"
    (tmp_path / "code.py").write_text(source)
    section = {"function": f"{tmp_path}/code.py:likeness", "timeout_s": 0.1}
    trainer = make_trainer(("vowels",), batch_size=1, rewards={}, vowels={"reward": section})
    with pytest.raises(RewardError, match=r"tasks.vowels.reward.*longer than timeout_s = 0.1"):
        trainer.train(1)
    section["on_error"] = "zero"
    trainer = make_trainer(("vowels",), batch_size=1, rewards={}, vowels={"reward": section})
    assert trainer.train(1)[0]["task/vowels/reward"] == 0.0
