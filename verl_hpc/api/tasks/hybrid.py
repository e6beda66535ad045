"""What HybridFlow's 3D-HybridEngine is in one process."""

from __future__ import annotations

from verl_hpc.api.ranks import check_one_process


def hybrid_engine() -> str:
    """Says that there is nothing to reshard.

    Raises:
        ConfigError: this is one of several ranks.
    """
    check_one_process("enable_3d_hybrid_engine")
    return (
        "3D hybrid engine: one process, in which training and generation share the weights of one "
        "module: there is one layout, and nothing to reshard"
    )
