"""Whether ranks with GPUs can use, and do use, the InfiniBand of their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from verl_hpc.runs.verdict import Verdict, fails, listed, ok, unknown
from verl_hpc.runtime import environment
from verl_hpc.runtime.fabric import Fabric, has_slingshot, network_of, trouble
from verl_hpc.runtime.session import Session

_TODO = {
    "InfiniBand": "set NCCL_NET=IB in the profile's environment: NCCL then says what is missing",
    "Slingshot": "bring the site's aws-ofi-nccl into the image, and set NCCL_NET=AWS Libfabric in "
    "the profile's environment: NCCL then says what is missing",
}
"""What to do where NCCL leaves a network of this name unused."""


def check_fabric(here: Session, hosts: Sequence[str]) -> list[Verdict]:
    """The adapters of every node, if NCCL is to use them; all ranks call it.

    Ranks on cores use TCP, adapters or not.
    """
    if here.world.device == "cpu":
        return []
    if here.infiniband is None:
        return [ok("infiniband", _why_unused(here.world.num_nodes))]
    said = here.control.allgather((here.world.node, here.infiniband))
    return [judge_fabric({hosts[node]: text for node, text in said})]


def check_network(here: Session, hosts: Sequence[str], log: Path) -> list[Verdict]:
    """What NCCL uses between nodes, after it has; all ranks call it.

    Args:
        log: where NCCL writes on this rank's node.
    """
    if here.world.device == "cpu" or here.world.num_nodes < 2:
        return []
    if here.infiniband is not None and environment.uses_other_network():
        text = "TCP was taken, since a run could not use the InfiniBand of these nodes"
        return [unknown("nccl", text, "mend that first")]
    mine = network_of(log.read_text(errors="replace")) if log.is_file() else None
    said = here.control.allgather((hosts[here.world.node], mine, _better_than_tcp(here)))
    return [judge_network(said)]


def _better_than_tcp(here: Session) -> str | None:
    """The network that this node has for NCCL besides TCP; None if the environment chooses."""
    if here.infiniband is not None and here.infiniband.active:
        return "InfiniBand"
    return "Slingshot" if not environment.uses_other_network() and has_slingshot() else None


def _why_unused(num_nodes: int) -> str:
    if num_nodes < 2:
        return "not needed: all ranks are on one node"
    if environment.uses_other_network():
        return "not needed: the environment chooses another network for NCCL"
    return "no adapter is up on any node"


def judge_fabric(by_node: Mapping[str, Fabric]) -> Verdict:
    """Nodes whose InfiniBand cannot be used, or that have none while others do; one has some."""
    with_adapters = {node: f for node, f in sorted(by_node.items()) if f.active}
    troubles = {node: why for node, f in with_adapters.items() if (why := trouble(f))}
    without = sorted(set(by_node) - set(with_adapters))
    texts = [f"{node}: {why}" for node, why in troubles.items()]
    texts += [f"{node}: no adapter is up" for node in without]
    if texts:
        blamed = [*troubles, *without]
        todo = "see docs/containers.md" if troubles else "leave them out"
        # What is wrong on all nodes is wrong with the image, or with the site.
        return fails(
            "infiniband", listed(texts, 4), todo, blamed if len(texts) < len(by_node) else []
        )
    fewest = min(len(f.active) for f in with_adapters.values())
    return ok("infiniband", f"at least {fewest} adapters a node are up and can be opened")


def judge_network(said: Sequence[tuple[str, str | None, str | None]]) -> Verdict:
    """Compare what NCCL uses with what there is.

    Args:
        said: of each rank, its node, NCCL's network, and the better network that the node has.
    """
    slow = sorted({node for node, network, better in said if network == "Socket" and better})
    if slow:
        better = next(name for node, _, name in said if node == slow[0] and name)
        return fails("nccl", f"uses TCP beside {better}: {listed(slow)}", _TODO[better])
    names = sorted({network for _, network, _ in said if network})
    if not names:
        return unknown("nccl", "has not said which network it uses", "is NCCL_DEBUG_FILE set?")
    return ok("nccl", f"uses {listed(names)} between nodes")
