"""Models that never end a response."""

import torch

from benchmarks.models import never_ending
from verl_hpc.data.prompts import load_tokenizer
from verl_hpc.testing.tiny import make_tiny_model


def test_the_end_has_a_row_that_the_model_does_not_prefer(tmp_path):
    from transformers import AutoModelForCausalLM

    model = never_ending(make_tiny_model(tmp_path / "random"), tmp_path / "model")
    decoder = AutoModelForCausalLM.from_pretrained(model)
    end = load_tokenizer(model, decoder.config.vocab_size).eos_token_id
    with torch.no_grad():
        logits = decoder(torch.arange(end).view(-1, 7)).logits
    assert decoder.generation_config.eos_token_id == end
    assert logits[..., end].max() < logits[..., :end].min() - 20
