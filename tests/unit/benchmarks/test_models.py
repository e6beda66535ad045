"""Models that never end a response."""

import torch

from benchmarks.models import never_ending
from verl_hpc.data.tokenizer import load_tokenizer
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


def test_a_trained_norm_does_not_turn_the_end_into_the_likeliest_token(tmp_path):
    from transformers import AutoModelForCausalLM

    source = make_tiny_model(tmp_path / "random")
    decoder = AutoModelForCausalLM.from_pretrained(source)
    with torch.no_grad():
        decoder.model.norm.weight[0] = -1.0
    decoder.save_pretrained(source)
    decoder = AutoModelForCausalLM.from_pretrained(never_ending(source, tmp_path / "model"))
    with torch.no_grad():
        logits = decoder(torch.arange(end := decoder.config.eos_token_id).view(-1, 7)).logits
    assert logits[..., end].max() < logits[..., :end].min() - 20
