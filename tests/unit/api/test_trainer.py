"""PPO in one process: it learns, resumes bit for bit, and refuses what it cannot honour."""

import pytest
import torch
from transformers import AutoModelForCausalLM

import verl_hpc
from verl_hpc.api.rewards import scorer_of
from verl_hpc.checkpoint.convert import export_step
from verl_hpc.checkpoint.read import Step
from verl_hpc.errors import CheckpointError, ConfigError, ModelError, RewardError
from verl_hpc.metrics import MetricsExporter
from verl_hpc.rewards.request import Request


def weights_of(trainer):
    return {name: p.detach().clone() for name, p in trainer.actor_model.named_parameters()}


@pytest.mark.parametrize("critic", [False, True])
def test_a_small_run_raises_its_reward(make_trainer, prompts, critic):
    trainer = make_trainer(critic, num_samples=2)
    before = weights_of(trainer)
    first = trainer.step(prompts)
    assert first["actor/reward_kl_penalty"] == 0.0  # the policy is its own reference
    metrics = [trainer.step(prompts) for _ in range(15)]
    assert first["critic/score/mean"] < 0.1 < 0.5 < metrics[-1]["critic/score/mean"]
    assert metrics[-1]["actor/reward_kl_penalty"] > 0.1
    assert {r["loss"] for r in metrics[:5]} != {0.0}
    assert any(not torch.equal(before[n], w) for n, w in weights_of(trainer).items())
    assert trainer.global_step == 16
    if critic:
        assert metrics[8]["critic/vf_loss"] > 0


def test_without_a_reward_only_the_penalty_teaches(make_trainer, prompts, hf_model):
    settings = {"kl_coef": 1.0, "lr": 3e-3, "max_response_length": 1, "num_samples": 8}
    trainer = make_trainer(reward_fn=None, **settings)
    torch.manual_seed(0)
    with torch.no_grad():  # away from the reference, which stays what it was
        hf_model.lm_head.weight.add_(torch.randn_like(hf_model.lm_head.weight), alpha=0.5)
    found = [trainer.step(prompts)["actor/reward_kl_penalty"] for _ in range(10)]
    assert found[0] > 2
    assert sum(found[-3:]) / 3 < 0.6 * found[0]


def test_mini_batches_and_epochs_are_optimizer_steps(make_trainer, prompts):
    trainer = make_trainer(batch_size=4, ppo_epochs=2, rollout_batch_size=4)
    trainer.step(prompts)
    assert trainer._run.roles["actor"].trained.counters() == {"num_steps": 8}
    with pytest.raises(ConfigError, match="batch_size = 3 does not divide the 16"):
        make_trainer(batch_size=3).step(prompts)


def test_a_subclass_brings_its_own_forward_and_generate(hf_model, make_trainer, prompts):
    class Own(verl_hpc.ActorModel):
        calls = 0

        def forward(self, input_ids, attention_mask=None):
            return self.hf_model(input_ids, attention_mask=attention_mask).logits

        def generate(self, input_ids, **kwargs):
            Own.calls += 1
            kwargs.pop("return_dict_in_generate")
            return self.hf_model.generate(input_ids, **kwargs)

    trainer = make_trainer(actor_model=Own(hf_model))
    metrics = [trainer.step(prompts) for _ in range(2)]
    assert Own.calls == 2
    assert metrics[1]["training/rollout_log_probs_diff_max"] < 1e-4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_has_float32_masters(model_dir, make_trainer, prompts, dtype):
    trainer = make_trainer(actor_model=verl_hpc.HfModelAdapter(str(model_dir), dtype))
    assert trainer.step(prompts)["critic/score/mean"] >= 0
    tensors = trainer._run.roles["actor"].trained.optimizer_tensors()
    assert {t.dtype for t in tensors.values()} == {torch.float32}
    trainer.step(prompts)


def test_a_resumed_trainer_goes_on_as_if_nothing_had_happened(
    make_trainer, prompts, tmp_path, model_dir
):
    trainer = make_trainer(critic=True, namespace="search-rl")
    trainer.step(prompts)
    path = trainer.save_checkpoint(tmp_path, save_optimizer=True, save_training_state=True)
    assert path == tmp_path / "search-rl" / "step_00000001"
    assert (tmp_path / "search-rl" / "step_1" / "manifest.json").is_file()
    expected = trainer.step(prompts)
    again = make_trainer(
        critic=True, actor_model=verl_hpc.HfModelAdapter(str(model_dir)), namespace="search-rl"
    )
    assert again.load_checkpoint(tmp_path) == 1
    assert again.step(prompts) == expected


def test_rewards_are_measured_against_their_average_which_goes_on_with_a_resumed_trainer(
    make_trainer, prompts, tmp_path, model_dir
):
    def trainer():
        adapter = verl_hpc.HfModelAdapter(str(model_dir))
        return make_trainer(actor_model=adapter, reward_smoothing={"decay": 0.5, "by": "mean"})

    first = trainer()
    steps = [first.step(prompts) for _ in range(2)]
    raw = [step["critic/score/mean"] for step in steps]
    expected = [raw[0], (0.25 * raw[0] + 0.5 * raw[1]) / 0.75]
    assert [step["reward/ema_mean"] for step in steps] == pytest.approx(expected)
    first.save_checkpoint(tmp_path, save_optimizer=True, save_training_state=True)
    again = trainer()
    assert again.load_checkpoint(tmp_path) == 2
    assert again.step(prompts) == first.step(prompts)


def test_a_function_that_fails_is_told_what_it_may_do(make_trainer, prompts):
    trainer = make_trainer(reward_fn=lambda response, reference: 1 / 0)
    words = "ZeroDivisionError: .*mend the function, or let it return 0 for such responses"
    with pytest.raises(RewardError, match=words):
        trainer.step(prompts)


def test_weights_alone_are_a_step_that_nothing_resumes_from(make_trainer, prompts, tmp_path):
    trainer = make_trainer()
    trainer.step(prompts)
    path = trainer.save_checkpoint(tmp_path)
    assert Step(path).components == ["actor"]
    with pytest.raises(CheckpointError, match="has no training state"):
        trainer.load_checkpoint(path)
    with pytest.raises(ConfigError, match="save_training_state without save_optimizer"):
        trainer.save_checkpoint(tmp_path, save_training_state=True)
    with pytest.raises(CheckpointError, match="has no steps"):
        trainer.load_checkpoint(tmp_path / "elsewhere")


def test_a_checkpoint_is_exported_and_loaded_by_transformers(make_trainer, prompts, tmp_path):

    trainer = make_trainer()
    trainer.step(prompts)
    export_step(trainer.save_checkpoint(tmp_path), tmp_path / "hf", None, int(1e9), None)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").state_dict()
    mine = trainer.actor_model.hf_model.state_dict()
    assert all(torch.equal(mine[name], value) for name, value in loaded.items())


def test_exporters_are_told_every_step_and_dropped_where_they_fail(make_trainer, prompts, caplog):
    class Broken:
        def write(self, step, values):
            raise OSError("gone")

    told, trainer = [], make_trainer()
    trainer.add_metrics_exporter(lambda step, metrics: told.append((step, metrics["loss"])))
    trainer.add_metrics_exporter(Broken())
    losses = [trainer.step(prompts)["loss"] for _ in range(2)]
    assert told == [(1, losses[0]), (2, losses[1])]
    assert caplog.text.count("Broken is dropped") == 1
    with pytest.raises(ConfigError, match="has no write"):
        trainer.add_metrics_exporter(object())


def test_accuracy_is_of_text_or_of_mathematics():
    requests = [Request(0, "", "4", {}, said) for said in ("4", "so \\boxed{8/2}", "5")]
    assert [score.value for score in scorer_of("accuracy_reward")(requests)] == [1.0, 1.0, 0.0]


class _Scaled(verl_hpc.ActorModel):
    """With a parameter that has no dimensions."""

    def __init__(self, model):
        super().__init__(model)
        self.scale = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, input_ids, attention_mask=None):
        return self.scale * super().forward(input_ids, attention_mask).logits


def test_a_parameter_without_dimensions_is_of_the_first_weights(model_dir, make_trainer, tmp_path):
    def trainer(scale):
        actor = _Scaled(AutoModelForCausalLM.from_pretrained(model_dir))
        actor.scale.data.fill_(scale)
        return make_trainer(actor_model=actor)

    first = trainer(1.0)
    assert trainer(1.0)._run.fingerprint == first._run.fingerprint
    assert trainer(2.0)._run.fingerprint != first._run.fingerprint
    first.step(["one", "two"])
    assert first.actor_model.scale != 1.0
    told = r"save_checkpoint: scale of actor has no dimensions.*\(1,\)"
    with pytest.raises(ModelError, match=told):
        first.save_checkpoint(tmp_path)


def test_an_exporter_of_a_namespace_is_refused_without_one(make_trainer, tmp_path):
    exporter = MetricsExporter(textfile=tmp_path / "verl.prom")
    make_trainer(namespace="search-rl").add_metrics_exporter(exporter)
    with pytest.raises(ConfigError, match="label run = 'search-rl', and .*make another"):
        make_trainer().add_metrics_exporter(exporter)
    named = MetricsExporter(textfile=tmp_path / "other.prom", run_name="both")
    make_trainer(namespace="search-rl").add_metrics_exporter(named)
    make_trainer().add_metrics_exporter(named)
