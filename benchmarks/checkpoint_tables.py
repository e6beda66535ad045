"""The tables of benchmarks.checkpoint."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.figures import MIB, machine_markdown, markdown_table


def checkpoint_markdown(record: Mapping[str, Any]) -> str:
    """Everything that was measured."""
    parts = [f"`{record['command']}`", machine_markdown(record["machine"])]
    titles = {
        "fixed": ("### Fixed cost", _fixed_markdown),
        "write": ("### Writing", _write_markdown),
        "read": ("### Reading", _read_markdown),
        "stall": ("### Stall", _stall_markdown),
    }
    for part, (title, table) in titles.items():
        if part in record:
            parts += [title, table(record[part])]
    return "\n\n".join(parts)


def _fixed_markdown(fixed: Mapping[str, Any]) -> str:
    header = ("a save of a run", "CPU s of the busiest rank", "of the others, mean", "wall s")
    rows = [
        (name, *(f"{found[key]:.3f}" for key in ("busiest_cpu", "others_cpu", "wall")))
        for name, found in fixed["saves"].items()
    ]
    return (
        f"A model of {fixed['parameters'] / 1e6:.2f} M parameters, float32, TP2 x DP2; each save "
        f"is waited for. Later saves: the median of {fixed['later']}.\n\n"
        f"{markdown_table(header, rows)}"
    )


def _write_markdown(write: Mapping[str, Any]) -> str:
    size = write["bytes_per_rank"]
    rows = []
    for way in ("checkpoint", "plain"):
        seconds, cpu = write[way]["seconds"], write[way]["cpu"]
        times = [f"{seconds[key]:.3f}" for key in ("median", "min", "max")]
        rate = size / seconds["median"] / 1e9
        rows.append((way, *times, f"{cpu['median']:.3f}", f"{rate:.3f}"))
    raw = [write[way]["seconds"]["raw"] for way in ("plain", "checkpoint")]
    ratios = [plain / ours for plain, ours in zip(*raw, strict=True)]
    header = ("way", "median s", "min s", "max s", "CPU s a rank", "GB/s a rank")
    return (
        f"{size / MIB:.0f} MiB a rank, all ranks at once, fsync included.\n\n"
        f"{markdown_table(header, rows)}\n\nOurs is at {statistics.median(ratios):.1%} of the rate "
        f"of plain writes (median of pairs; {min(ratios):.1%} to {max(ratios):.1%})."
    )


def _read_markdown(read: Mapping[str, Any]) -> str:
    header = ("columns read", *(f"from the {place}: GB/s asked for, of whole" for place in read))
    rows = []
    for name in next(iter(read.values())):
        cells = []
        for rates in read.values():
            rate = rates[name]["median"]
            cells.append(f"{rate / 1e9:.2f}, {rate / rates['1/1']['median']:.0%}")
        rows.append((name, *cells))
    return markdown_table(header, rows)


def _stall_markdown(stall: Mapping[str, Any]) -> str:
    header = ("in the background", "save s", "main thread waits s", "share", "step s", "others s")
    rows = [
        (
            name,
            *(f"{found[key]:.3f}" for key in ("save", "stall")),
            f"{found['stall'] / found['save']:.1%}",
            *(f"{found[key]:.3f}" for key in ("step_after_save", "other_step")),
        )
        for name, found in stall["ways"].items()
    ]
    return (
        f"GRPO of a model of {stall['parameters'] / 1e6:.1f} M parameters in float32, "
        f"{stall['saved_bytes'] / MIB:.0f} MiB saved by all ranks together, every third step; "
        f"medians of {stall['count']} saves, of the slowest rank. The first save, which gets the "
        f"memory of the copy, is not among them: its main thread waits "
        f"{stall['first_stall']:.3f} s.\n\n{markdown_table(header, rows)}"
    )
