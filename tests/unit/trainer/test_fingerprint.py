import pytest

from verl_hpc.errors import ConfigError
from verl_hpc.trainer.fingerprint import changed, check_fingerprint

BEFORE = {
    "recipe": "grpo",
    "seed": "0",
    "data.train": "aa",
    "data.shuffle": "true",
    "model.path": "cc",
}


def test_the_same_run_goes_on():
    check_fingerprint(BEFORE, BEFORE, force=False)


def test_what_one_life_does_not_know_is_not_compared():
    """Without a KL reference nobody reads the first weights."""
    now = {name: value for name, value in BEFORE.items() if name != "model.path"}
    assert changed(BEFORE, now) == changed(now, BEFORE) == []
    check_fingerprint({}, BEFORE, force=False)


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("seed", "9", "seed = 9, and was 0"),
        ("data.train", "ab", "data.train: other rows"),
        ("data.shuffle", "false", "data.shuffle = false, and was true"),
        ("model.path", "dd", "model.path: other weights than those that the run started from"),
    ],
)
def test_what_changed_is_named_and_can_be_forced(name, value, words):
    now = BEFORE | {name: value}
    with pytest.raises(ConfigError) as caught:
        check_fingerprint(BEFORE, now, force=False)
    assert words in str(caught.value)
    assert "checkpoint.resume: force" in str(caught.value)
    check_fingerprint(BEFORE, now, force=True)


def test_another_recipe_is_another_run():
    now = BEFORE | {"recipe": "ppo", "seed": "1"}
    with pytest.raises(ConfigError) as caught:
        check_fingerprint(BEFORE, now, force=True)
    assert "recipe = ppo, and was grpo; seed = 1, and was 0" in str(caught.value)
    assert "force" not in str(caught.value)
