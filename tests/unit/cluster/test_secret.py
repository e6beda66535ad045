"""Which names are taken for secrets."""

import pytest

from verl_hpc.cluster.secret import looks_secret


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "MY_APIKEY", "TOKEN",
     "hf_token", "GITHUB_TOKEN_FILE", "SOME_CREDENTIALS", "KEY"],
)  # fmt: skip
def test_secrets(name):
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "NCCL_NET", "UCX_IB_PKEY", "MONKEYPATCH", "max_prompt_tokens",
     "PYTHONHASHSEED", "KEYBOARD"],
)  # fmt: skip
def test_not_secrets(name):
    assert not looks_secret(name)
