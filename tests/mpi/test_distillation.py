"""Distillation on ranks: a teacher of another size and layout, against transformers and itself."""

import pytest
import torch

from tests.mpi.recipe_runs import run

pytestmark = pytest.mark.world(4)

RECORDING = '''
"""Distillation that leaves tokens and advantages of every rank behind."""

from pathlib import Path

import torch

from verl_hpc.step.operator import operator
from verl_hpc.trainer.recipes.distillation import distillation


@operator()
def record(place, settings, samples, sequences, advantages):
    lengths = [samples.samples[i].prompt_length for i in sequences.positions]
    found = (list(sequences.positions), lengths, sequences["tokens"], advantages["advantages"])
    torch.save(found, Path(settings) / f"recorded{place.rank}.pt")
    return (), {}


def recorded(run):
    recipe = distillation(run)
    recipe.operator(record, settings=str(Path(__file__).parent), place="actor")
    return recipe
'''


def test_distillation_equals_float64(here, tiny_model, shared_directory):
    directory = shared_directory / "distillation"
    student, teacher = tiny_model(), tiny_model(hidden_size=96, num_attention_heads=4)
    if here.world.rank == 0:
        directory.mkdir()
        (directory / "own.py").write_text(RECORDING)
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
    recorded = torch.load(directory / "recorded0.pt")
    models = [exact(student), exact(teacher)]
    total = count = 0.0
    for _, prompt_length, tokens, advantages in zip(*recorded, strict=True):
        mine, theirs = (log_probs(model, tokens)[prompt_length - 1 :] for model in models)
        torch.testing.assert_close(advantages.double(), theirs - mine, atol=1e-5, rtol=0)
        total, count = total + float((mine - theirs).sum()), count + len(mine)
    assert row["distillation/reverse_kl"] == pytest.approx(total / count, abs=1e-6)
    assert len(recorded[0]) == 12 and abs(total / count) > 1e-2


def exact(directory):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").double()


@torch.no_grad()
def log_probs(model, tokens, temperature=1.2):
    logits = model(tokens[None]).logits[0, :-1] / temperature
    return logits.log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
