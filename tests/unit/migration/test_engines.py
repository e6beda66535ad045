"""Which engine trains what verl's command line says, and what is told about it."""

import pytest

from tests.unit.migration.cases import ACTOR, MODEL, REF, ROLLOUT
from verl_hpc.errors import ConfigError
from verl_hpc.migration.translate import migrate

BASE = (
    "data.train_files=a.parquet",
    "data.val_files=b.parquet",
    f"{MODEL}.path=Qwen/Qwen3-8B",
    "trainer.total_training_steps=10",
    "algorithm.rollout_correction.rollout_is=token",
)


def engines(*words):
    """Of every role of the run."""
    roles = migrate([*BASE, *words]).config().role_settings
    return {name: role.parallel.engine for name, role in roles.items()}


def test_a_command_line_that_says_nothing_is_verls_default():
    found = migrate(BASE)
    assert engines() == {"actor": "fsdp", "critic": "fsdp"}
    assert found.config().parallel == migrate([*BASE, f"{ACTOR}.strategy=fsdp"]).config().parallel
    assert "verl_hpc.parallel.engine=megatron" in found.notes[f"{ACTOR}.strategy"]
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


@pytest.mark.parametrize(
    "word", ["verl_hpc.parallel.engine=megatron", "verl_hpc.parallel.tensor_parallel=2"]
)
def test_a_setting_of_ours_decides(word):
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


def test_a_critic_of_fsdp_beside_an_actor_of_megatrons():
    words = ["model_engine=megatron", "critic.strategy=fsdp"]
    assert engines(*words) == {"actor": "megatron", "critic": "fsdp"}
    (refused,) = migrate([*BASE, *words, "critic.megatron.tensor_model_parallel_size=2"]).refused
    assert str(refused).startswith("critic.strategy: and critic.megatron.tensor_model_parallel")


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["fsdp_size=8"], 8),  # how many ranks there are is not known
        (["fsdp_size=8", "trainer.n_gpus_per_node=8", "trainer.nnodes=2"], 8),
        (["fsdp_size=8", "trainer.n_gpus_per_node=8"], None),
        (["fsdp_size=16", "trainer.n_gpus_per_node=8"], None),
        (["fsdp_size=-1", "trainer.n_gpus_per_node=8"], None),
    ],
)
def test_ranks_that_divide_one_copy(words, size):
    config = migrate([*BASE, f"{ACTOR}.fsdp_config.{words[0]}", *words[1:]]).config()
    assert config.parallel.engine == "fsdp"
    assert (config.parallel.fsdp.shard_size if config.parallel.fsdp else None) == size


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([f"{ACTOR}.strategy=torchtitan"], "expected one of fsdp, fsdp2, megatron"),
        (["model_engine=megatron", f"{ACTOR}.strategy=fsdp"], "verl's Megatron form"),
        ([f"{ACTOR}.fsdp_config.fsdp_size=3", "trainer.n_gpus_per_node=8"], "divide the 8 ranks"),
        ([f"{ACTOR}.fsdp_config.fsdp_size=0"], "a whole number of at least 1"),
        ([f"{REF}.fsdp_config.fsdp_size=8", f"{ACTOR}.use_kl_loss=True"], "in the actor's engine"),
        (
            [f"{ACTOR}.fsdp_config.mixed_precision.reduce_dtype=bf16", f"{MODEL}.lora_rank=8"],
            "sums gradients in float32",
        ),
        ([f"{ACTOR}.fsdp_config.mixed_precision.reduce_dtype=fp16"], "expected fp32 or bf16"),
    ],
)
def test_what_no_engine_honours_is_refused(words, said):
    (refused,) = migrate([*BASE, *words]).refused
    assert said in str(refused)


PROFILE = ("global_profiler.tool=torch", "global_profiler.steps=[2,3]")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["global_profiler.tool=nsys"], "nsys is started from outside"),
        ([f"{ACTOR}.profiler.all_ranks=True"], "give trainer.n_gpus_per_node"),
        ([f"{ACTOR}.profiler.tool_config.torch.contents=[stack]"], "some of cpu, cuda, memory"),
        ([f"{ACTOR}.profiler.tool_config.torch.discrete=True"], "is one trace"),
    ],
)
def test_profiles_that_are_not_there(words, said):
    refused = migrate([*BASE, *PROFILE, f"{ACTOR}.profiler.enable=True", *words]).refused
    assert said in str(refused[0])


def test_a_profile_without_a_model_or_steps_is_none_as_in_verl():
    assert migrate([*BASE, *PROFILE]).config().runtime.profile is None
    words = [PROFILE[0], f"{ACTOR}.profiler.enable=True"]
    found = migrate([*BASE, *words])
    assert found.config().runtime.profile is None


def test_trackers_are_offline_and_only_those_that_are_named():
    found = migrate([*BASE, "trainer.logger=[console,wandb]", "trainer.project_name=letters"])
    metrics = found.config().metrics
    assert (metrics.wandb.project, metrics.mlflow, metrics.tensorboard) == ("letters", None, False)
    assert "verl_hpc sync RUN" in found.notes["trainer.logger"]
    silent = migrate(BASE)
    assert silent.config().metrics.wandb is None
    assert "[console, wandb]" in silent.notes["trainer.logger"]


@pytest.mark.parametrize("strategy", ["nonsense", "deepspeed"])
def test_a_references_engine_that_is_not_here_is_refused(strategy):
    key = f"{REF}.strategy"
    refused = migrate([*BASE, f"{ACTOR}.use_kl_loss=True", f"{key}={strategy}"]).refused
    assert [one.key for one in refused] == [key]


@pytest.mark.parametrize("size", ["0", "x", "null"])
@pytest.mark.parametrize(
    ("key", "ours"),
    [
        (f"{ACTOR}.megatron.tensor_model_parallel_size", "tensor_parallel"),
        (f"{ACTOR}.ulysses_sequence_parallel_size", "context_parallel"),
    ],
)
def test_a_layout_of_no_ranks_is_an_error_beside_the_number_of_ranks(key, ours, size):
    found = migrate([*BASE, f"{key}={size}", "trainer.n_gpus_per_node=2"])
    if ours == "tensor_parallel" and size == "null":
        assert found.config().parallel.tensor_parallel == 1
        return
    with pytest.raises(ConfigError, match=f"parallel.{ours}"):
        found.config()
