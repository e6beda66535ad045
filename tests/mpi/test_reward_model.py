"""A Bradley-Terry reward model against transformers, exported, and as the role reward of others."""

import json
from random import Random

import pytest
import torch

from tests.mpi.recipe_runs import assert_same, run
from tests.slow import all_slow
from verl_hpc.checkpoint.convert import export_step

pytestmark = pytest.mark.world(4)

LAYOUT = {"tensor_parallel": 2, "pipeline_parallel": 2, "virtual_pipeline": 2}
SIZE, LR = 6, 1e-3


def letters(random):
    return "".join(random.choices("abcdef", k=random.randint(1, 9)))


@pytest.fixture(scope="module")
def pairs(here, shared_directory):
    """Files of training and of evaluation, the same on all ranks, and their rows."""
    random = Random(0)
    rows = {}
    for name, count in (("train", 2 * SIZE), ("evaluation", 10)):
        rows[name] = [
            {"prompt": f"{name} {i}:", "chosen": letters(random), "rejected": letters(random)}
            for i in range(count)
        ]
        if here.world.rank == 0:
            lines = [json.dumps(row) + "\n" for row in rows[name]]
            (shared_directory / f"{name}.jsonl").write_text("".join(lines))
    here.control.barrier()
    return rows


@pytest.fixture(scope="module")
def trained(here, tiny_model, shared_directory, pairs):
    """Metrics of a run of two steps, each one optimizer step."""
    data = {
        name: {"kind": "files", "paths": [f"{shared_directory}/{name}.jsonl"]} for name in pairs
    }
    return run(
        here,
        "reward",
        tiny_model(head="score", num_hidden_layers=4),
        shared_directory,
        recipe="reward_model",
        parallel=LAYOUT,
        optimizer={"lr": LR},
        # Of 20 to 50 tokens a pair: several micro-batches of several pairs.
        batch={"size": SIZE, "max_tokens_per_micro_batch": 100},
        data={"shuffle": False} | data,
        evaluation={"every": 1, "at_start": True},
    )


class Classifier:
    """transformers' sequence classifier, trained by torch on the same pairs."""

    def __init__(self, directory):
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self.model = AutoModelForSequenceClassification.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        )
        self.model.config.pad_token_id = None  # the last token counts, which ends and pads texts
        self.model.get_input_embeddings().padding_idx = None
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0
        )

    def score(self, row, answer):
        ids = self.tokenizer.encode(row["prompt"]) + self.tokenizer.encode(row[answer])
        return self.model(torch.tensor([[*ids, self.tokenizer.eos_token_id]])).logits[0, 0]

    def margins(self, rows):
        return torch.stack([self.score(r, "chosen") - self.score(r, "rejected") for r in rows])

    def step(self, rows):
        margins = self.margins(rows)
        loss = -margins.sigmoid().log().mean()
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return {
            "reward/loss": loss.item(),
            "reward/accuracy": (margins > 0).float().mean().item(),
            "reward/margin": margins.mean().item(),
            "reward/grad_norm": norm.item(),
        }

    @torch.no_grad()
    def evaluation(self, rows):
        margins = self.margins(rows)
        return {
            "val/accuracy": (margins > 0).float().mean().item(),
            "val/margin": margins.mean().item(),
        }


def test_two_steps_equal_transformers_and_torch(here, tiny_model, pairs, trained):
    directory = tiny_model(head="score", num_hidden_layers=4)
    if here.world.rank != 0:
        return
    classifier = Classifier(directory)
    first, *steps = trained
    expected = classifier.evaluation(pairs["evaluation"])
    assert expected == pytest.approx({name: first[name] for name in expected}, abs=1e-5)
    for number, metrics in enumerate(steps):
        rows = pairs["train"][number * SIZE : (number + 1) * SIZE]
        expected = classifier.step(rows) | classifier.evaluation(pairs["evaluation"])
        assert expected == pytest.approx({n: metrics[n] for n in expected}, rel=1e-5, abs=1e-5)
    assert len(steps) == 2


@pytest.fixture(scope="module")
def last_step(trained, shared_directory):
    return shared_directory / "runs/reward/checkpoints/latest"


@pytest.fixture(scope="module")
def exported(here, shared_directory, last_step):
    out = shared_directory / "exported-classifier"
    if here.world.rank == 0:
        export_step(last_step, out, component="reward")
    here.control.barrier()
    return out


def test_it_is_exported_as_a_classifier_of_the_same_scores(here, pairs, trained, exported):
    if here.world.rank != 0:
        return
    classifier = Classifier(exported)
    assert json.loads((exported / "config.json").read_text())["pad_token_id"] is None
    expected = classifier.evaluation(pairs["evaluation"])
    assert expected == pytest.approx({n: trained[-1][n] for n in expected}, abs=1e-5)


@pytest.mark.parametrize("advantage", ["remax", *all_slow("gae")])
def test_it_scores_responses_whatever_the_advantage(
    here, tiny_model, shared_directory, last_step, exported, advantage
):
    def runs(name, path, **placement):
        return run(
            here,
            f"{advantage}-{name}",
            tiny_model(num_hidden_layers=4),
            shared_directory,
            recipe="rl",
            steps=1,
            algorithm={"advantage": {"name": advantage}},
            roles={"reward": {"path": str(path)}},
            placement=placement,
        )

    together = runs("model-together", last_step, rollout=0)
    apart = runs("model-apart", exported, actor="0-1", rollout=0, reward="2-3")
    greedy = ("greedy/",) if advantage == "remax" else ()
    assert_same(apart, together, ("actor/", "critic/", *greedy))
    assert together[0]["critic/score/max"] > together[0]["critic/score/min"]
