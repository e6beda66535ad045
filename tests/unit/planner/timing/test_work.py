"""FLOPs against the parameters of published models."""

from math import prod

import pytest

from tests.unit.layout.models import PUBLISHED
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.planner.timing.work import forward_flops, layer_work


def test_two_flops_a_parameter_and_token():
    arch = architecture_from(PUBLISHED["Llama-3.1-70B"][0])
    # But for the embedding, whose rows are looked up, and a few vectors.
    multiplied = arch.num_parameters - arch.vocab_size * arch.hidden_size
    assert forward_flops(arch, 1000.0, 0.0) == pytest.approx(2000.0 * multiplied, rel=1e-4)


def test_attention_is_causal():
    arch, length = architecture_from(PUBLISHED["Llama-3.1-8B"][0]), 100
    pairs = length * length / 2
    products = 2 * 2 * pairs * arch.num_heads * arch.head_size * arch.num_layers
    plain = forward_flops(arch, length, 0.0)
    assert forward_flops(arch, length, length**2) - plain == pytest.approx(products)


def test_a_token_passes_through_some_experts():
    arch = architecture_from(PUBLISHED["Qwen3-30B-A3B"][0])
    active = arch.num_layers * layer_work(arch).flops_per_token / 2
    # "30.5B in total and 3.3B activated", embedding and output layer included.
    assert active + 2 * arch.vocab_size * arch.hidden_size == pytest.approx(3.3e9, rel=0.03)


def test_latent_attention_shared_experts_and_dense_layers():
    """ "671B in total with 37B activated" (arXiv 2412.19437), and of Kimi K2 32B."""
    for name, activated in (("DeepSeek-V3", 37e9), ("Kimi-K2", 32e9)):
        arch = architecture_from(PUBLISHED[name][0])
        layer = layer_work(arch)
        vocabulary = arch.vocab_size * arch.hidden_size
        active = arch.num_layers * layer.flops_per_token / 2 + 2 * vocabulary
        assert active == pytest.approx(activated, rel=0.03)
        elements = arch.num_layers * layer.parameters + 2 * vocabulary
        assert elements == pytest.approx(arch.num_parameters, rel=1e-5)
        experts = sum(
            prod(spec.shape) for n, spec in arch.tensors().items() if ".mlp.experts." in n
        )
        assert arch.num_layers * layer.expert_parameters == pytest.approx(experts)
