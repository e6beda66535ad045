"""Names and texts that are taken for secrets."""

import pytest

from verl_hpc.config.secret import assigns_secret, holds_secret, looks_secret


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


def test_signed_addresses():
    signed = ("X-Amz-Signature=a", "sig=a", "a=b&token=hf_x", "X-Goog-Credential=a", "api_key=a")
    for query in signed:
        assert holds_secret(f"https://host/rows.jsonl?{query}"), query
    assert not holds_secret("https://host/rows.jsonl?page=2&keys=a&design=b")
    assert not holds_secret("rows?key=a")


def test_a_long_text_is_looked_through_at_once():
    for text in ("a" * 1_000_000 + "://", "://a" * 100_000, "://a?b" * 100_000):
        assert not holds_secret(text) and not assigns_secret(text)
