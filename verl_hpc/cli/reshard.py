"""Count what moving the weights from a training to a rollout layout costs.

Pure arithmetic on the two layouts: no GPU, no MPI, no weights; a config.json is enough. Seconds are
simulated over links of given speeds: those of a site profile and its kind of GPU, or of an H100
(NVLink 200 and network 45 GB/s per GPU).

examples:
  python -m verl_hpc reshard --model DIR --train tp=4,pp=1,dp=2 --rollout tp=2 --gpus-per-node 8
  python -m verl_hpc reshard --model config.json --train tp=8,pp=16,dp=32 --rollout tp=8 \\
      --gpus-per-node 8 --json
  python -m verl_hpc reshard --model DIR --train tp=8,pp=8,dp=2 --rollout tp=8 \\
      --site slurm/my_site.yaml
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable

from verl_hpc.cluster.hardware import links_of
from verl_hpc.cluster.profile import load_profile
from verl_hpc.errors import ConfigError
from verl_hpc.layout.adapters import AdapterShape
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.link_model import Links
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.planner import DEFAULT_BUCKET_BYTES
from verl_hpc.layout.report import ReshardReport, Spread, reshard_report
from verl_hpc.layout.shard_map import ITEM_BYTES
from verl_hpc.metrics.text import size
from verl_hpc.sources.local import required_directory

_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", required=True, metavar="MODEL", help="directory, config.json, or ORG/NAME")
    add("--train", required=True, metavar="SIZES", help="tp, pp, dp; also vpp, ep, etp")
    add("--rollout", required=True, metavar="SIZES", help="tp of each vLLM engine")
    add(
        "--gpus-per-node",
        type=int,
        metavar="N",
        help="ranks that share a node (default: the site's)",
    )
    add("--site", metavar="PROFILE", help="site profile: its links, and GPUs per node")
    add(
        "--grouping",
        choices=("zero_redundancy", "contiguous"),
        help="which ranks form an engine (default: zero_redundancy where the sizes allow it)",
    )
    mib = DEFAULT_BUCKET_BYTES // 2**20
    add("--bucket-mib", type=int, default=mib, metavar="N", help=f"largest message (default {mib})")
    add(
        "--dtype",
        choices=tuple(ITEM_BYTES),
        metavar="NAME",
        help="element type that travels (default: the model's own)",
    )
    add("--lora-rank", type=int, metavar="N", help="adapters of all linear layers, sent alone")
    add("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    for flag in ("gpus_per_node", "bucket_mib", "lora_rank"):
        number = getattr(arguments, flag)
        if number is not None and number < 1:
            raise ConfigError(f"--{flag.replace('_', '-')} {number}: a whole number from 1 up")
    gpus_per_node, links, whose = _site(arguments)
    train = parse_sizes("--train", arguments.train, ("tp", "pp", "dp", "vpp", "ep", "etp"))
    rollout = parse_sizes("--rollout", arguments.rollout, ("tp",))
    report = reshard_report(
        read_architecture(required_directory("--model", arguments.model)),
        TrainLayout(**train),
        rollout.get("tp", 1),
        gpus_per_node,
        arguments.grouping,
        arguments.bucket_mib * 2**20,
        arguments.dtype,
        links,
        AdapterShape(arguments.lora_rank) if arguments.lora_rank else None,
    )
    sent = "adapters" if arguments.lora_rank else "model"
    basis = predicted_from(links, whose)
    if arguments.json:
        print(json.dumps({**report.as_json(), "basis": basis}, indent=1))
    else:
        print(as_text(report, sent), *textwrap.wrap(basis, _WIDTH), sep="\n")
    return 0


def parse_sizes(flag: str, text: str, allowed: Iterable[str]) -> dict[str, int]:
    """Read `axis=number,axis=number`.

    Raises:
        ConfigError: an axis that is not in `allowed`, given twice, or not a whole number from 1.
    """
    known = tuple(allowed)
    sizes: dict[str, int] = {}
    for word in text.split(","):
        axis, _, number = word.strip().partition("=")
        if axis not in known or axis in sizes:
            raise ConfigError(f"{flag} {text}: {word!r}; give each of {', '.join(known)} once")
        if not number.isdecimal() or int(number) < 1:
            raise ConfigError(f"{flag} {text}: {axis} = {number!r}; a whole number from 1 up")
        sizes[axis] = int(number)
    return sizes


def predicted_from(links: Links, whose: str) -> str:
    """What the predicted seconds rest on, in a sentence.

    Args:
        links: that were simulated.
        whose: links they are.
    """
    return (
        f"predicted: messages simulated over the links of {whose}: NVLink {links.nvlink_gb_s:g}, "
        f"network {links.network_gb_s:g} and memory {links.memory_gb_s:g} GB/s per GPU. No such "
        "transfer has been measured on GPUs, so no band is known; it takes longer where the "
        "network is congested."
    )


def _site(arguments: argparse.Namespace) -> tuple[int, Links, str]:
    """Return the ranks that share a node, the links' speeds, and whose they are.

    Raises:
        ConfigError: neither a site nor the number is given.
    """
    if arguments.site is None:
        if arguments.gpus_per_node is None:
            raise ConfigError("give --gpus-per-node N, or --site with a profile that has it")
        return arguments.gpus_per_node, Links(), "an H100 as a default"
    site = load_profile(arguments.site, flag="--site").site
    given: int | None = arguments.gpus_per_node
    return site.ranks_per_node if given is None else given, links_of(site), str(arguments.site)


def as_text(report: ReshardReport, sent: str = "model") -> str:
    """Return the report as an aligned table, with bytes in readable units.

    Args:
        sent: what is sent.
    """
    rows = [f"{'':34} {'min':>12} {'mean':>12} {'max':>12}"]
    for label, spread in (
        ("received per rank", report.received_bytes_per_rank),
        ("  least possible", report.minimum_bytes_per_rank),
        ("  all-gather of full tensors", report.allgather_bytes_per_rank),
        ("entering a node", report.inbound_bytes_per_node),
        ("  least possible", report.minimum_inbound_bytes_per_node),
    ):
        rows.append(f"{label:34} {_spread(spread)}")
    paper = report.paper_bytes_per_rank
    rows += [
        f"{'received per rank, HybridFlow':34} "
        + ("does not apply" if paper is None else f"{size(paper):>25}"),
        f"{sent:34} {size(report.model_bytes):>25}",
        f"{'largest message':34} {size(report.peak_bucket_bytes):>25}",
        f"{'messages':34} {report.messages:>25,}",
        f"{'predicted, with checksums':34} {report.predicted_seconds:>23.3f} s",
        *([f"{'  merging them comes on top':34} {'see plan':>25}"] if sent == "adapters" else []),
        f"{'  least that the links allow':34} {report.limit_seconds:>23.3f} s",
        f"{'planning':34} {report.planning_seconds:>23.2f} s",
    ]
    return "\n".join(rows)


def _spread(spread: Spread) -> str:
    return " ".join(f"{size(v):>12}" for v in (spread.min, spread.mean, spread.max))
