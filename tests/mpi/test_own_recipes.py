"""Recipes of examples/ with models on ranks of their own, in layouts of their own."""

from pathlib import Path

import pytest
import torch

from tests.mpi.recipe_runs import assert_same, run
from verl_hpc.testing.letter_values import VALUES, make_scorer

pytestmark = pytest.mark.world(4)

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORDING = '''
"""Distillation that leaves tokens and advantages of every rank behind."""

from pathlib import Path

import torch

from verl_hpc.rewards.user_code import load_function
from verl_hpc.trainer.recipe import operator


@operator()
def record(place, settings, samples, sequences, advantages):
    lengths = [samples.samples[i].prompt_length for i in sequences.positions]
    found = (list(sequences.positions), lengths, sequences["tokens"], advantages["advantages"])
    torch.save(found, Path(settings) / f"recorded{place.rank}.pt")
    return (), {}


def recorded(run):
    recipe = load_function("EXAMPLE:distillation")(run)
    recipe.operator(record, settings=str(Path(__file__).parent), place="actor")
    return recipe
'''


def test_distillation_equals_float64(here, tiny_model, shared_directory):
    directory = shared_directory / "distillation"
    student, teacher = tiny_model(), tiny_model(hidden_size=96, num_attention_heads=4)
    if here.world.rank == 0:
        directory.mkdir()
        text = RECORDING.replace("EXAMPLE", str(EXAMPLES / "distillation.py"))
        (directory / "own.py").write_text(text)
    here.control.barrier()
    (row,) = run(
        here,
        "distillation",
        student,
        shared_directory,
        recipe=f"{directory}/own.py:recorded",
        steps=1,
        roles={
            "actor": {},
            "teacher": {"path": str(teacher), "parallel": {"pipeline_parallel": 2}},
        },
        placement={"actor": "0-1", "teacher": "2-3"},
        parallel={"tensor_parallel": 2},
    )
    found = torch.load(directory / "recorded0.pt")
    models = [exact(student), exact(teacher)]
    total = count = 0.0
    for _, prompt_length, tokens, advantages in zip(*found, strict=True):
        mine, theirs = (log_probs(model, tokens)[prompt_length - 1 :] for model in models)
        torch.testing.assert_close(advantages.double(), theirs - mine, atol=1e-5, rtol=0)
        total, count = total + float((mine - theirs).sum()), count + len(mine)
    assert row["distillation/reverse_kl"] == pytest.approx(total / count, abs=1e-6)
    assert len(found[0]) == 12 and abs(total / count) > 1e-2


def exact(directory):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").double()


@torch.no_grad()
def log_probs(model, tokens, temperature=1.2):
    logits = model(tokens[None]).logits[0, :-1] / temperature
    return logits.log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]


@pytest.fixture(scope="module")
def scorers(here, shared_directory):
    if here.world.rank == 0:
        for name, values in VALUES.items():
            make_scorer(shared_directory / name, values)
    here.control.barrier()
    return {name: {"path": str(shared_directory / name)} for name in VALUES}


def test_a_multiplier_survives_on_ranks_that_do_not_change_it(
    here, tiny_model, shared_directory, scorers
):
    def runs(name, steps, resume="never"):
        return run(
            here,
            name,
            tiny_model(),
            shared_directory,
            recipe=f"{EXAMPLES}/safe_rlhf.py:safe_rlhf",
            steps=steps,
            roles={name: {} for name in ("actor", "reference", "critic", "cost_critic")} | scorers,
            # Rank 0, whose state a checkpoint has, is not of the actor's ranks.
            placement={"actor": "2-3", "critic": 0, "reward": 0, "cost_critic": 1, "cost": 1},
            algorithm={"kl": {"placement": "reward", "coefficient": 0.1}},
            checkpoint={"resume": resume},
        )

    straight = runs("safe-straight", 4)
    runs("safe-resumed", 2)
    resumed = runs("safe-resumed", 4, "must")
    assert_same(resumed, straight, ("safety/", "actor/", "critic/", "cost"), rel=0)
    assert len({row["safety/multiplier"] for row in straight}) == 4
