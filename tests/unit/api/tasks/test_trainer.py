"""Several tasks on one actor: each learns, weights follow, guards go back, everything resumes."""

import itertools
import json
import math

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

import verl_hpc
from tests.generated import generated
from tests.unit.api.tasks.conftest import ANIMALS, LEARNING, REWARDS
from verl_hpc.api.settings import PPOConfig
from verl_hpc.api.tasks.task import divided
from verl_hpc.data.problem import Problem
from verl_hpc.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    ModelError,
    RewardError,
    TrainingError,
)
from verl_hpc.metrics.exporter import MetricsExporter
from verl_hpc.metrics.log import read_metrics


def reward(metrics, name):
    return metrics[f"task/{name}/reward"]


def everything(trainer):
    """Weights, heads, optimizers and small state, by name."""
    found = {}
    for name, role in trainer._checkpoints._run.roles.items():
        found |= {f"{name}/{k}": v.clone() for k, v in role.training.weights.items()}
        found |= {f"{name}/{k}": v.clone() for k, v in role.training.optimizer_tensors().items()}
        found[f"{name}/steps"] = torch.tensor(role.training.counters()["num_steps"])
    return found | {k: torch.tensor(v) for k, v in trainer._state().items()}


def differ(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def test_three_types_learn_side_by_side(make_trainer, noisy_dir):
    seen = []

    def likes_emus(response, reference):
        seen.append(response)
        return float(response == "emu")

    trainer = make_trainer(
        path=noisy_dir,
        rewards=REWARDS | {"pick": likes_emus},
        weights={"vowels": 1, "letters": 2, "pick": 1},
        batch_size=16,
        **LEARNING,
    )
    metrics = trainer.train(30)
    assert trainer.global_step == 30
    for name, gain in {"vowels": 0.3, "letters": 0.4, "pick": 0.1}.items():
        first, last = (
            [reward(m, name) for m in part if f"task/{name}/reward" in m]
            for part in (metrics[:5], metrics[-5:])
        )
        assert sum(last) / len(last) > sum(first) / len(first) + gain, (name, first, last)
    assert len(seen) > 100 and set(seen) <= set(ANIMALS)
    assert all(m["task/pick/response_length/clip_ratio"] == 0 for m in metrics[-5:])
    lines = read_metrics(trainer.directory)
    assert [line["step"] for line in lines] == list(range(1, 31))
    assert all(m[f"task/{n}/tokens_per_second"] > 0 for m in metrics[-1:] for n in trainer.tasks)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_ratio_is_one_at_the_first_update_of_a_restricted_policy(make_trainer, temperature):
    trainer = make_trainer(("pick",), pick={"temperature": temperature, "kl_coef": 0.0})
    (found,) = trainer.train(1)
    # The update's own pass against what the rollout says: they are of the same distribution.
    assert found["task/pick/training/rollout_log_probs_diff_max"] < 1e-5
    assert found["task/pick/actor/ppo_kl"] == pytest.approx(0, abs=1e-6)
    assert found["task/pick/actor/pg_clipfrac"] == 0
    assert abs(found["task/pick/actor/entropy"]) <= math.log(len(ANIMALS))
    assert found["task/pick/actor/grad_norm"] > 0


def test_a_ratio_of_the_whole_distribution_would_not_be_one(make_trainer):
    trainer = make_trainer(("pick",))
    task = trainer.tasks["pick"]
    engine, rollout = task.run.roles["actor"].trained, task.run.rollout.here
    prompt = trainer.models.tokenizer.encode("pick: ")
    from verl_hpc.engines.protocol import OutputOptions
    from verl_hpc.rollout.protocol import Sampling

    (response,) = generated(rollout, [prompt], Sampling(6), [1])
    tokens = torch.tensor([*prompt, *response.tokens])
    allowed = torch.zeros(len(tokens) - 1, response.allowed.shape[1], dtype=torch.uint8)
    allowed[len(prompt) - 1 :] = torch.from_numpy(response.allowed)
    sampled = torch.tensor(response.log_probs)

    def ratios(wanted):
        (outputs,) = engine.infer([tokens], wanted=wanted)
        return (outputs.log_probs[len(prompt) - 1 :] - sampled).exp()

    assert torch.allclose(
        ratios(OutputOptions(allowed=[allowed])), torch.ones(len(sampled)), atol=1e-5
    )
    assert ratios(OutputOptions()).min() < 0.1
    # Before the response nothing is restricted.
    (whole,), (part,) = (
        engine.infer([tokens], wanted=w)
        for w in (OutputOptions(), OutputOptions(allowed=[allowed]))
    )
    before = slice(0, len(prompt) - 1)
    assert torch.equal(whole.log_probs[before], part.log_probs[before])
    assert torch.isfinite(part.entropy).all()


def test_weights_follow_what_improves_and_resume(make_trainer):
    calls = itertools.count()

    def improves(response, reference):
        return next(calls) / 100

    def fresh():
        made = make_trainer(
            ("vowels", "pick"),
            rewards={"vowels": improves, "pick": lambda response, reference: 1.0},
            evaluate_every=2,
        )
        made.set_task_scheduler(
            verl_hpc.DynamicTaskWeightScheduler({"vowels": 1, "pick": 3}, "reward", 1, 0.2)
        )
        return made

    trainer = fresh()
    assert trainer.task_weights == {"vowels": 0.25, "pick": 0.75}
    metrics = trainer.train(3)
    assert metrics[0]["task/pick/weight"] == metrics[2]["task/pick/weight"] == 0.75
    trainer.save_checkpoint()
    metrics = trainer.train(7)
    weights = [m["task/pick/weight"] for m in metrics]
    assert weights == sorted(weights, reverse=True) and 0.2 < weights[-1] < 0.3
    assert trainer.task_weights["pick"] + trainer.task_weights["vowels"] == pytest.approx(1)
    again = fresh()
    assert again.load_checkpoint() == 3
    assert again.task_weights["pick"] == 0.75
    assert [m["task/pick/weight"] for m in again.train(7)] == weights


def test_a_task_without_prompts_in_a_step_is_passed_over(make_trainer):
    trainer = make_trainer(batch_size=1, evaluate_every=1)
    trainer.set_task_scheduler(
        verl_hpc.DynamicTaskWeightScheduler(dict.fromkeys(trainer.tasks, 1), patience=1)
    )
    found = trainer.train(4)
    taken = [sum(f"task/{name}/reward" in m for name in trainer.tasks) for m in found]
    assert taken == [1] * 4 and all("task/pick/weight" in m for m in found)


def test_a_guard_goes_back_to_the_step_before_and_says_so(make_trainer):
    scores = {"now": 1.0}
    told = []

    def fresh():
        return make_trainer(
            ("vowels",),
            rewards={"vowels": lambda response, reference: scores["now"]},
            checkpoint_every=2,
            vowels={"lr": 1e-2},
        )

    trainer = fresh()
    guard = verl_hpc.SafetyGuard(
        ["task/vowels/reward"], 0.5, 3, alert=lambda rollback: bool(told.append(rollback))
    )
    trainer.add_guard(guard)
    trainer.train(4)
    at_four, prompts = everything(trainer), trainer._loader.state_dict()
    assert all("guard/rollback_to" not in metrics for metrics in trainer.train(3))
    scores["now"] = 0.25
    (report,) = trainer.train(1)
    assert report["guard/rollback_from"] == 8 and report["guard/rollback_to"] == 4
    assert report["guard/num_rollbacks"] == 1
    assert trainer.global_step == 4 and trainer._loader.state_dict() == prompts
    changed = {"vowels_actor/lr", "watch/rollbacks", "watch/lr_factor"}
    assert set(differ(at_four, everything(trainer))) == changed
    (rollback,) = told
    assert rollback.to_step == 4 and rollback.fall.value == 0.25 and rollback.seed == 1
    # What is newer is put away, and what goes on is other than before.
    names = sorted(p.name for p in trainer._checkpoints.root.iterdir() if p.is_dir())
    assert "rolled_back_step_00000006" in names and "step_00000006" not in names
    scores["now"] = 1.0
    later = trainer.train(1)[0]
    assert later["task/vowels/actor/lr"] == pytest.approx(5e-3)
    # A job that is killed behind a rollback goes on from it.
    again = fresh()
    assert again.load_checkpoint() == 4
    assert again._guards.num_rollbacks == 1 and again.tasks["vowels"].seed == 1


def test_an_early_fall_goes_back_to_the_oldest_step(make_trainer):
    scores = iter([1.0, 0.0])
    reward = next(scores)
    trainer = make_trainer(
        ("vowels",), rewards={"vowels": lambda response, reference: reward}, checkpoint_every=1
    )
    trainer.add_guard(verl_hpc.SafetyGuard("task/vowels/reward", 0.5, 50))
    trainer.train(1)
    reward = next(scores)
    found = trainer.train(1)[0]
    assert found["guard/rollback_from"] == 2 and found["guard/rollback_to"] == 0


def test_an_alert_may_end_training_and_falls_are_counted(make_trainer):
    values = iter([1.0, 0.0] * 40)
    trainer = make_trainer(
        ("vowels",),
        rewards={"vowels": lambda response, reference: now[0]},
        checkpoint_every=1,
        vowels={"lr": 1e-3},
    )
    now = [next(values)]
    trainer.add_metrics_exporter(lambda step, metrics: now.__setitem__(0, next(values)))
    guard = verl_hpc.SafetyGuard(
        "task/vowels/reward", 0.5, 1, alert=lambda rollback: False, max_rollbacks=1
    )
    trainer.add_guard(guard)
    assert len(trainer.train(10)) == 2 and trainer.global_step == 1
    with pytest.raises(TrainingError, match="after 1 rollbacks"):
        trainer.train(10)


@pytest.mark.parametrize("what", ["reward", "logits", "gradient"])
def test_what_is_not_finite_is_a_fall_of_its_task(make_trainer, what):
    told, scores, hooks = [], {"now": 1.0}, []
    trainer = make_trainer(
        ("vowels", "pick"),
        rewards={"vowels": lambda response, reference: scores["now"], "pick": REWARDS["pick"]},
        checkpoint_every=1,
        batch_size=6,
    )

    def alert(rollback):
        while hooks:
            hooks.pop().remove()
        return bool(told.append(rollback))  # ends training there

    guard = verl_hpc.SafetyGuard("task/vowels/reward", 0.5, 1, alert, max_rollbacks=2)
    trainer.add_guard(guard)
    trainer.train(2)
    before = everything(trainer)

    def spoil():
        first = next(trainer.models.actor.parameters())
        if what == "reward":
            scores["now"] = math.nan
        elif what == "logits":
            first.data.fill_(math.nan)
        else:
            hooks.append(first.register_hook(lambda gradient: gradient * math.nan))

    spoil()
    (metrics,) = trainer.train(1)
    assert metrics["guard/rollback_from"] == 3 and metrics["guard/rollback_to"] == 2
    assert "task/vowels/reward" not in metrics
    changed = {"vowels_actor/lr", "pick_actor/lr", "watch/rollbacks", "watch/lr_factor"}
    assert set(differ(before, everything(trainer))) == changed
    (rollback,) = told
    assert math.isnan(rollback.fall.value) and rollback.fall.best == 1.0
    assert "task/vowels/reward at step 3 is not finite" in str(rollback)
    words = {"reward": "the score is nan", "gradient": "the gradient's norm is nan"}
    assert words.get(what, what) in str(rollback)
    scores["now"] = 1.0
    assert trainer.train(1)[0]["task/vowels/reward"] == 1.0
    spoil()
    assert trainer.train(1)[0]["guard/rollback_to"] == 3
    spoil()
    with pytest.raises(TrainingError, match="is not finite.* after 2 rollbacks"):
        trainer.train(1)


def test_a_reward_that_is_not_finite_ends_training_that_no_guard_watches(make_trainer):
    trainer = make_trainer(
        ("vowels", "pick"),
        rewards={"vowels": lambda response, reference: math.nan, "pick": REWARDS["pick"]},
        checkpoint_every=1,
    )
    trainer.add_guard(verl_hpc.SafetyGuard("task/pick/reward", 0.5, 1))
    with pytest.raises(RewardError, match="the score is nan"):
        trainer.train(1)


def test_a_reward_function_that_fails_is_no_fall(make_trainer):
    trainer = make_trainer(
        ("vowels",), rewards={"vowels": lambda response, reference: 1 / 0}, checkpoint_every=1
    )
    trainer.add_guard(verl_hpc.SafetyGuard("task/vowels/reward", 0.5, 1))
    with pytest.raises(RewardError, match="ZeroDivisionError"):
        trainer.train(1)


def test_heads_and_optimizers_resume_bit_for_bit(make_trainer):
    def fresh():
        return make_trainer(
            critic=True, dtype="bfloat16", vowels={"value_head": "actor"}, batch_size=9
        )

    trainer = fresh()
    trainer.train(3)
    saved = everything(trainer)
    assert {"vowels_critic/value_head.weight", "pick_critic/value_head.weight"} <= saved.keys()
    heads = [saved[f"{name}_critic/value_head.weight"] for name in ("vowels", "pick")]
    assert all(head.any() for head in heads) and not torch.equal(*heads)
    # The head on the actor learns alone, the one on the critic with its decoder.
    assert "vowels_critic/exp_avg/value_head.weight" in saved
    assert not [n for n in saved if n.startswith("vowels_critic/exp_avg/model")]
    assert [n for n in saved if n.startswith("pick_critic/exp_avg/model")]
    trainer.save_checkpoint()
    expected = trainer.train(2)
    again = fresh()
    assert again.load_checkpoint() == 3
    assert differ(saved, everything(again)) == []
    metrics = again.train(2)

    def plain(rows):
        clocks = ("second", "timing_s/", "cpu_s/", "energy_j/")
        return [
            {k: v for k, v in row.items() if not any(word in k for word in clocks)} for row in rows
        ]

    assert plain(metrics) == plain(expected)
    assert differ(everything(trainer), everything(again)) == []


def test_a_checkpoint_of_several_tasks_is_a_model(make_trainer, tmp_path):
    from transformers import AutoModelForCausalLM

    from verl_hpc.checkpoint.convert import export_step

    trainer = make_trainer(("vowels", "pick"))
    trainer.train(1)
    export_step(trainer.save_checkpoint(), tmp_path / "hf", None, int(1e9), None)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").state_dict()
    mine = trainer.models.actor.hf_model.state_dict()
    assert all(torch.equal(mine[name], value) for name, value in loaded.items())


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"rewards": {"vowel": None}}, ConfigError, r"rewards\['vowel'\]: .* did you mean vowels"),
        ({"constraints": {"vowels": ["a"]}}, ConfigError, "only constrained_decoding has a constr"),
        ({"pick": {"constraint": None}}, ConfigError, "tasks.pick.constraint: is needed"),
        ({"constraints": {"pick": ["a"]}}, ConfigError, "tasks.pick.constraint: is given twice"),
        ({"vowels": {"value_head": "critic"}}, ConfigError, "value_head = critic: the trainer has"),
        ({"vowels": {"device": "cuda:99"}}, ConfigError, "device = cuda:99: this process has no"),
        ({"vowels": {"device": "cpu"}}, ConfigError, "has neither; leave it out"),
        ({"vowels": {"adv_estimator": "gae"}}, ConfigError, "tasks.vowels: .*gae: needs a crit"),
        ({"vowels": {"temperature": 500.0}}, ConfigError, "tasks.vowels: (?s:.*)temperature = 500"),
        ({"vowels": {"reward_function": "exact_match"}}, ConfigError, "rewards has one for vowels"),
        ({"vowels": {"reward_model": "/no"}, "rewards": {}}, ModelError, "no such directory"),
        ({"pick": {"constraint": {"regex": "["}}}, ConfigError, r"constraint.regex = '\['"),
        ({"pick": {"constraint": {"function": "f.py:g"}}}, ConfigError, "no file f.py"),
    ],
)
def test_what_cannot_be_honoured_is_named(make_trainer, changes, error, words):
    with pytest.raises(error, match=words):
        make_trainer(**changes)


def test_steps_of_another_training_are_never_gone_back_to(make_trainer):
    first = make_trainer(("vowels",), checkpoint_every=1)
    first.train(3)
    other = make_trainer(("vowels",), checkpoint_every=1)
    with pytest.raises(ConfigError, match="has steps up to step_00000003; call load_checkpoint"):
        other.train(1)
    assert other.load_checkpoint(first.directory / "checkpoints/step_00000001") == 1
    other.train(1)
    names = sorted(path.name for path in other._checkpoints.root.glob("*step_0*"))
    away = [f"rolled_back_step_0000000{step}" for step in (2, 3)]
    assert names == [*away, "step_00000001", "step_00000002"]


def test_a_step_of_other_tasks_is_refused(make_trainer):
    make_trainer(("vowels",)).save_checkpoint()
    with pytest.raises(CheckpointError, match="differ in pick_actor, pick_actor.optimizer"):
        make_trainer(("vowels", "pick")).load_checkpoint()


def test_a_step_with_another_reference_is_refused(make_trainer, noisy_dir):
    task = "letters"
    make_trainer((task, "pick"), pick={"kl_coef": 0.0}).save_checkpoint()
    other = make_trainer((task, "pick"), path=noisy_dir, pick={"kl_coef": 0.0})
    before = everything(other)
    with pytest.raises(ConfigError, match=r"of another trainer.*model\.path.*KL reference"):
        other.load_checkpoint()
    assert differ(before, everything(other)) == []
    # Without a KL divergence the first weights decide nothing.
    free = {name: {"kl_coef": 0.0} for name in (task, "pick")}
    assert make_trainer((task, "pick"), path=noisy_dir, **free).load_checkpoint() == 0


def test_tasks_yaml_and_a_reward_model(model_dir, rows, tmp_path, monkeypatch):
    from verl_hpc.testing.tiny import make_tiny_model

    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2}
    judge = make_tiny_model(tmp_path / "judge", "qwen2", head="score", **sizes)
    text = f"""
    output_dir: {tmp_path}
    tasks:
      vowels: {{type: ppo, reward_model: {judge}, device: cpu, max_response_length: 3}}
      pick: {{type: constrained_decoding, constraint: {{regex: "[0-9]{{2}}x"}}}}
    """
    (tmp_path / "tasks.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    actor = verl_hpc.HfModelAdapter(str(model_dir))
    loader = verl_hpc.get_dataloader(rows, {"vowels": 1.0, "pick": 1.0}, 8)
    trainer = verl_hpc.Trainer(actor, None, loader)
    metrics = trainer.train(1)[0]
    scores = [metrics[f"task/vowels/critic/score/{kind}"] for kind in ("min", "max")]
    assert scores[0] < scores[1]
    assert json.dumps(metrics)


def test_prometheus_is_told_of_each_task(make_trainer, tmp_path):
    trainer = make_trainer(batch_size=12, namespace="search-rl")
    exporter = MetricsExporter(textfile=tmp_path / "tasks.prom")
    trainer.add_metrics_exporter(exporter)
    (metrics,) = trainer.train(1)
    families = text_string_to_metric_families((tmp_path / "tasks.prom").read_text())
    samples = {
        (sample.name, sample.labels.get("task")): sample.value
        for family in families
        for sample in family.samples
    }
    for name, task in trainer.tasks.items():
        assert samples["verl_reward_count", name] == len(task.scores) > 0
        for histogram in ("rollout_latency", "step_latency"):
            assert samples[f"verl_{histogram}_seconds_count", name] == 1
        mean = metrics[f"task/{name}/critic/score/mean"]
        assert samples["verl_critic_score_mean", name] == mean
        assert metrics[f"task/{name}/timing_s/rollout"] < metrics[f"task/{name}/seconds"]
    assert ("verl_kl_divergence", "vowels") in samples and samples["verl_step", None] == 1
    assert 'verl_step{run="search-rl"}' in (tmp_path / "tasks.prom").read_text()


@pytest.mark.parametrize(
    ("prompts", "batch_size", "sizes"),
    [(7, 5, 7), (8, 5, 4), (8, 4, 4), (12, 5, 6), (5, 2, 5), (3, 8, 3), (1, 1, 1), (11, 4, 11)],
)
def test_a_step_has_about_as_many_optimizer_steps_as_asked_for(prompts, batch_size, sizes):
    config = PPOConfig(batch_size=batch_size)
    assert divided(config, prompts).batch_size == sizes


def test_a_scheduler_that_a_step_was_saved_without(make_trainer):
    make_trainer(("vowels", "pick")).save_checkpoint()
    trainer = make_trainer(("vowels", "pick"))
    scheduler = verl_hpc.DynamicTaskWeightScheduler({"vowels": 1.0, "pick": 1.0})
    trainer.set_task_scheduler(scheduler)
    with pytest.raises(CheckpointError, match="saved without a scheduler"):
        trainer.load_checkpoint()


REFUSALS = [
    (lambda t: t.train("3"), ConfigError, "Trainer.train: num_steps = '3'"),
    (lambda t: t.train(-1), ConfigError, "num_steps = -1; .*greater than or equal to 0"),
    (lambda t: t.step([]), DataError, "no prompts"),
    (lambda t: t.step([Problem(0, "x")]), DataError, "task = None: not in tasks.yaml; tasks: pick"),
    (lambda t: t.load_checkpoint(), CheckpointError, "load_checkpoint: .* has no steps; give"),
    (lambda t: t.add_guard(None), ConfigError, "add_guard: guard = None; .*SafetyGuard"),
    (lambda t: t.add_guard(guard("m")), ConfigError, "m is not of a task; names begin with task/p"),
    (lambda t: t.add_guard(guard(back=3)), ConfigError, "set keep to at least 3"),
    (lambda t: [t.add_guard(t.kept) for _ in "ab"], ConfigError, "SafetyGuard is there already"),
    (
        lambda t: t.set_task_scheduler(verl_hpc.DynamicTaskWeightScheduler({"a": 1})),
        ConfigError,
        "initial_weights has a, and tasks.yaml has pick",
    ),
    (
        lambda t: [t.add_guard(guard("task/pick/rewards")), t.train(1)],
        ConfigError,
        "called task/pick/rewards; did you mean task/pick/rew",
    ),
    (
        lambda t: t.add_metrics_exporter(exported(t)),
        ConfigError,
        "label task.*make another Metrics",
    ),
]


def guard(metric="task/pick/reward", back=1):
    return verl_hpc.SafetyGuard(metric, 0.5, back)


def exported(trainer):
    """An exporter that has written metrics without tasks, as of a PPOTrainer."""
    exporter = MetricsExporter(textfile=trainer.directory.parent / "tasks.prom")
    exporter.write(1, {"actor/loss": 1.0})
    return exporter


def test_calls_that_cannot_be_honoured_are_named(make_trainer):
    trainer = make_trainer(("pick",), checkpoint_every=2, keep=2)
    trainer.kept = guard()
    for call, error, words in REFUSALS:
        with pytest.raises(error, match=words):
            call(trainer)


def test_models_and_loaders_that_cannot_be_honoured_are_named(make_trainer, model_dir, rows):
    def actor():
        return verl_hpc.HfModelAdapter(str(model_dir))

    def critic(**settings):
        return verl_hpc.CriticModel(made.hf_model, **settings)

    made, loader = actor(), verl_hpc.get_dataloader(rows, {"vowels": 1.0}, 4)
    config = {"tasks": {"vowels": {"type": "ppo"}}}
    for given, error, words in (
        ({"dataloader": 3}, ConfigError, "dataloader is int; expected what get_dataloader"),
        (
            {"config_path": {"tasks": {"pick": {"type": "ppo"}}}},
            ConfigError,
            "dataloader has vowels, and tasks.yaml has pick",
        ),
        (
            {"tokenizer": "gpt2"},
            ConfigError,
            "^Trainer: tokenizer is .*; expected that of the actor",
        ),
        ({"actor": Generating()}, ConfigError, "vLLM computes no gradients"),
        (
            {"critic": critic(copy_weights=False)},
            ModelError,
            "critic shares .* with actor.*copy_we",
        ),
        (
            {"critic": critic().requires_grad_(False)},
            ModelError,
            "^critic: CriticModel has no parameters that are tr",
        ),
        ({"namespace": "a/b"}, ConfigError, "Trainer: namespace = 'a/b'"),
    ):
        arguments = {"actor": made, "critic": None, "dataloader": loader, "config_path": config}
        with pytest.raises(error, match=words):
            verl_hpc.Trainer(**arguments | given)


class Generating:
    """An actor as vLLM's are."""

    generates_only = True


def test_the_steps_behind_a_rollback_say_so_even_of_another_process(make_trainer):
    now = [1.0]

    def fresh():
        rewards = {"vowels": lambda response, reference: now[0]}
        made = make_trainer(("vowels",), rewards=rewards, checkpoint_every=1, namespace="n")
        made.add_guard(verl_hpc.SafetyGuard("task/vowels/reward", 0.5, 2, alert=lambda _: False))
        return made

    trainer, exported = fresh(), {}
    trainer.add_metrics_exporter(lambda step, metrics: exported.update(metrics))
    before = trainer.train(3)
    assert all(name.startswith("n/task/vowels/") for name in exported)
    assert trainer.directory.parent.name == "n"
    now[0] = 0.0
    trainer.train(1)
    now[0] = 1.0
    again = fresh()
    assert again.load_checkpoint() == trainer.global_step == 2
    assert "guard/num_rollbacks" not in before[-1]
    assert again.train(1)[0]["guard/num_rollbacks"] == 1.0
