"""What the Python names make of arguments: kinds of them that are taken, and refusals."""

import json
import math
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import verl_hpc
from tests.unit.api.test_data import write
from verl_hpc.data.order import Position
from verl_hpc.errors import ConfigError, DataError, FlowError, ModelError, RewardError
from verl_hpc.models import get_actor_critic
from verl_hpc.tutorial_names import ELSEWHERE

IDS = [[1], [1, 2]]


class Remote(torch.nn.Module):
    """A model elsewhere: it has no parameters."""

    def generate(self, input_ids, **kwargs):
        return input_ids


class Numbers(verl_hpc.PromptSource):
    def rows(self):
        return ({"prompt": f"s{number}"} for number in range(20))


class Nothing(verl_hpc.PromptSource):
    def rows(self):
        return None


class Nameless(verl_hpc.RewardNode):
    def __init__(self):
        pass

    def score(self, batch):
        return []


class Bare:
    """A provider without a position."""

    read = staticmethod(Numbers().read)


MADE = [
    ("DataProvider", {"data_path": []}, ConfigError, "data_path = "),
    ("DataProvider", {"storage_options": {"key": "k"}}, DataError, "storage_options are of URLs"),
    ("DataProvider", {"num_workers": 1.5}, ConfigError, "num_workers = 1.5"),
    ("DataProvider", {"prefetch_factor": 0}, ConfigError, "prefetch_factor = 0; .*equal to 1"),
    ("DataProvider", {"num_worker": 1}, ConfigError, "did you mean num_workers"),
    ("DataProvider", {"collate_fn": list}, ConfigError, "collate_fn .*DynamicBatchSampler.*Collat"),
    ("DataProvider", {"use_mmap": True}, ConfigError, "use_mmap .* holds no file whole"),
    ("get_dataloader", {"task_weights": [1, 2]}, ConfigError, "task_weights = "),
    ("get_dataloader", {"batch_size": 0}, ConfigError, "batch_size = 0"),
    ("get_dataloader", {"task_weights": {"mth": 1}}, DataError, "mth: 0 of mth.parquet and mth.js"),
    ("get_actor_critic", {"model_name": None}, ConfigError, "model_name = None; .*string"),
    ("get_actor_critic", {"model_name": "gpt2"}, ModelError, "no such directory.*fetch ORG/NAME"),
    ("get_actor_critic", {"device_map": "meta"}, ConfigError, "no such device"),
    ("HfModelAdapter", {"device": "nope"}, ConfigError, "HfModelAdapter: device = 'nope'"),
    ("VLLMActorModel", {"tensor_parallel_size": "2"}, ConfigError, "tensor_parallel_size = '2'"),
    ("vLLMActor", {"llm_engine": None}, ConfigError, "llm_engine is NoneType; expected vllm.LLM"),
    ("vLLMAdapter", {"actor": None}, ConfigError, "actor = None; expected a vLLMActor"),
    ("RolloutNode", {"trainer": None}, ConfigError, "trainer = None; .*PPOTrainer"),
    ("RewardNode", {}, ConfigError, "give reward_fn, or a subclass its own"),
    ("RewardNode", {"reward_fn": len, "weight": math.nan}, ConfigError, "RewardNode: weight = nan"),
    ("ReplayBuffer", {"capacity": 0}, ConfigError, "capacity = 0"),
    ("DataFlow", {"inputs": "prompts"}, ConfigError, "DataFlow: inputs = 'prompts'"),
    ("Operator", {"name": "a", "func": 3}, FlowError, "func is int"),
    ("ActorModel", {"hf_model": 3}, ModelError, "ActorModel: hf_model is int; expected"),
    ("CriticModel", {"hf_model": None}, ModelError, "hf_model is NoneType, which has no dec"),
    ("PPORoleUpdater", {"model": None}, ModelError, "PPORoleUpdater: model is NoneType; expected"),
    ("PPORoleUpdater", {"overlap_comm": "banana"}, ConfigError, "overlap_comm = 'banana'"),
    ("RolloutManager", {"actor": None}, ModelError, "RolloutManager: actor is NoneType; expected"),
    ("RolloutManager", {"actor": Remote()}, ModelError, "actor: Remote has no parameters"),
    ("RolloutManager", {"tokenizer": None}, ConfigError, "RolloutManager: tokenizer is needed"),
    ("RolloutManager", {"temperature": math.nan}, ConfigError, "temperature = nan"),
    ("RolloutManager", {"num_samples": 0}, ConfigError, "num_samples = 0"),
    ("register_reward", {"function": None}, ConfigError, "function = None; .*callable"),
    ("register_reward", {"function": lambda a, b: 0.0}, RewardError, "has no name to be known by"),
    ("PPOTrainer", {"actor_model": Remote()}, ModelError, "actor_model: Remote has no parameters"),
    ("PPOTrainer", {"actor_model": 3}, ModelError, "actor_model is int"),
    ("PPOTrainer", {"tokenizer": None}, ConfigError, "tokenizer is needed"),
    ("PPOTrainer", {"tokenizer": "tiny"}, ConfigError, "tokenizer is 'tiny'; expected that of the"),
    ("PPOTrainer", {"config": "ppo.yaml"}, ConfigError, "PPOTrainer: config = 'ppo.yaml'"),
    ("PPOTrainer", {"namespace": "a/b"}, ConfigError, "PPOTrainer: namespace = 'a/b'"),
    ("PPOTrainer", {"data_provider": [1]}, ConfigError, "data_provider = .*expected a DataP"),
    ("PPOTrainer", {"strategy": {"actor": 1}}, ConfigError, "strategy = .*docs/placements.md"),
    ("PPOTrainer", {"criticmodel": None}, ConfigError, "did you mean critic_model"),
    ("PPOTrainer", {"critic_model": torch.nn.Linear}, ConfigError, "critic_model = <class.*Module"),
    ("PPOTrainer", {"config": {"reward_ema": 0.9}}, ConfigError, "reward_ema is not there: .*smoo"),
    ("PPOTrainer", {"config": {"batch_size": "auto"}}, ConfigError, "= auto.*verl_hpc plan"),
    ("PPOTrainer", {"config": {"compile_mode": "x"}}, ConfigError, "parallel.fsdp.compile"),
    ("PPOTrainer", {"config": {"kl_coeff": 0.1}}, ConfigError, "kl_coeff.*did you mean kl_coef"),
    ("PPOTrainer", {"config": {"lr": -1.0}}, ConfigError, "lr = -1.0"),
    ("PPOTrainer", {"config": {"adv_estimator": "grpo"}}, ConfigError, "num_samples"),
    ("PPOTrainer", {"config": {"adv_estimator": "gae"}}, ConfigError, "gae: needs a critic_model"),
    ("PPOTrainer", {"config": {"adv_estimator": "remax"}}, ConfigError, "needs greedy"),
    ("PPOTrainer", {"config": {"adv_estimator": "grqo"}}, ConfigError, "did you mean grpo"),
    ("PPOTrainer", {"config": {"gamma": 0.9}}, ConfigError, "has no gamma and no lam"),
    ("PPOTrainer", {"reward_fn": "exact_mach"}, RewardError, "did you mean exact_match"),
    ("PPOTrainer", {"reward_fn": 7}, ConfigError, "reward_fn = 7"),
    ("PPOTrainer", {"reward_fn": lambda a, b, c: 0.0}, RewardError, "cannot be called"),
    ("DynamicBatchSampler", {"lengths": [1]}, DataError, "1 numbers, and the dataset has 2 rows"),
    ("DynamicBatchSampler", {"max_tokens_per_batch": -5}, ConfigError, "max_tokens_per_batch = -5"),
    (
        "DynamicBatchSampler",
        {"dataset": ["hello"]},
        DataError,
        "row 0 is str, not a sequence of to",
    ),
    ("DynamicBatchSampler", {"dataset": [[[1, 2], [3, 4]]]}, DataError, "row 0 is list"),
    (
        "DynamicBatchSampler",
        {"dataset": [torch.ones(2, 3)]},
        DataError,
        r"Tensor of shape \(2, 3\)",
    ),
    (
        "DynamicBatchSampler",
        {"dataset": [torch.tensor(3)]},
        DataError,
        r"Tensor of shape \(\), not",
    ),
    ("DynamicBatchSampler", {"dataset": iter(IDS)}, ConfigError, r"expected rows .*len\(\)"),
    (
        "DynamicBatchSampler",
        {"dataset": [{"input_ids": None}]},
        DataError,
        "row 0 is NoneType, not",
    ),
    (
        "DynamicBatchSampler",
        {"dataset": [{"prompt": "a"}]},
        DataError,
        "has prompt and no input_ids",
    ),
    (
        "DynamicBatchSampler",
        {"lengths": [1, -2]},
        DataError,
        r"lengths = \[1, -2\]; expected a whole",
    ),
    ("DynamicBatchSampler", {"lengths": 5}, DataError, "lengths = 5; expected"),
]


def test_what_cannot_be_made_is_named(hf_model, tokenizer, rows, tasks):
    model, actor = hf_model.config._name_or_path, verl_hpc.ActorModel(hf_model)
    usual = {
        "DataProvider": {"data_path": rows, "file_format": "jsonl"},
        "get_dataloader": {"dataset_path": tasks, "task_weights": {"a": 1}, "batch_size": 4},
        "get_actor_critic": {"model_name": model},
        "HfModelAdapter": {"model_name": model},
        "VLLMActorModel": {"model_name": model},
        "PPORoleUpdater": {"model": hf_model, "tokenizer": tokenizer},
        "RolloutManager": {"actor": actor, "tokenizer": tokenizer},
        "PPOTrainer": {"actor_model": actor, "tokenizer": tokenizer},
        "DynamicBatchSampler": {"dataset": IDS, "max_tokens_per_batch": 9},
    }
    for name, given, error, words in MADE:
        with pytest.raises(error, match=words):
            getattr(verl_hpc, name)(**usual.get(name, {}) | given)
    with pytest.raises(ConfigError, match="actor_model is in float64"):
        verl_hpc.PPOTrainer(hf_model.double(), None, tokenizer)


CALLS = [
    (lambda t, p: p.read(0), ConfigError, "read: count = 0; .*greater than or equal to 1"),
    (lambda t, p: p.read(np.float64(4)), ConfigError, "read: count = "),
    (lambda t, p: p.load_state_dict({"epch": 0}), DataError, "expected what state_dict"),
    (
        lambda t, p: p.load_state_dict({"epoch": 0, "offset": "8"}),
        ConfigError,
        r"state\['offset'\]",
    ),
    (lambda t, p: p.seek(Position(0, 10)), DataError, "row 10 of epoch 0, and the data set has 10"),
    (lambda t, p: p.seek(3), ConfigError, "seek: position = 3; expected a position, such as Posit"),
    (lambda t, p: p.seek(Position(0, -1)), ConfigError, "expected a position, such as Position"),
    (
        lambda t, p: Numbers().seek(None),
        ConfigError,
        "Source.seek: position = None; expected a pos",
    ),
    (
        lambda t, p: Nothing().read(1),
        DataError,
        r"Nothing: rows\(\) gave None; expected an iterator",
    ),
    (lambda t, p: verl_hpc.ReplayBuffer().mix([1], [1.0]), ConfigError, r"mix: batch = \[1\]"),
    (
        lambda t, p: verl_hpc.DataFlow().add("a", lambda: 1).compile().run(z=1),
        FlowError,
        "no input 'z'",
    ),
    (
        lambda t, p: verl_hpc.DataFlow().add_operator(Nameless()),
        FlowError,
        r"no name; call super\(",
    ),
    (lambda t, p: t.train(-1), ConfigError, r"PPOTrainer.train: num_steps = -1; .*equal to 0"),
    (lambda t, p: t.train(1), ConfigError, "data_provider is needed"),
    (lambda t, p: t.save_checkpoint(None), ConfigError, "save_checkpoint: path = None"),
    (lambda t, p: t.save_checkpoint("x", "yes"), ConfigError, "save_optimizer = 'yes'"),
    (lambda t, p: t.rewards(None), ConfigError, "rewards: batch = None; .*Batch"),
    (lambda t, p: t.update(None, None), ConfigError, "update: batch = None; .*Batch"),
    (lambda t, p: t.add_metrics_exporter(None), ConfigError, "NoneType has no write"),
    (lambda t, p: t.step([[5], [5] * 20]), DataError, "20 tokens, max_prompt_length = 9; shorten"),
    (lambda t, p: t.step([[1]], references=[1, 2]), DataError, "references has 2 rows"),
    (lambda t, p: t.step("abc"), DataError, "input_ids is a text"),
    (lambda t, p: t.step([]), DataError, "no prompts"),
    (lambda t, p: t.step([[0, 0]]), DataError, "no tokens but padding"),
    (lambda t, p: t.step(None), DataError, "input_ids is NoneType"),
    (lambda t, p: t.step([[99999]]), DataError, "prompt 0 has 99999 in the place of a token; expe"),
    (lambda t, p: t.step([[-3, 5]]), DataError, "prompt 0 has -3"),
    (lambda t, p: t.step(torch.ones(1, 2)), DataError, "prompt 0 has 1.0"),
    (lambda t, p: t.step([[[1, 2]]]), DataError, r"prompt 0 has \[1, 2\] in the place of a token"),
    (lambda t, p: t.step([[1], "text"]), DataError, "a row of input_ids is str"),
    (lambda t, p: t.step({"ids": [[1]]}), DataError, "a mapping without input_ids, but with ids"),
    (lambda t, p: t.step([[1, 2]], [[0.0, -1e9]]), DataError, "mask has -1000000000.0; expected 1"),
    (lambda t, p: t.step([[1, 2]], [[1]]), DataError, "has 2 tokens, and its mask 1"),
]


def test_what_cannot_be_done_is_named(make_trainer, rows):
    trainer = make_trainer(kl_coef=0.0, max_prompt_length=9)
    for call, error, words in CALLS:
        with pytest.raises(error, match=words):
            call(trainer, verl_hpc.DataProvider(rows, "jsonl"))
    assert trainer.global_step == 0
    trainer.data_provider = Bare()
    with pytest.raises(ConfigError, match=r"data_provider: Bare has no seek\(position\)"):
        trainer.load_checkpoint("steps")


def test_numbers_of_numpy_and_torch_are_numbers(make_trainer, rows, tasks):
    given = {"num_samples": np.int64(2), "lr": np.float32(0.5), "seed": np.int32(3)}
    config = make_trainer(**given).config
    assert (config.num_samples, config.lr, config.seed) == (2, 0.5, 3)
    provider = verl_hpc.DataProvider(rows, "jsonl")
    assert len(provider.read(np.int64(4))) == 4
    provider.load_state_dict({"epoch": np.int64(0), "offset": np.int32(8)})
    assert json.dumps(provider.state_dict()) == '{"epoch": 0, "offset": 8}'
    loader = verl_hpc.get_dataloader(tasks, {"a": np.float64(1), "b": 1}, 4)
    assert all(type(weight) is float for weight in loader.weights.values())
    for lengths in (torch.tensor([1, 2]), np.array([1, 2]), (np.int64(1), 2)):
        assert verl_hpc.DynamicBatchSampler(IDS, 9, lengths).lengths == [1, 2]
    dataset = [{"input_ids": torch.ones(1, length)} for length in (5, 6)]
    assert verl_hpc.DynamicBatchSampler(dataset, 10).lengths == [5, 6]


def test_a_closed_provider_does_not_go_on(rows):
    provider = verl_hpc.DataProvider(rows, "jsonl")
    provider.close()
    with pytest.raises(DataError, match="closed"):
        provider.read(1)


def test_a_resumed_trainer_goes_on_behind_the_rows_it_has_had(make_trainer, tmp_path):
    given = {"rollout_batch_size": 4, "kl_coef": 0.0, "max_response_length": 2}
    first = make_trainer(data_provider=Numbers(), **given)
    first.train(2)
    first.save_checkpoint(tmp_path / "steps", save_optimizer=True, save_training_state=True)
    again = make_trainer(data_provider=Numbers(), **given)
    assert again.load_checkpoint(tmp_path / "steps") == 2
    assert [problem.prompt for problem in again.data_provider.read(2)] == ["s8", "s9"]


@pytest.mark.parametrize("name", ["StreamingDataset", "collate_fn", "Trainer"])
def test_names_that_are_elsewhere(name):
    for package in ("verl_hpc", "verl_hpc.data"):
        with pytest.raises(
            ImportError, match=f"no attribute '{name}': {re.escape(ELSEWHERE[name])}"
        ):
            exec(f"from {package} import {name}")
        assert not hasattr(sys.modules[package], name)


@pytest.fixture
def rows(tmp_path):
    return write(tmp_path / "rows.jsonl")


@pytest.fixture
def tasks(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.jsonl")
    return tmp_path


def test_a_manager_answers_a_batch_of_a_provider(hf_model, tokenizer, rows):
    manager = verl_hpc.RolloutManager(verl_hpc.ActorModel(hf_model), tokenizer)
    found = manager.generate(verl_hpc.DataProvider(rows, "jsonl").read(2))
    assert [(r.prompt, r.reference) for r in found] == [("p0", "a0"), ("p1", "a1")]


def test_the_directory_of_a_namespace_is_understood(make_trainer, tmp_path, prompts):
    trainer = make_trainer(namespace="search-rl")
    trainer.step(prompts)
    trainer.save_checkpoint(tmp_path, save_optimizer=True, save_training_state=True)
    assert trainer.load_checkpoint(tmp_path / "search-rl") == 1


def test_functions_of_python_chain():
    flow = verl_hpc.DataFlow().add("a", lambda: [3, 4]).add("b", sorted).add("c", len)
    assert flow.compile().run()["c"] == 2
    assert verl_hpc.DataFlow().add("a", lambda: [3, 4]).add("b", sum).compile().run()["b"] == 7
    with pytest.raises(FlowError, match="does not know the parameters of <class 'str'>"):
        flow.add("d", str).compile()


def test_texts_and_rows_of_a_provider_are_prompts_of_a_step(make_trainer, rows, tokenizer):
    trainer = make_trainer()
    texts = trainer.rollout(["one", "two"])
    assert [r.prompt_ids for r in texts] == [tuple(tokenizer.encode(t)) for t in ("one", "two")]
    (batch, *_) = verl_hpc.DataProvider(rows, "jsonl", batch_size=2)
    found = trainer.rollout(batch)
    assert [r.problem.ground_truth for r in found] == ["a0", "a1"]
    assert trainer.step(batch) and trainer.global_step == 1


def test_a_language_model_is_wrapped_as_a_critic(hf_model, tokenizer, prompts):
    trainer = verl_hpc.PPOTrainer(hf_model, hf_model, tokenizer, {"max_response_length": 4})
    assert isinstance(trainer.critic_model, verl_hpc.CriticModel)
    assert "critic/vf_loss" in trainer.step(prompts)


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


@pytest.mark.parametrize(
    ("family", "needs"),
    [
        ("qwen", "its publisher's own Python code.* Qwen2 and newer are mapped"),  # Qwen-7B
        ("qwen2_5_vl", "images in prompts: a processor's column"),  # Qwen2.5-VL
    ],
)
def test_a_model_that_is_no_language_model_of_transformers(family, needs, tmp_path, monkeypatch):
    """The model lies in the cache under its name."""
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


def test_a_module_that_is_no_critic_is_refused_before_a_step(hf_model, tokenizer):
    words = r"critic_model: Linear has no forward\(input_ids, attention_mask\).*CriticModel"
    with pytest.raises(ModelError, match=words):
        verl_hpc.PPOTrainer(hf_model, torch.nn.Linear(3, 1), tokenizer)

    class Alone(verl_hpc.ActorModel):
        def forward(self, input_ids):
            return self.hf_model(input_ids)

    with pytest.raises(ModelError, match="actor_model: Alone has no forward"):
        verl_hpc.PPOTrainer(Alone(hf_model), None, tokenizer)


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
