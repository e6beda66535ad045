"""Linear layers' products on CPUs."""

import pytest
import torch

from verl_hpc.engines.megatron import products


@pytest.mark.parametrize("shape", [(5, 1, 48), (7, 48), (0, 1, 48)])
def test_a_layer_and_its_gradients_are_those_of_torch(shape):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator)
    weight = torch.randn(32, 48, generator=generator)
    grad = torch.randn(*shape[:-1], 32, generator=generator)
    torch.testing.assert_close(products.matmul(x, weight.t()), x @ weight.t())
    torch.testing.assert_close(products.matmul(grad, weight), grad @ weight)


def test_other_types_are_left_to_torch():
    x, weight = torch.ones(3, 8, dtype=torch.bfloat16), torch.ones(4, 8, dtype=torch.bfloat16)
    assert torch.equal(products.matmul(x, weight.t()), torch.full((3, 4), 8.0, dtype=x.dtype))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the shim is for CPU ranks")
def test_megatrons_layers_use_them(monkeypatch):
    from megatron.core.tensor_parallel import layers

    seen = []
    multiply = products.matmul

    def counting(one, weight):
        seen.append((tuple(one.shape), tuple(weight.shape)))
        return multiply(one, weight)

    monkeypatch.setattr(products, "matmul", counting)
    x, weight = torch.ones(3, 1, 8, requires_grad=True), torch.ones(4, 8, requires_grad=True)
    apply = layers.LinearWithGradAccumulationAndAsyncCommunication.apply
    apply(x, weight, None, False, False, False, None, None, None).sum().backward()
    assert seen == [((3, 1, 8), (8, 4)), ((3, 1, 4), (4, 8))]
