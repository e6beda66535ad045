"""The engine that a command line of verl chooses, and the notes about it."""

import pytest

from tests.unit.migration.cases import ACTOR, MODEL, REF, ROLLOUT
from verl_hpc.migration.translate import migrate

BASE = (
    "data.train_files=a.parquet",
    "data.val_files=b.parquet",
    f"{MODEL}.path=Qwen/Qwen3-8B",
    "trainer.total_training_steps=10",
    "algorithm.rollout_correction.rollout_is=token",
)


def engines(*words):
    """Return the engine of every role of the run."""
    roles = migrate([*BASE, *words]).config().role_settings
    return {name: role.parallel.engine for name, role in roles.items()}


def test_a_command_line_that_says_nothing_is_verls_default():
    found = migrate(BASE)
    assert engines() == {"actor": "fsdp", "critic": "fsdp"}
    assert found.config().parallel == migrate([*BASE, f"{ACTOR}.strategy=fsdp"]).config().parallel
    assert "megatron" not in found.notes[f"{ACTOR}.strategy"]
    assert found.config().model.path == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("word", "critic"),
    [
        (f"{ACTOR}.ulysses_sequence_parallel_size=2", "fsdp"),
        (f"{MODEL}.enable_activation_offload=True", "fsdp"),
        (f"{MODEL}.lora_rank=8", "fsdp"),
        (f"{ROLLOUT}.quantization=fp8", "fsdp"),
        (f"{ROLLOUT}.expert_parallel_size=2", "megatron"),
        ("verl_hpc.model.router.z_loss=1e-3", "megatron"),
        ("verl_hpc.lora.rank=8", "megatron"),
    ],
)
def test_what_megatron_core_alone_honours_chooses_it_and_is_named(word, critic):
    words = [word, "algorithm.use_kl_in_reward=True"]
    assert engines(*words) == {"actor": "megatron", "critic": critic, "reference": "megatron"}
    found = migrate([*BASE, *words])
    assert "roles.reference.parallel.engine" not in found.settings
    note = found.notes[f"{ACTOR}.strategy"]
    name = word.partition("=")[0].replace("ulysses_sequence_parallel_size", "")
    ours = ("parallel.context_parallel = 2", "parallel.offload_activations = True", name)
    assert any(one in note for one in ours)
    assert "weights and gradients are whole on every rank" in note


@pytest.mark.parametrize("word", ["engine=megatron", "tensor_parallel=2"])
def test_a_setting_of_ours_decides(word):
    word = f"verl_hpc.parallel.{word}"
    found = migrate([*BASE, word, f"{ACTOR}.fsdp_config.reshard_after_forward=False"])
    assert engines(word) == {"actor": "megatron", "critic": "megatron"}
    assert f"{ACTOR}.strategy" not in found.notes
    assert found.config().parallel.fsdp is None


def test_the_reference_stays_in_the_actors_engine():
    words = [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.fsdp_config.reshard_after_forward=False"]
    roles = migrate([*BASE, *words]).config().role_settings
    assert roles["reference"].shares == "actor"
    assert roles["critic"].parallel.fsdp is None
    words.append(f"{REF}.strategy=fsdp2")
    assert migrate([*BASE, *words]).config().role_settings["reference"].shares == "actor"
    # A critic of FSDP may stand beside an actor of Megatron-core's.
    words = ["model_engine=megatron", "critic.strategy=fsdp"]
    assert engines(*words) == {"actor": "megatron", "critic": "fsdp"}
