"""A run whose engine samples by other probabilities than the trainer's: what correction is for."""

import pytest
import torch

from tests.slow import all_slow
from tests.unit.trainer.runs import loop, small_run
from verl_hpc.generation.choose import choose_tokens
from verl_hpc.generation.generate import generate
from verl_hpc.step.batch import WEIGHTS, StepRows
from verl_hpc.step.operators.assign import assign
from verl_hpc.step.operators.infer import old_log_probs
from verl_hpc.testing import local_run as local
from verl_hpc.testing.local_rollout import LocalRollout
from verl_hpc.testing.local_run import engine_of

PROMPT, B, C, D = 11, 2, 3, 4
"""Tokens of the letters k, b, c and d."""
NOISE = -5.0
"""What the engine adds to the logit of a c behind a b."""
ANSWERS = ["bc"] * 9 + ["bg"] + ["dc"] * 10
REWARD = """
def score(response, ground_truth):
    if response.startswith("d"):
        return 0.5
    return float(response == "bc")
"""


class NoisyRollout(LocalRollout):
    """Its logits are the model's and a known noise; its log-probs are those that it samples by."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        model = self._model

        def noisy(tokens):
            logits = model(tokens).clone()
            logits[tokens == B, C] += NOISE
            return logits

        self._model = noisy


def expected_score(run):
    """The exact mean score of a response to k under the trainer's policy."""
    model = engine_of(run, "actor")._model
    first = model(torch.tensor([PROMPT]))[-1].softmax(-1)
    return float(first[B] * model(torch.tensor([PROMPT, B]))[-1].softmax(-1)[C] + 0.5 * first[D])


@pytest.fixture(scope="module")
def warmed_up(tmp_path_factory):
    """Weights that answer as `ANSWERS`: right half of the time, and safely else."""
    small = {"held_out": None, "steps": 1, "batch__size": 1, "optimizer__lr": 5e-2}
    run = small_run(tmp_path_factory.mktemp("sft"), prompts=["k"], recipe="sft", **small)
    engine = engine_of(run, "actor")
    sequences = [torch.tensor([PROMPT, *(ord(x) - ord("a") + 1 for x in a)]) for a in ANSWERS]

    def loss(indices, outputs):
        return -sum(o.log_probs.sum() for o in outputs) / len(ANSWERS), {}

    for _ in range(60):
        engine.update(sequences, loss, 1.0, 1)
    assert expected_score(run) == pytest.approx(0.7, abs=0.05)
    return {name: weight.clone() for name, weight in engine.weights.items()}


def noisy_run(directory, monkeypatch, warmed_up, correction, **changes):
    monkeypatch.setattr(local, "LocalRollout", NoisyRollout)
    (directory / "letters.py").write_text(REWARD)
    run = small_run(
        directory,
        prompts=["k", "k"],
        held_out=None,
        **{
            "recipe": "rl",
            "steps": 25,
            "rollout__num_samples": 16,
            "rollout__max_response_tokens": 2,
            "reward__function": f"{directory}/letters.py:score",
            "algorithm__correction": correction,
            "rollout__verify__on_mismatch": "warn",
        }
        | changes,
    )
    engine = engine_of(run, "actor")
    for name, weight in engine.weights.items():
        weight.copy_(warmed_up[name])
    engine.weights_changed()
    return run


SEQUENCE = {"weights": "sequence", "upper": 30.0}
TOKEN = {"weights": "token", "upper": 30.0}
SAFE = 0.5
"""Score of an answer that does not meet what the engine spoils."""


@pytest.mark.parametrize("seed", [1, *all_slow(2)])
def test_a_run_that_collapses_uncorrected_does_not_collapse_corrected(
    tmp_path, monkeypatch, warmed_up, seed
):
    """Nor do weights of tokens alone prevent it: the first token still learns from what the engine
    makes of the second."""
    after = {}
    for name, correction in (("uncorrected", None), ("sequence", SEQUENCE), ("token", TOKEN)):
        (tmp_path / name).mkdir()
        run = noisy_run(tmp_path / name, monkeypatch, warmed_up, correction, seed=seed)
        before = expected_score(run)
        loop(run)
        after[name] = expected_score(run)
    for name in ("uncorrected", "token"):
        assert after[name] < SAFE + 0.1 < before - 0.08, "it avoids what the engine spoils"
    assert after["sequence"] > before + 0.15


def test_weights_are_the_ratio_that_the_noise_makes(tmp_path, monkeypatch, warmed_up):
    run = noisy_run(tmp_path, monkeypatch, warmed_up, SEQUENCE)
    run.sync.to_generation()
    place, settings, rows = run.rollout.place, run.settings, StepRows(1, [0, 1])
    (responses, sequences), _ = generate(place, run.rollout, settings.generate, rows)
    run.sync.to_training()
    samples, _ = assign(place, settings.assign, rows, responses)
    old, _ = old_log_probs(place, run.roles["actor"], settings.old_log_probs, samples, sequences)
    chosen, _ = choose_tokens(place, settings.choose, samples, sequences, old)
    right = float(engine_of(run, "actor")._model(torch.tensor([PROMPT, B]))[-1].softmax(-1)[C])
    # Of a c behind a b p / q, with q = p e^noise / (1 - p + p e^noise); of others likewise.
    norm = 1 - right + right * torch.tensor(NOISE).exp()
    expected = {True: norm / torch.tensor(NOISE).exp(), False: norm}
    seen = set()
    for tokens, weights in zip(sequences["tokens"], chosen[WEIGHTS], strict=True):
        _, first, *second = tokens.tolist()
        weight = 1.0
        if first == B and second:
            weight = float(expected[second == [C]])
            seen.add(second == [C])
        assert weights.tolist() == pytest.approx([weight] * len(weights), rel=1e-4)
    assert seen == {True, False}
