"""What a site profile says about allocations."""

from __future__ import annotations

from verl_hpc.section import NonNegativeFinite, Section


class BudgetConfig(Section):
    """Where `budget` finds what Slurm does not know."""

    command: list[str] = []
    """A program of the site, and its arguments, that prints what the account has as one JSON
    object: granted_hours, used_hours, unit, and start and end (dates, YYYY-MM-DD), any of which it
    may leave out. It comes before Slurm's figures."""
    co2_g_per_kwh: NonNegativeFinite | None = None
    """Grams of CO2 for a kWh that the nodes consume, with the site's cooling; null reports none."""
