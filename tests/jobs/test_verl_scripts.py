"""Scripts of verl of six kinds train two steps here, each with a tiny model of its own family:
their words, over which tiny sizes are given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from string import ascii_letters
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from tests.jobs.conftest import REWARD
from tests.jobs.test_main_ppo import main_ppo
from verl_hpc.config.load import load_config
from verl_hpc.metrics.log import read_metrics
from verl_hpc.testing.tiny import make_tiny_model
from verl_hpc.testing.vision import make_vision_model

WORDS = Path(__file__).with_name("verl_words")
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ACTOR, REF, ROLLOUT = (f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout"))
TINY = (
    "data.train_batch_size=8",
    "data.max_prompt_length=80",
    "data.max_response_length=6",
    f"{ACTOR}.ppo_mini_batch_size=4",
    f"{ACTOR}.ppo_max_token_len_per_gpu=512",
    f"{REF}.log_prob_max_token_len_per_gpu=512",
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu=512",
    f"{ROLLOUT}.n=4",
    f"{ROLLOUT}.tensor_model_parallel_size=1",
    "trainer.logger=[file]",
    "trainer.nnodes=1",
    "trainer.n_gpus_per_node=2",
    "trainer.total_training_steps=2",
    "verl_hpc.data.overlap=warn",
    "verl_hpc.rollout.kv_cache_gib=0.05",
    "verl_hpc.metrics.report=false",
)
FSDP = (f"{ACTOR}.fsdp_config.dtype=float32",)
TEXT_TOKENS = 28
"""More than a prompt without an image has."""
TOOL = """
from verl_hpc.environments.python import Python

class SandboxTool(Python):
    def step(self, tokens, text):
        return self.result(text)
"""


@dataclass
class Kind:
    family: str
    words: tuple[str, ...] = FSDP
    sizes: dict[str, Any] = field(default_factory=dict)
    """Fields of the tiny model's `config.json` beside SIZES."""
    shows: Callable[[Mapping[str, float]], bool] = bool
    """Whether the metrics of a step are of this kind."""


def megatron(*models, **sizes):
    words = [f"megatron.{name}={value}" for name, value in (sizes | {"dtype": "float32"}).items()]
    return tuple(f"{model}.{word}" for model in models for word in words)


KINDS = {
    "dense": Kind(
        "qwen3",
        (
            "critic.ppo_mini_batch_size=4",
            "critic.ppo_max_token_len_per_gpu=512",
            *megatron(ACTOR, REF, "critic", pipeline_model_parallel_size=1),
        ),
        shows=lambda row: row["critic/grad_norm"] > 0,
    ),
    "mixture": Kind(
        "qwen3_moe",
        megatron(ACTOR, REF, expert_model_parallel_size=2),
        EXPERTS,
        shows=lambda row: row["actor/expert_load"] > 1,
    ),
    "vision": Kind("qwen2_5_vl", shows=lambda row: row["prompt_length/min"] > TEXT_TOKENS),
    "lora": Kind("qwen3"),
    "tools": Kind(
        "qwen3",
        # A random model soon writes one of these letters, and so ends a turn.
        (*FSDP, "data.max_response_length=96", f"{ROLLOUT}.stop=[{','.join(ascii_letters)}]"),
        shows=lambda row: row["rollout/turns/max"] > 1,
    ),
    "reward_model": Kind("mistral", shows=lambda row: row["critic/score/min"] < 0),
}


def write_rows(file, has_images):
    """Chats in verl's columns."""
    picture = BytesIO()
    Image.new("RGB", (40, 48), "red").save(picture, "png")
    images = [{"bytes": picture.getvalue(), "path": None}] if has_images else []
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": "<image>" * len(images) + f"{n} + 7 ="}],
            "reward_model": {"style": "rule", "ground_truth": str(n + 7)},
            "images": images,
        }
        for n in range(32)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), file)
    return file


def write_model(directory, kind):
    if kind == "vision":
        return make_vision_model(directory, KINDS[kind].family)
    model = make_tiny_model(directory, KINDS[kind].family, **SIZES, **KINDS[kind].sizes)
    # Qwen3's template has this switch.
    with (model / "chat_template.jinja").open("a") as template:
        template.write("{% if enable_thinking %}{% endif %}")
    return model


def own_words(kind, directory):
    """What a script is given: rows, a model, and what scores responses."""
    rows, model = write_rows(directory / "rows.parquet", kind == "vision"), directory / "model"
    words = [f"data.{name}_files={rows}" for name in ("train", "val")]
    words += [f"actor_rollout_ref.model.path={write_model(model, kind)}"]
    words += [f"trainer.default_local_dir={directory}/run", *TINY, *KINDS[kind].words]
    if kind == "dense":
        words.append(f"critic.model.path={model}")
    if kind == "reward_model":
        judge = make_tiny_model(directory / "judge", "llama", head="score", **SIZES)
        return [*words, f"reward.reward_model.model_path={judge}"]
    (directory / "reward.py").write_text(REWARD)
    words.append(f"reward.custom_reward_function.path={directory}/reward.py")
    if kind == "tools":
        (directory / "sandbox.py").write_text(TOOL)
        words.append(f"verl_hpc.rollout.environment.name={directory}/sandbox.py:SandboxTool")
    return words


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_script_of_verls_trains(kind, tmp_path):
    lines = (WORDS / f"{kind}.txt").read_text(encoding="utf-8").splitlines()
    said = [line for line in lines if not line.startswith("#")]
    done = main_ppo([*said, *own_words(kind, tmp_path)])
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "run"
    assert (load_config(run / "config.yaml").lora is not None) == (kind == "lora")
    steps = [row for row in read_metrics(run) if "actor/grad_norm" in row]
    assert [row["step"] for row in steps] == [1, 2]
    for row in steps:
        assert row["actor/grad_norm"] > 0 and KINDS[kind].shows(row)
