"""What a wrong argument of the trainer of several tasks is answered with, and a loader that cannot
be gone on from."""

import itertools

import pytest

import verl_hpc
from verl_hpc.errors import CheckpointError, ConfigError, DataError, ModelError


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: t.train("3"), "Trainer.train: num_steps = '3'"),
        (lambda t: t.train(2.5), "Trainer.train: num_steps = 2.5"),
        (lambda t: t.train(-1), "Trainer.train: num_steps = -1; .*greater than or equal to 0"),
        (lambda t: t.step(None), "Trainer.step: problems = None"),
        (lambda t: t.step([{"task": "pick"}]), "Trainer.step: problems"),
        (lambda t: t.add_guard(None), "Trainer.add_guard: guard = None; .*SafetyGuard"),
        (lambda t: t.set_task_scheduler("x"), "scheduler = 'x'; .*DynamicTaskWeightScheduler"),
        (lambda t: t.load_checkpoint(3), "Trainer.load_checkpoint: path = 3"),
    ],
)
def test_of_methods(make_trainer, call, words):
    with pytest.raises(ConfigError, match=words):
        call(make_trainer(("pick",)))


@pytest.fixture
def trainer_of(model_dir, tmp_path):
    """On a loader, with one task that answers in two tokens."""
    task = {"type": "ppo", "max_response_length": 2}
    config = {"output_dir": str(tmp_path), "checkpoint_every": 1, "tasks": {"a": task}}

    def make(loader, **given):
        actor = verl_hpc.HfModelAdapter(str(model_dir))
        critic = given.pop("critic", lambda model: None)(actor.hf_model)
        return verl_hpc.Trainer(actor, critic, loader, config, **given)

    return make


@pytest.mark.parametrize("tokenizer", ["gpt2", 3])
def test_of_a_tokenizer(trainer_of, tokenizer):
    with pytest.raises(ConfigError, match=r"^Trainer: tokenizer is .*; expected that of the actor"):
        trainer_of([], tokenizer=tokenizer)


def test_a_critic_that_shares_weights_with_the_actor_is_refused(trainer_of):
    with pytest.raises(ModelError, match="critic shares .* with actor.*copy_weights"):
        trainer_of([], critic=lambda model: verl_hpc.CriticModel(model, copy_weights=False))


def test_models_without_anything_to_train_are_refused(trainer_of, model_dir):
    def frozen(model):
        return verl_hpc.CriticModel(model).requires_grad_(False)

    with pytest.raises(ModelError, match="^critic: CriticModel has no parameters that are tr"):
        trainer_of([], critic=frozen)
    actor = verl_hpc.HfModelAdapter(str(model_dir)).requires_grad_(False)
    with pytest.raises(ModelError, match="^actor: HfModelAdapter has no parameters that are tr"):
        verl_hpc.Trainer(actor, None, [], {"tasks": {"a": {"type": "ppo"}}})


def test_a_language_model_is_wrapped_as_a_critic(trainer_of):
    trainer = trainer_of([[{"task": "a", "prompt": "x"}]], critic=lambda model: model)
    assert isinstance(trainer.models.critic, verl_hpc.CriticModel)
    assert "task/a/critic/vf_loss" in trainer.train(1)[0]


@pytest.mark.parametrize(
    "batch",
    [
        {"task": "a", "prompt": "p"},  # a row: its columns would be taken letter by letter
        {"task": ["a", "a"], "prompt": ["x"]},
        {"task": ["a"], "prompt": 3},
        {"task": ["a"], "prompt": ["x"], "extra_info": {"n": [1]}},
    ],
)
def test_columns_that_are_no_rows(trainer_of, batch):
    with pytest.raises(DataError, match="dataloader: batch 1 .* as many values in each column"):
        trainer_of([batch]).train(1)


def test_a_step_that_is_not_there_is_named(trainer_of, tmp_path):
    trainer = trainer_of([[{"task": "a", "prompt": "x"}]])
    for path in (None, tmp_path / "nothing"):
        with pytest.raises(CheckpointError, match="load_checkpoint: .* has no steps; give"):
            trainer.load_checkpoint(path)


def generated():
    return ([{"task": "a", "prompt": f"p{number}"}] for number in itertools.count())


def test_a_generator_cannot_be_gone_back_in(trainer_of):
    trainer = trainer_of(generated())
    words = "dataloader is a generator, which gives each batch once.*give a list"
    with pytest.raises(ConfigError, match=words):
        trainer.add_guard(verl_hpc.SafetyGuard("task/a/reward", 0.5, 1))
    trainer.train(2)
    with pytest.raises(ConfigError, match=words):
        trainer.load_checkpoint()


def test_a_generator_that_has_ended_is_named(trainer_of):
    trainer = trainer_of(iter([[{"task": "a", "prompt": "x"}]]))
    with pytest.raises(ConfigError, match="dataloader is a list_iterator, which gives each batch"):
        trainer.train(2)


def test_a_new_generator_is_gone_on_in(trainer_of):
    trainer_of(generated()).train(2)
    again = trainer_of(generated())
    assert again.load_checkpoint() == 2
    assert again._batches.next()[0].prompt == "p2"


@pytest.mark.parametrize("number", [2**63 + 1, 2**53 + 1])
def test_a_position_that_a_checkpoint_would_round_is_refused(trainer_of, number):
    class Loader(list):
        def state_dict(self):
            return {"seed": number}

    trainer = trainer_of(Loader([[{"task": "a", "prompt": "x"}]]))
    with pytest.raises(DataError, match=f"state_dict has seed = {number}; .*2\\*\\*53"):
        trainer.save_checkpoint()


def test_the_steps_behind_a_rollback_say_so_even_of_another_process(trainer_of):
    rows, now = [[{"task": "a", "prompt": "x"}]], [1.0]

    def fresh():
        made = trainer_of(rows, rewards={"a": lambda response, reference: now[0]})
        made.add_guard(verl_hpc.SafetyGuard("task/a/reward", 0.5, 2, alert=lambda _: False))
        return made

    trainer = fresh()
    before = trainer.train(3)
    now[0] = 0.0
    trainer.train(1)
    now[0] = 1.0
    again = fresh()
    assert again.load_checkpoint() == trainer.global_step == 2
    assert "guard/num_rollbacks" not in before[-1]
    assert again.train(1)[0]["guard/num_rollbacks"] == 1.0
