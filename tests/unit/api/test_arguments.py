"""What a wrong argument of the Python surface is answered with."""

import json
import math
import queue
import shutil
import sqlite3
import sys

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import verl_hpc
from tests.unit.api.test_data import write
from verl_hpc.api.sources import DatabaseSource, PromptSource
from verl_hpc.data.order import Position
from verl_hpc.errors import ConfigError, DataError, FlowError, ModelError
from verl_hpc.metrics.exporter import MetricsExporter
from verl_hpc.models import get_actor_critic
from verl_hpc.tutorial_names import ELSEWHERE

IDS = [[1], [1, 2]]
BEYOND = {"epoch": 0, "offset": 10}


@pytest.fixture
def rows(tmp_path):
    return write(tmp_path / "rows.jsonl")


@pytest.fixture
def tasks(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.jsonl")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"data_path": []}, DataError, "name at least one file"),
        ({"storage_options": {"key": "k"}}, DataError, "storage_options are of URLs"),
        ({"num_workers": "2"}, ConfigError, "DataProvider: num_workers = '2'"),
        ({"num_workers": 1.5}, ConfigError, "num_workers = 1.5"),
        ({"num_worker": 1}, ConfigError, "did you mean num_workers"),
    ],
)
def test_of_a_provider(rows, given, error, words):
    with pytest.raises(error, match=words):
        verl_hpc.DataProvider(**{"data_path": rows, "file_format": "jsonl", **given})


def test_of_a_provider_that_reads(rows):
    provider = verl_hpc.DataProvider(rows, "jsonl")
    for count in (0, -1, "4", True, 4.0, np.float64(4)):
        with pytest.raises(DataError, match=r"read: .* rows; expected at least 1"):
            provider.read(count)
    for state in ({"epch": 0}, {"epoch": 0, "offset": "8"}, None):
        with pytest.raises(DataError, match="expected what state_dict"):
            provider.load_state_dict(state)
    assert len(provider.read(np.int64(4))) == 4
    assert json.dumps(provider.state_dict()) == '{"epoch": 0, "offset": 4}'
    provider.load_state_dict({"epoch": np.int64(0), "offset": np.int32(8)})
    assert json.dumps(provider.state_dict()) == '{"epoch": 0, "offset": 8}'
    provider.close()
    with pytest.raises(DataError, match="closed"):
        provider.read(1)


def test_a_position_beyond_the_rows(rows):
    provider = verl_hpc.DataProvider(rows, "jsonl")
    for go in (lambda: provider.seek(Position(0, 10)), lambda: provider.load_state_dict(BEYOND)):
        with pytest.raises(DataError, match="row 10 of epoch 0, and the data set has 10 rows"):
            go()
    assert provider.position == Position()


def test_weights_and_a_state_of_another_kind(tasks):
    loader = verl_hpc.get_dataloader(tasks, {"a": np.float64(1), "b": 1}, 4)
    assert all(type(weight) is float for weight in loader.weights.values())
    for weights in (None, {"a": "x", "b": 1}, {3: 1}, [1, 2]):
        with pytest.raises(ConfigError, match=r"TaskDataLoader.set_weights: weights"):
            loader.set_weights(weights)
    with pytest.raises(ConfigError, match="TaskDataLoader.load_state_dict: state = None"):
        loader.load_state_dict(None)


def test_a_source_whose_rows_are_none():
    class Nothing(PromptSource):
        def rows(self):
            return None

    with pytest.raises(DataError, match=r"Nothing: rows\(\) gave None; expected an iterator of"):
        Nothing().read(1)


def test_of_a_replay_buffer(make_trainer):
    buffer, batch = verl_hpc.ReplayBuffer(), make_trainer().rollout(["one"])
    for call, words in (
        (lambda: buffer.add(None), "ReplayBuffer.add: batch = None"),
        (lambda: buffer.mix([1], [1.0]), r"ReplayBuffer.mix: batch = \[1\]"),
        (lambda: buffer.sample("2"), "ReplayBuffer.sample: count = '2'"),
        (lambda: buffer.sample(-1), "ReplayBuffer.sample: count = -1"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()
    assert len(buffer.mix(batch, [1.0])) == 1 and len(buffer.sample(np.int64(3))) == 1


def test_an_actor_without_parameters(tokenizer):
    class Remote(torch.nn.Module):
        def generate(self, input_ids, **kwargs):
            return input_ids

    words = "Remote has no parameters"
    with pytest.raises(ModelError, match=f"RolloutManager: actor: {words}"):
        verl_hpc.RolloutManager(Remote(), tokenizer)
    with pytest.raises(ModelError, match=f"actor_model: {words}"):
        verl_hpc.PPOTrainer(Remote(), None, tokenizer)


def test_a_manager_answers_a_batch_of_a_provider(hf_model, tokenizer, rows):
    manager = verl_hpc.RolloutManager(verl_hpc.ActorModel(hf_model), tokenizer)
    found = manager.generate(verl_hpc.DataProvider(rows, "jsonl").read(2))
    assert [(r.prompt, r.reference) for r in found] == [("p0", "a0"), ("p1", "a1")]


def test_a_prompt_that_is_too_long_is_told_python_s_setting(make_trainer):
    trainer = make_trainer(max_prompt_length=2)
    with pytest.raises(DataError, match="prompt 1 .* 3 tokens, max_prompt_length = 2; shorten"):
        trainer.step([[5], [5, 6, 7]])
    assert trainer.global_step == 0


@pytest.mark.parametrize("position", [3, None, (0, 3), Position(0, -1), Position(0.5, 1)])
@pytest.mark.parametrize("name", ["DataProvider", "Numbers", "TaskDataLoader"])
def test_a_position_is_one(rows, tasks, name, position):
    sources = {
        "DataProvider": lambda: verl_hpc.DataProvider(rows, "jsonl"),
        "Numbers": Numbers,
        "TaskDataLoader": lambda: verl_hpc.get_dataloader(tasks, {"a": 1}, 4),
    }
    source = sources[name]()
    with pytest.raises(DataError, match=rf"^{name}.seek: .*expected a position, such as Posi"):
        source.seek(position)
    assert source.position == Position()


@pytest.mark.parametrize(
    ("weights", "size", "error", "words"),
    [
        ([1, 2], 4, ConfigError, "task_weights = "),
        ({"a": 1}, "4", ConfigError, "batch_size = '4'"),
        ({"a": 1}, 0, DataError, "batch_size = 0"),
    ],
)
def test_of_a_loader_of_tasks(tasks, weights, size, error, words):
    with pytest.raises(error, match=words):
        verl_hpc.data.get_dataloader(tasks, weights, size)


def test_a_loader_of_other_tasks_does_not_go_on(tasks):
    state = verl_hpc.data.get_dataloader(tasks, {"a": 1}, 4).state_dict()
    loader = verl_hpc.data.get_dataloader(tasks, {"a": 1, "b": 1}, 4)
    with pytest.raises(DataError, match="of the tasks a, and this loader has a, b"):
        loader.load_state_dict(state)
    with pytest.raises(DataError, match="expected what state_dict"):
        loader.load_state_dict({"tasks": {}})


@pytest.mark.parametrize(
    ("dataset", "settings", "error", "words"),
    [
        (IDS, {"lengths": [1]}, DataError, "1 numbers, and the dataset has 2 rows"),
        (IDS, {"max_tokens_per_batch": "9"}, ConfigError, "max_tokens_per_batch = '9'"),
        ([], {"max_tokens_per_batch": -5}, DataError, "max_tokens_per_batch = -5"),
        ([{"input_ids": "hello"}], {}, DataError, "row 0 is str, not a sequence of token ids"),
        (["hello"], {}, DataError, "row 0 is str"),
        ([[[1, 2], [3, 4]]], {}, DataError, "row 0 is list"),
        ([torch.ones(2, 3)], {}, DataError, r"Tensor of shape \(2, 3\)"),
        (iter(IDS), {}, DataError, "no len"),
        ([1, 2, 3], {}, DataError, "row 0 is int, not a sequence of token ids"),
        ([[1], None], {}, DataError, "row 1 is NoneType, not"),
        ([{"input_ids": 5}], {}, DataError, "row 0 is int, not"),
        ([{"input_ids": None}], {}, DataError, "row 0 is NoneType, not"),
        ([torch.tensor(3)], {}, DataError, r"Tensor of shape \(\), not"),
        (IDS, {"lengths": [1, -2]}, DataError, r"lengths = \[1, -2\]; expected a whole number"),
        (IDS, {"lengths": [1, None]}, DataError, r"lengths = \[1, None\]; expected"),
        (IDS, {"lengths": [1.5, 2]}, DataError, r"lengths = \[1.5, 2\]; expected"),
        (IDS, {"lengths": 5}, DataError, "lengths = 5; expected"),
    ],
)
def test_of_a_sampler(dataset, settings, error, words):
    with pytest.raises(error, match=words):
        verl_hpc.DynamicBatchSampler(dataset, **{"max_tokens_per_batch": 9, **settings})


def test_rows_as_tokenizers_return_tensors_have_their_length():
    dataset = [{"input_ids": torch.ones(1, length)} for length in (5, 6)]
    assert verl_hpc.DynamicBatchSampler(dataset, 10).lengths == [5, 6]
    assert len(verl_hpc.DynamicBatchSampler(dataset, 10)) == 2


@pytest.mark.parametrize("lengths", [torch.tensor([1, 2]), np.array([1, 2]), (np.int64(1), 2)])
def test_lengths_of_torch_and_numpy_are_numbers(lengths):
    assert verl_hpc.DynamicBatchSampler(IDS, 9, lengths).lengths == [1, 2]


def test_of_a_database():
    with pytest.raises(DataError, match="OperationalError: no such table.*SELECT"):
        DatabaseSource(sqlite3.connect(":memory:"), "SELECT * FROM nowhere").read(1)


@pytest.mark.parametrize(
    ("source", "given", "words"),
    [
        ("QueueSource", (None,), "rows_queue = None; expected a queue of"),
        ("QueueSource", (queue.Queue(), "60"), "timeout_s = '60'"),
        ("MessageSource", (None,), "consumer = None; Input should be iterable"),
        ("MessageSource", ([], 3), "decode = 3; Input should be callable"),
        ("DatabaseSource", (None, "SELECT 1"), "connection = None; expected a connection of"),
        ("DatabaseSource", (sqlite3.connect(":memory:"), None), "query = None"),
    ],
)
def test_of_a_source(source, given, words):
    with pytest.raises(ConfigError, match=f"^{source}: {words}"):
        getattr(verl_hpc, source)(*given)


def test_a_queue_is_not_waited_for_backwards_or_for_ever():
    for seconds in (-1.0, math.inf, math.nan):
        with pytest.raises(DataError, match="timeout_s = .*; expected at least 0"):
            verl_hpc.QueueSource(queue.Queue(), seconds)


class Numbers(PromptSource):
    def rows(self):
        for number in range(20):
            yield {"prompt": f"s{number}"}


@pytest.mark.parametrize("kind", ["tasks", "source"])
def test_a_resumed_trainer_goes_on_behind_the_rows_it_has_had(tasks, make_trainer, tmp_path, kind):
    def provider():
        if kind == "source":
            return Numbers()
        return verl_hpc.data.get_dataloader(tasks, {"a": 1, "b": 2}, 4)

    first = make_trainer(data_provider=provider(), rollout_batch_size=4, kl_coef=0.0)
    first.train(2)
    first.save_checkpoint(tmp_path / "steps", save_optimizer=True, save_training_state=True)
    expected = [problem.prompt for problem in first.data_provider.read(4)]
    again = make_trainer(data_provider=provider(), rollout_batch_size=4, kl_coef=0.0)
    assert again.load_checkpoint(tmp_path / "steps") == 2
    assert [problem.prompt for problem in again.data_provider.read(4)] == expected


def test_a_provider_without_a_position_is_told_when_training_resumes(make_trainer, tmp_path):
    class Bare:
        def __init__(self):
            self.source = Numbers()

        def read(self, count):
            return self.source.read(count)

    trainer = make_trainer(data_provider=Bare(), rollout_batch_size=2, kl_coef=0.0)
    trainer.train(1)
    trainer.save_checkpoint(tmp_path / "steps", save_optimizer=True, save_training_state=True)
    with pytest.raises(ConfigError, match=r"data_provider: Bare has no seek\(position\)"):
        trainer.load_checkpoint(tmp_path / "steps")


def test_the_directory_of_a_namespace_is_understood(make_trainer, tmp_path, prompts):
    trainer = make_trainer(namespace="search-rl")
    trainer.step(prompts)
    trainer.save_checkpoint(tmp_path, save_optimizer=True, save_training_state=True)
    assert trainer.load_checkpoint(tmp_path / "search-rl") == 1


def test_of_flows():
    flow = verl_hpc.DataFlow().add("a", lambda: 1)
    with pytest.raises(FlowError, match="no input 'zzz'"):
        flow.compile().run(zzz=1)
    for arguments, words in ((("a", 3), "func is int"), ((3, len), "name = 3")):
        with pytest.raises(FlowError, match=words):
            verl_hpc.Operator(*arguments)

    class Nameless(verl_hpc.RewardNode):
        def __init__(self):
            pass

        def score(self, batch):
            return []

    with pytest.raises(FlowError, match=r"Nameless has no name; call super\(\)"):
        verl_hpc.DataFlow().add_operator(Nameless())
    for weight in ("x", math.nan, math.inf):
        with pytest.raises(ConfigError, match=f"RewardNode: weight = '?{weight}"):
            verl_hpc.RewardNode(len, weight=weight)
    with pytest.raises(ConfigError, match="DataFlow: inputs = 'prompts'"):
        verl_hpc.DataFlow(inputs="prompts")


def test_functions_of_python_chain():
    flow = verl_hpc.DataFlow().add("a", lambda: [3, 4]).add("b", sorted).add("c", len)
    assert flow.compile().run()["c"] == 2
    assert verl_hpc.DataFlow().add("a", lambda: [3, 4]).add("b", sum).compile().run()["b"] == 7
    with pytest.raises(FlowError, match="does not know the parameters of <class 'str'>"):
        flow.add("d", str).compile()


def test_of_meshes(hf_model):
    with pytest.raises(ConfigError, match="tp_mesh is str; expected DeviceMesh"):
        verl_hpc.ActorModel(hf_model).set_device_mesh("tp")
    for group in (torch.ones(2), np.ones(2), "tp", 2):
        with pytest.raises(ConfigError, match=r"DeviceMesh\('tensor'\): group is .*; expected a"):
            verl_hpc.DeviceMesh("tensor", group).size  # noqa: B018
    with pytest.raises(ConfigError, match="DeviceMesh: kind = 3; choose tensor"):
        verl_hpc.DeviceMesh(3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", "x"), ("temperature", float("nan")), ("seed", "a"), ("num_samples", 0)],
)
def test_of_a_manager(hf_model, tokenizer, name, value):
    with pytest.raises(ConfigError, match=f"RolloutManager: {name} = "):
        verl_hpc.RolloutManager(verl_hpc.ActorModel(hf_model), tokenizer, **{name: value})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "nowhere to write"),
        ({"pushgateway_url": 5}, "pushgateway_url = 5"),
        ({"port": 99999999}, "port = 99999999; expected 0 to 65535"),
        ({"port": -1}, "port = -1; expected 0 to 65535"),
        ({"pushgateway_url": "not a url"}, "pushgateway_url = 'not a url'; expected an address"),
        ({"pushgateway_url": "http://m:x"}, "pushgateway_url = 'http://m:x'"),
        ({"pushgateway_url": "m:9091", "job_name": ""}, "job_name is empty"),
    ],
)
def test_of_an_exporter(given, words):
    with pytest.raises(ConfigError, match=f"MetricsExporter: .*{words}"):
        MetricsExporter(**given)


@pytest.mark.parametrize("device", [0, "", "cuda:0", "meta"])
def test_a_device_that_is_not_there(model_dir, device):
    if device != "meta" and torch.cuda.is_available():
        pytest.skip("this device is there")
    with pytest.raises(ConfigError, match="no such device|string"):
        get_actor_critic(str(model_dir), device_map=device)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tokenizer": None}, "tokenizer is needed"),
        ({"tokenizer": "tiny"}, "tokenizer is 'tiny'; expected that of the actor's model"),
        ({"config": "ppo.yaml"}, "PPOTrainer: config = 'ppo.yaml'"),
        ({"config": ["lr"]}, "PPOTrainer: config"),
        ({"namespace": 3}, "PPOTrainer: namespace = 3"),
        ({"data_provider": [1, 2]}, "data_provider is list; expected a DataProvider"),
        ({"strategy": {"actor": {"gpu_ids": [0]}}}, "strategy = .*docs/placements.md"),
        ({"criticmodel": None}, "did you mean critic_model"),
        ({"critic_model": torch.nn.Linear}, "critic_model = <class.*instance of Module"),
        ({"config": {"reward_ema": 0.9}}, "reward_ema is not there: .*reward_smoothing"),
        ({"config": {"batch_size": "auto"}}, "batch_size = auto.*verl_hpc plan"),
        ({"config": {"compile_mode": "reduce-overhead"}}, "parallel.fsdp.compile"),
    ],
)
def test_of_a_trainer(hf_model, tokenizer, given, words):
    arguments = {"actor_model": verl_hpc.ActorModel(hf_model), "tokenizer": tokenizer}
    with pytest.raises(ConfigError, match=words):
        verl_hpc.PPOTrainer(**arguments | given)


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        (None, "input_ids is NoneType"),
        (5, "input_ids is int"),
        ([[99999]], "prompt 0 has 99999 in the place of a token; expected whole numbers below"),
        ([[-3, 5]], "prompt 0 has -3"),
        ([[1.0, 5]], "prompt 0 has 1.0"),
        (torch.ones(1, 2), "prompt 0 has 1.0"),
        (torch.ones(1, 2, 3, dtype=torch.long), r"the shape \(1, 2, 3\)"),
        ([[1], "text"], "a prompt is str"),
        ({"ids": [[1]]}, "a mapping without input_ids, but with ids"),
        ({1: [[1]]}, "a mapping without input_ids, but with 1"),
        ({}, "a mapping without input_ids, but with nothing"),
        (
            {"input_ids": [[1, 2]], "attention_mask": [[0.0, -1e9]]},
            "mask has -1000000000.0; expected 1",
        ),
        ({"input_ids": [[1, 2]], "attention_mask": [[1]]}, "has 2 tokens, and its mask 1"),
    ],
)
def test_of_a_step(make_trainer, prompts, words):
    with pytest.raises(DataError, match=words):
        make_trainer().step(prompts)


def test_texts_and_rows_of_a_provider_are_prompts_of_a_step(make_trainer, rows, tokenizer):
    trainer = make_trainer()
    texts = trainer.rollout(["one", "two"])
    assert [r.prompt_ids for r in texts] == [tuple(tokenizer.encode(t)) for t in ("one", "two")]
    (batch, *_) = verl_hpc.DataProvider(rows, "jsonl", batch_size=2)
    found = trainer.rollout(batch)
    assert [r.problem.ground_truth for r in found] == ["a0", "a1"]
    assert trainer.step(batch) and trainer.global_step == 1


def test_settings_of_numpy_are_numbers(make_trainer):
    given = {"num_samples": np.int64(2), "lr": np.float32(0.5), "seed": np.int32(3)}
    config = make_trainer(**given).config
    assert (config.num_samples, config.lr, config.seed) == (2, 0.5, 3)


@pytest.mark.parametrize("name", ["DataProvider", "get_dataloader"])
def test_a_collate_fn_is_told_what_serves_instead(rows, tasks, name):
    given = {"DataProvider": (rows, "jsonl"), "get_dataloader": (tasks, {"a": 1}, 4)}
    with pytest.raises(ConfigError, match=f"{name}: collate_fn .*DynamicBatchSampler.*Collator"):
        getattr(verl_hpc, name)(*given[name], collate_fn=list)


@pytest.mark.parametrize("name", ["memory_map", "mmap", "use_mmap"])
def test_memory_mapping_of_data_is_told_how_files_are_read(rows, name):
    with pytest.raises(ConfigError, match=f"DataProvider: {name} .* holds no file whole"):
        verl_hpc.DataProvider(rows, "jsonl", **{name: True})


def test_a_language_model_is_wrapped_as_a_critic(hf_model, tokenizer, prompts):
    trainer = verl_hpc.PPOTrainer(hf_model, hf_model, tokenizer, {"max_response_length": 4})
    assert isinstance(trainer.critic_model, verl_hpc.CriticModel)
    assert "critic/vf_loss" in trainer.step(prompts)


def test_of_an_updater(hf_model, tokenizer):
    with pytest.raises(ConfigError, match="PPORoleUpdater: overlap_comm = 'banana'"):
        verl_hpc.PPORoleUpdater(hf_model, overlap_comm="banana", tokenizer=tokenizer)
    with pytest.raises(ConfigError, match="PPORoleUpdater: strategy = .*placement"):
        verl_hpc.PPORoleUpdater(hf_model, tokenizer=tokenizer, strategy={})


@pytest.mark.parametrize("name", ["ORG/NAME", "ORG/NAME@main", "modelscope:ORG/NAME"])
def test_a_model_that_no_cache_has(name, tmp_path, monkeypatch):
    """Nothing is downloaded: what does that is named."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path))
    for make in (verl_hpc.HfModelAdapter, get_actor_critic, verl_hpc.VLLMActorModel):
        with pytest.raises(ModelError, match=f"python -m verl_hpc fetch {name}"):
            make(name)


def test_a_model_of_the_cache(model_dir, tmp_path, monkeypatch):
    snapshot = tmp_path / "models--ORG--NAME/snapshots/abc"
    shutil.copytree(model_dir, snapshot)
    (tmp_path / "models--ORG--NAME/refs").mkdir()
    (tmp_path / "models--ORG--NAME/refs/main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    actor, _ = get_actor_critic("ORG/NAME@main")
    assert actor.config._name_or_path == str(snapshot)


def test_a_bare_name_is_not_looked_for_on_the_network(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for make in (verl_hpc.HfModelAdapter, verl_hpc.VLLMActorModel):
        with pytest.raises(ModelError, match="name = 'gpt2': no such directory.*fetch ORG/NAME"):
            make("gpt2")


@pytest.mark.parametrize(
    ("family", "needs"),
    [
        ("qwen", "its publisher's own Python code.* Qwen2 and newer are mapped"),  # Qwen-7B
        ("qwen2_5_vl", "images in prompts: a processor's column"),  # Qwen2.5-VL
    ],
)
def test_a_model_that_is_no_language_model_of_transformers(family, needs, tmp_path, monkeypatch):
    """By name, of the cache."""
    snapshot = tmp_path / "models--Qwen--NAME/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"model_type": family}))
    (snapshot / "model.safetensors").touch()
    (tmp_path / "models--Qwen--NAME/refs").mkdir()
    (tmp_path / "models--Qwen--NAME/refs/main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for make in (verl_hpc.HfModelAdapter, get_actor_critic):
        with pytest.raises(ModelError, match=f"{family} is not trained here: it needs {needs}"):
            make("Qwen/NAME")


def test_heads_that_vllm_has_no_kernel_for(model_dir):
    if torch.cuda.is_available():
        pytest.skip("a GPU's attention takes them")
    with pytest.raises(ConfigError, match="heads have 8 elements.*HfModelAdapter"):
        verl_hpc.VLLMActorModel(str(model_dir))


@pytest.mark.parametrize("name", ["StreamingDataset", "collate_fn", "MetricsExporter"])
def test_names_that_are_elsewhere(name):
    for package in ("verl_hpc", "verl_hpc.data"):
        with pytest.raises(ImportError, match=f"no attribute '{name}': .*{ELSEWHERE[name][-9:]}"):
            exec(f"from {package} import {name}")
        assert not hasattr(sys.modules[package], name)
    with pytest.raises(AttributeError, match=f"no attribute '{name}': "):
        getattr(verl_hpc, name)
    with pytest.raises(AttributeError, match=f"no attribute '{name}': "):
        getattr(verl_hpc.data, name)


def test_training_goes_on_with_the_reference_that_it_began_with(make_trainer, prompts, tmp_path):
    trainer = make_trainer()
    trainer.step(prompts)
    trainer.save_checkpoint(tmp_path, save_optimizer=True, save_training_state=True)
    model = make_trainer().actor_model.hf_model
    torch.nn.init.normal_(next(model.parameters()))
    words = "KL reference.*models that the first step began with.*verl_hpc export --step .*/step_"
    with pytest.raises(ConfigError, match=words) as caught:
        make_trainer(actor_model=verl_hpc.ActorModel(model)).load_checkpoint(tmp_path)
    assert "force" not in str(caught.value) and "another name" not in str(caught.value)


def test_a_step_of_other_roles_is_not_gone_on_from(make_trainer, prompts, tmp_path):
    trainer = make_trainer(critic=True)
    trainer.step(prompts)
    trainer.save_checkpoint(tmp_path, save_optimizer=True, save_training_state=True)
    with pytest.raises(ConfigError, match="roles that are trained = actor, and was actor, critic"):
        make_trainer().load_checkpoint(tmp_path)


def test_an_element_type_that_nothing_is_trained_in(hf_model, tokenizer):
    with pytest.raises(ConfigError, match="actor_model is in float64"):
        verl_hpc.PPOTrainer(hf_model.double(), None, tokenizer)


def test_a_module_that_is_no_critic_is_refused_before_a_step(hf_model, tokenizer):
    words = r"critic_model: Linear has no forward\(input_ids, attention_mask\).*CriticModel"
    with pytest.raises(ModelError, match=words):
        verl_hpc.PPOTrainer(hf_model, torch.nn.Linear(3, 1), tokenizer)

    class Alone(verl_hpc.ActorModel):
        def forward(self, input_ids):
            return self.hf_model(input_ids)

    with pytest.raises(ModelError, match="actor_model: Alone has no forward"):
        verl_hpc.PPOTrainer(Alone(hf_model), None, tokenizer)


def test_a_negative_number_of_steps(make_trainer):
    with pytest.raises(ConfigError, match=r"PPOTrainer.train: num_steps = -1; .*equal to 0"):
        make_trainer(data_provider=Numbers()).train(-1)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_prompt_beyond_the_positions_of_the_model(tokenizer, wrapped):
    """gpt2's are learned, so that torch would say no more than an index that is out of range."""
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes))
    actor = verl_hpc.ActorModel(model) if wrapped else model
    trainer = verl_hpc.PPOTrainer(actor, None, tokenizer, {"max_response_length": 6})
    assert "loss" in trainer.step([[5] * 10])
    words = "a prompt of 11 tokens, with max_response_length = 6, is above the 16 positions of the"
    with pytest.raises(DataError, match=words):
        trainer.step([[5], [5] * 11])
