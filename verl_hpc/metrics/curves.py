"""Draw the curves of a run as PNG files, for slides and papers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from verl_hpc.metrics.charts import charts_of
from verl_hpc.metrics.log import Row
from verl_hpc.metrics.series import axis_range, curves

_logger = logging.getLogger(__name__)


def write_curves(directory: Path, rows: Sequence[Row]) -> list[Path]:
    """Draw each chart that has points into `directory`; warns and draws none without matplotlib.

    Returns:
        The files written.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        _logger.warning("%s is left out: %s; pip install matplotlib", directory, error)
        return []
    directory.mkdir(exist_ok=True)
    written = []
    for chart in charts_of(rows):
        if not (drawn := curves(chart, rows)):
            continue
        figure = Figure(figsize=(6.0, 3.6), layout="constrained")
        axes = figure.add_subplot(title=chart.title, xlabel="step")
        for label, curve in drawn.items():
            axes.plot(*zip(*curve, strict=True), label=label, marker="." if len(curve) < 40 else "")
        every = [value for curve in drawn.values() for _, value in curve]
        axes.set_ylim(*axis_range(every, 0.06, chart.limits))
        axes.set_ylabel(chart.unit)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if len(drawn) > 1:
            axes.legend(frameon=False)
        written.append(directory / f"{chart.key}.png")
        figure.savefig(written[-1], dpi=150)
    return written
