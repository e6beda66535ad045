"""Megatron-core's settings of a mixture of experts."""

from __future__ import annotations

from typing import Any

from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.megatron import TrainLayout


def expert_settings(arch: Architecture, layout: TrainLayout, fused: bool) -> dict[str, Any]:
    """Return the settings of a mixture of experts: no token is dropped, and `routers` adds the
    routers' losses.

    Args:
        arch: the model.
        layout: parallel sizes.
        fused: whether the layers are Transformer Engine's.
    """
    if not arch.is_moe:
        return {}
    num_mixtures = arch.num_layers - arch.num_dense_layers
    return {
        "num_moe_experts": arch.num_experts,
        "moe_layer_freq": [0] * arch.num_dense_layers + [1] * num_mixtures,
        "moe_ffn_hidden_size": arch.ffn_size,
        "moe_shared_expert_intermediate_size": arch.shared_ffn_size or None,
        "moe_shared_expert_gate": arch.shared_gate,
        "moe_router_topk": arch.experts_per_token,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_grouped_gemm": fused,
        # The routers' fusion knows no router replay (`moe_utils.topk_routing_with_score_function`).
        "moe_permute_fusion": fused,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.etp,
    } | _router_settings(arch)


def _router_settings(arch: Architecture) -> dict[str, Any]:
    router = arch.router
    if not router.sigmoid:
        # A softmax over the chosen ones is the softmax over all of them, renormalised.
        return {"moe_router_pre_softmax": not arch.renormalise_router}
    return {
        "moe_router_score_function": "sigmoid",
        "moe_router_num_groups": router.num_groups,
        "moe_router_group_topk": router.groups_per_token,
        "moe_router_topk_scaling_factor": router.scale,
        "moe_router_enable_expert_bias": router.has_bias,
        # Megatron-core's own update counts padding, and in bfloat16; `routers` has another.
        "moe_router_bias_update_rate": 0.0,
    }
