"""Names and texts that are taken for secrets."""

import pytest

from tests.unit.config.trees import parse
from verl_hpc.config.secret import assigns_secret, holds_secret, looks_secret
from verl_hpc.errors import ConfigError


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "MY_APIKEY", "TOKEN",
     "hf_token", "GITHUB_TOKEN_FILE", "SOME_CREDENTIALS", "KEY", "GITHUB_PAT", "DB_PASS",
     "HF_TOKENS", "WANDB_API_KEYS", "SSHKEY", "ssh_keys", "PAT_GITHUB", "AUTH_HEADER",
     "PASSPHRASE", "AUTHORIZATION", "SLURM_JWT", "apiKey", "private-key", "DB_PWD", "http.auth"],
)  # fmt: skip
def test_secrets(name):
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "NCCL_NET", "UCX_IB_PKEY", "MONKEYPATCH", "max_prompt_tokens",
     "PYTHONHASHSEED", "KEYBOARD", "PATH", "PWD", "pass_rate", "SSH_AUTH_SOCK", "author",
     "keyword", "max_tokens", "compass", "MAX_TOKENS", "stop_tokens", "keys", "sort_keys",
     "NCCL_PAT_ENABLE", "pattern", "authors", "header"],
)  # fmt: skip
def test_not_secrets(name):
    assert not looks_secret(name)


SHELL_LINES = [
    ("export HF_TOKEN=hf_x", True),
    ("a && WANDB_API_KEY='x' b", True),
    ('export DB_PASS="x"', True),
    ("login --password=x", True),
    ("export HF_TOKEN=$(cat ~/.token)", False),
    ('export HF_TOKEN="$MY_TOKEN"', False),
    ("export HF_TOKEN=`cat ~/.token`", False),
    ("unset HF_TOKEN; export HF_TOKEN=", False),
    ("export TOKENIZERS_PARALLELISM=false", False),
    ("module load token", False),
]


@pytest.mark.parametrize(("line", "assigned"), SHELL_LINES)
def test_secrets_in_a_line_of_a_shell(line, assigned):
    assert assigns_secret(line) == assigned


GYM = {"kind": "reasoning_gym", "task": "chain_sum", "size": 4}


SECRETS = [
    ("reward.options.judge_api_key", {"judge_api_key": "hunter2", "scale": 1}),
    ("reward.options.a.token", {"a": {"token": "hunter2"}}),
    ("reward.options.a.b.DB_PASS", {"a": [1, {"b": {"DB_PASS": "hunter2"}}]}),
    ("reward.options.MONGO_URI", {"MONGO_URI": "mongodb://me:hunter2@db.example/x"}),
    ("reward.options.repo", {"repo": "https://ghp_hunter2@github.com/me/x"}),
    ("reward.options.repo", {"repo": f"https://{'hunter2' * 6}@git.example/me/x"}),
    ("reward.options.urls", {"urls": ["https://a.example", "https://me:hunter2@b.example"]}),
]


@pytest.mark.parametrize(("name", "options"), SECRETS)
def test_a_secret_in_a_run_is_refused_and_not_repeated(name, options):
    with pytest.raises(ConfigError, match=f"{name} looks like a secret") as caught:
        parse(reward__options=options)
    assert "hunter2" not in str(caught.value)
    for section in ("train", "evaluation"):
        told = name.replace("reward.options", f"data.{section}.options")
        with pytest.raises(ConfigError, match=f"{told} looks like a secret"):
            parse(data={"train": GYM, section: GYM | {"options": options}})


URL = "https://me:hunter2@host/x"


PASSWORDS = [
    ("model.path", {"model__path": URL}),
    ("data.train.paths", {"data__train__paths": [URL]}),
    ("data.train.template", {"data__train": GYM | {"template": f"{{question}} {URL}"}}),
    ("rollout.stop", {"rollout__stop": [f"end {URL}"]}),
    ("reward.function", {"reward__function": f"{URL}:f"}),
]


@pytest.mark.parametrize(("name", "settings"), PASSWORDS)
def test_an_address_with_a_password_is_refused_in_every_text(name, settings):
    with pytest.raises(ConfigError, match=f"{name} looks like a secret") as caught:
        parse(**settings)
    assert "hunter2" not in str(caught.value)


def test_a_long_text_is_looked_through_at_once():
    assert not holds_secret("a" * 1_000_000 + "://")
    assert not holds_secret("://a" * 100_000)
    assert not assigns_secret("a" * 1_000_000)


def test_what_is_no_secret_may_stand_in_a_run():
    options = {"url": "https://a.example:8000/x@y", "git": "ssh://git@a.example/x"}
    options |= {"use_auth": True, "token": None, "scale": 2}
    assert parse(reward__options=options).reward.options == options
