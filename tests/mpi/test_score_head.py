"""A Hugging Face sequence classifier in the Megatron engine, against transformers."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from tests.mpi.engines_for_tests import engine_of_sizes, layouts, layouts_of_world, some_sequences
from tests.mpi.parity import TOLERANCE, replica_share, score_loss

LAYOUTS = {2: layouts("tp2 tp2-sp pp2 pp2-vpp2"), 4: layouts("tp2-pp2 tp2-dp2-sp cp2-dp4")}
PAD = 0
"""transformers takes the last token that is not this one for the last."""


def pytest_generate_tests(metafunc):
    layouts_of_world(metafunc, LAYOUTS)


@pytest.mark.world(*LAYOUTS)
@pytest.mark.parametrize("family, tied", [("llama", False), ("qwen2", True)])
def test_a_sequence_classifier_equals_transformers(here, tiny_model, sizes, family, tied):
    directory = tiny_model(family, tied, head="score")
    engine = engine_of_sizes(here, directory, sizes, head="score")
    sequences = [torch.cat([s, torch.tensor([PAD + 1])]) for s in some_sequences(8, 256)]
    sequences.append(torch.tensor([PAD + 5]))
    model = AutoModelForSequenceClassification.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    model.get_input_embeddings().padding_idx = None
    scores = [model(s[None]).logits[0] for s in sequences]
    assert torch.stack(scores).std() > 100 * TOLERANCE  # or the comparison would say nothing
    loss = sum((score**2).sum() for score in scores) / len(sequences)
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()

    share = replica_share(engine.layout)
    mine = sequences[share]
    for output, expected in zip(engine.infer(mine), scores[share], strict=True):
        assert output.scores.shape == (1,) and output.values is None
        torch.testing.assert_close(output.scores, expected.detach(), atol=TOLERANCE, rtol=0)
    metrics = engine.update(mine, score_loss("score", sequences))
    assert metrics["loss"] == pytest.approx(loss.item(), rel=TOLERANCE)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=TOLERANCE)
