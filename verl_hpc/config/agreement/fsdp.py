"""Checks of roles whose parallel.engine is fsdp."""

from __future__ import annotations

from verl_hpc.config.roles import role_settings
from verl_hpc.config.sections import RunSections


def check_fsdp_roles(config: RunSections) -> None:
    """Raises: ValueError: a role with engine = fsdp asks for what only the other engine has."""
    settings = role_settings(config)
    first = next(iter(settings))
    for name, role in settings.items():
        if role.parallel.engine != "fsdp":
            continue
        given = {
            f"lora (of the {name})": role.lora is not None,
            "model.fp8": role.model.fp8 is not None,
            "model.router": role.model.router is not None,
            "algorithm.router_replay = rollout": config.replays_experts,
            "rollout.quantization": name == first and config.rollout.quantization is not None,
        }
        for setting in (setting for setting, is_given in given.items() if is_given):
            raise ValueError(
                f"{setting} with parallel.engine = fsdp of the {name}: only Megatron-core does "
                "that here; leave it out, or choose engine: megatron"
            )
