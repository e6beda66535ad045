"""What the Python names make of arguments: kinds of them that are taken, and refusals."""

import json

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import verl_hpc
from tests.unit.api.test_data import write
from tests.unit.sources.hubs import COMMIT, hf_model, hf_repository
from verl_hpc.data.order import Position
from verl_hpc.errors import ConfigError, DataError, FlowError, ModelError, RewardError
from verl_hpc.models import get_actor_critic

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
    ("DataProvider", {"prefetch_factor": 0}, ConfigError, "prefetch_factor = 0; .*equal to 1"),
    ("DataProvider", {"num_worker": 1}, ConfigError, "did you mean num_workers"),
    ("DataProvider", {"collate_fn": list}, ConfigError, "collate_fn .*DynamicBatchSampler.*Collat"),
    ("get_actor_critic", {"model_name": "gpt2"}, ModelError, "no such directory.*fetch ORG/NAME"),
    ("get_actor_critic", {"device_map": "meta"}, ConfigError, "no such device"),
    ("HfModelAdapter", {"device": "nope"}, ConfigError, "HfModelAdapter: device = 'nope'"),
    ("vLLMActor", {"llm_engine": None}, ConfigError, "llm_engine is NoneType; expected vllm.LLM"),
    ("vLLMAdapter", {"actor": None}, ConfigError, "actor = None; expected a vLLMActor"),
    ("RolloutNode", {"trainer": None}, ConfigError, "trainer = None; .*PPOTrainer"),
    ("RewardNode", {}, ConfigError, "give reward_fn, or a subclass its own"),
    ("DataFlow", {"inputs": "prompts"}, ConfigError, "DataFlow: inputs = 'prompts'"),
    ("Operator", {"name": "a", "func": 3}, FlowError, "func is int"),
    ("ActorModel", {"hf_model": 3}, ModelError, "ActorModel: hf_model is int; expected"),
    ("CriticModel", {"hf_model": None}, ModelError, "hf_model is NoneType, which has no dec"),
    ("PPORoleUpdater", {"model": None}, ModelError, "PPORoleUpdater: model is NoneType; expected"),
    ("RolloutManager", {"actor": Remote()}, ModelError, "actor: Remote has no parameters"),
    ("register_reward", {"function": lambda a, b: 0.0}, RewardError, "has no name to be known by"),
    ("PPOTrainer", {"tokenizer": None}, ConfigError, "tokenizer is needed"),
    ("PPOTrainer", {"tokenizer": "tiny"}, ConfigError, "tokenizer is 'tiny'; expected that of the"),
    ("PPOTrainer", {"config": "ppo.yaml"}, ConfigError, "PPOTrainer: config = 'ppo.yaml'"),
    ("PPOTrainer", {"namespace": "a/b"}, ConfigError, "PPOTrainer: namespace = 'a/b'"),
    ("PPOTrainer", {"data_provider": [1]}, ConfigError, "data_provider = .*expected a DataP"),
    ("PPOTrainer", {"critic_model": torch.nn.Linear}, ConfigError, "critic_model = <class.*Module"),
    ("PPOTrainer", {"config": {"reward_ema": 0.9}}, ConfigError, "reward_ema is not there: .*smoo"),
    ("PPOTrainer", {"config": {"batch_size": "auto"}}, ConfigError, "= auto.*verl_hpc plan"),
    ("PPOTrainer", {"config": {"kl_coeff": 0.1}}, ConfigError, "kl_coeff.*did you mean kl_coef"),
    ("PPOTrainer", {"config": {"adv_estimator": "grpo"}}, ConfigError, "num_samples"),
    ("PPOTrainer", {"config": {"adv_estimator": "gae"}}, ConfigError, "gae: needs a critic_model"),
    ("PPOTrainer", {"config": {"adv_estimator": "remax"}}, ConfigError, "needs greedy"),
    ("PPOTrainer", {"config": {"adv_estimator": "grqo"}}, ConfigError, "did you mean grpo"),
    ("PPOTrainer", {"config": {"gamma": 0.9}}, ConfigError, "has no gamma and no lam"),
    ("PPOTrainer", {"reward_fn": "exact_mach"}, RewardError, "did you mean exact_match"),
    ("PPOTrainer", {"reward_fn": 7}, ConfigError, "reward_fn = 7"),
    ("PPOTrainer", {"reward_fn": lambda a, b, c: 0.0}, RewardError, "cannot be called"),
    ("DynamicBatchSampler", {"dataset": ["hello"]}, DataError, "row 0 is 'hello', not a sequence"),
    ("DynamicBatchSampler", {"dataset": [torch.ones(2, 3)]}, DataError, "row 0 is .*, not a sequ"),
    ("DynamicBatchSampler", {"dataset": iter(IDS)}, ConfigError, r"expected rows .*len\(\)"),
    ("DynamicBatchSampler", {"dataset": [{"prompt": "a"}]}, DataError, "has prompt and no input_"),
    ("get_actor_critic", {"device_map": {"actor": "cuda:0-3"}}, ConfigError, "placement of a run"),
    ("PPOTrainer", {"config": {"engine.num_gpus": 2}}, ConfigError, "is of runs: .*verl_hpc train"),
    ("PPOTrainer", {"config": {"num_rollout_workers": 8}}, ConfigError, "workers = 8 is of runs"),
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


ONE = verl_hpc.DataFlow().add("a", lambda: 1)
CALLS = [
    (lambda t, p: p.read(0), ConfigError, "read: count = 0; .*greater than or equal to 1"),
    (lambda t, p: p.load_state_dict({"epch": 0}), DataError, "expected what state_dict"),
    (lambda t, p: p.seek(Position(0, 10)), DataError, "row 10 of epoch 0, and the data set has 10"),
    (lambda t, p: Nothing().read(1), DataError, r"Nothing: rows\(\) gave None; expected an iter"),
    (lambda t, p: ONE.compile().run(z=1), FlowError, "no input 'z'"),
    (lambda t, p: ONE.add_operator(Nameless()), FlowError, r"no name; call super\("),
    (lambda t, p: t.train(-1), ConfigError, r"PPOTrainer.train: num_steps = -1; .*equal to 0"),
    (lambda t, p: t.train(1), ConfigError, "data_provider is needed"),
    (lambda t, p: t.save_checkpoint("x", "yes"), ConfigError, "save_optimizer = 'yes'"),
    (lambda t, p: t.rewards(None), ConfigError, "rewards: batch = None; .*Batch"),
    (lambda t, p: t.step([[5], [5] * 20]), DataError, "20 tokens, max_prompt_length = 9; shorten"),
    (lambda t, p: t.step([[1]], references=[1, 2]), DataError, "references has 2 rows"),
    (lambda t, p: t.step("abc"), DataError, "input_ids is a text"),
    (lambda t, p: t.step([]), DataError, "no prompts"),
    (lambda t, p: t.step([[0, 0]]), DataError, "no tokens but padding"),
    (lambda t, p: t.step(None), DataError, "input_ids is NoneType"),
    (lambda t, p: t.step([[99999]]), DataError, "prompt 0 has 99999 in the place of a token; expe"),
    (lambda t, p: t.step([[1], "text"]), DataError, "a row of input_ids is str"),
    (lambda t, p: t.step({"ids": [[1]]}), DataError, "a mapping without input_ids, but with ids"),
    (lambda t, p: t.step([[1, 2]], [[0.0, -1e9]]), DataError, "mask has -1000000000.0; expected 1"),
    (lambda t, p: t.step([[1, 2]], [[1]]), DataError, "has 2 tokens, and its mask 1"),
]


def test_one_of_several_ranks_is_refused_before_anything_is_read(monkeypatch):
    """Hydra (MPICH, and srun with pmi2), Open MPI and srun tell their ranks so."""
    for variable in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "2")
            with pytest.raises(ConfigError, match="^PPOTrainer: this process is one of 2 ranks"):
                verl_hpc.PPOTrainer(None)


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
    dataset = [{"input_ids": torch.ones(1, length)} for length in (5, 6)]
    assert verl_hpc.DynamicBatchSampler(dataset, 10).lengths == [5, 6]


@pytest.fixture
def rows(tmp_path):
    return write(tmp_path / "rows.jsonl")


@pytest.fixture
def tasks(tmp_path):
    return write(tmp_path / "t.jsonl", [{"prompt": "p", "task": name} for name in "abab"])


@pytest.mark.parametrize("name", ["ORG/NAME", "ORG/NAME@main", "modelscope:ORG/NAME"])
def test_a_model_that_no_cache_has(name, tmp_path, monkeypatch):
    """Nothing is downloaded: what does that is named."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path))
    for make in (verl_hpc.HfModelAdapter, get_actor_critic, verl_hpc.VLLMActorModel):
        with pytest.raises(ModelError, match=f"python -m verl_hpc fetch {name}"):
            make(name)


def test_a_model_of_the_cache(model_dir, tmp_path, monkeypatch):
    snapshot = hf_model(tmp_path, "ORG/NAME", COMMIT, model_dir)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    actor, _ = get_actor_critic("ORG/NAME@main")
    assert actor.config._name_or_path == str(snapshot)


@pytest.mark.parametrize(
    ("family", "needs"),
    [
        ("qwen", "its publisher's own Python code.* Qwen2 and newer are supported"),  # Qwen-7B
        ("qwen2_vl", "images in prompts of a family"),  # Qwen2-VL
    ],
)
def test_a_model_that_is_no_language_model_of_transformers(family, needs, tmp_path, monkeypatch):
    """The model lies in the cache under its name."""
    config = json.dumps({"model_type": family}).encode()
    files = {"config.json": config, "model.safetensors": b""}
    hf_repository(tmp_path, "Qwen/NAME", COMMIT, files)
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
