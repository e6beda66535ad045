"""What the benchmarks share: spreads of repetitions, tables, and facts about the machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

MIB = 2**20
FROM = "<!-- what the script wrote -->"
TO = "<!-- end of what the script wrote -->"


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, extremes and the raw repetitions."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "raw": [round(v, 6) for v in values],
    }


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; all columns but the first are aligned to the right."""
    lines = ["| " + " | ".join(header) + " |"]
    lines.append("| --- |" + " ---: |" * (len(header) - 1))
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def machine(packages: Iterable[str] = ()) -> dict[str, Any]:
    """The machine and the packages that a figure was measured with."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "packages": {name: found for name in packages if (found := _version(name))},
        "openmp": {k: v for k, v in sorted(os.environ.items()) if k.startswith(("OMP_", "GOMP_"))},
        "load_average": [round(v, 2) for v in os.getloadavg()],
    }


def machine_markdown(facts: Mapping[str, Any]) -> str:
    """The machine in one paragraph."""
    packages = ", ".join(f"{name} {found}" for name, found in facts["packages"].items())
    openmp = " ".join(f"{name}={value}" for name, value in facts["openmp"].items())
    return (
        f"Machine: {facts['cores']} cores ({facts['cpu']}), {facts['memory_gib']} GiB, Python "
        f"{facts['python']}; {packages}. OpenMP settings in the environment: {openmp or 'none'}. "
        "Load average when it started (1, 5, 15 minutes): "
        f"{', '.join(map(str, facts['load_average']))}; anything above a few tenths is other "
        "programs on the same cores."
    )


def report(markdown: str, record: Any, markdown_file: Path | None, json_file: Path | None) -> None:
    """Print the tables; write them and the raw record where asked."""
    print(markdown)
    write(markdown, record, markdown_file, json_file)


def write(markdown: str, record: Any, markdown_file: Path | None, json_file: Path | None) -> None:
    """Write the tables and the raw record where asked.

    A Markdown file that has a line FROM and a line TO keeps what is outside them.
    """
    if markdown_file is not None:
        before, after = _around(markdown_file)
        text = f"{before}{FROM}\n\n{markdown}\n\n{TO}\n{after}"
        markdown_file.write_text(text, encoding="utf-8")
    if json_file is not None:
        json_file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _around(file: Path) -> tuple[str, str]:
    if not file.exists():
        return "", ""
    before, _, rest = file.read_text(encoding="utf-8").partition(f"{FROM}\n")
    _, found, after = rest.partition(f"{TO}\n")
    return (before, after) if found else ("", "")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
