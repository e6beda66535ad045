"""Time limits in Slurm's notation, and how long before the end a run is warned."""

from __future__ import annotations

import re

from verl_hpc.errors import ConfigError

DEFAULT_LEAD_S = 900
"""An on-policy step of a large model takes 100 to 400 s; the operator under way is finished and a
checkpoint is written in this time."""

_FORMS = (
    r"(?P<minutes>\d+)",
    r"(?P<minutes>\d+):(?P<seconds>\d+)",
    r"(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)",
    r"(?P<days>\d+)-(?P<hours>\d+)",
    r"(?P<days>\d+)-(?P<hours>\d+):(?P<minutes>\d+)",
    r"(?P<days>\d+)-(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)",
)
_UNITS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}


def parse_time(text: str) -> int:
    """Seconds of a time limit as sbatch reads it: "90" is 90 minutes, "1-12" a day and a half.

    Raises:
        ConfigError: it is not in Slurm's notation, or zero.
    """
    for form in _FORMS:
        if match := re.fullmatch(form, text, re.ASCII):
            seconds = sum(int(n) * _UNITS[unit] for unit, n in match.groupdict().items())
            if seconds > 0:
                return seconds
    raise ConfigError(
        f"--time {text!r}: expected minutes, minutes:seconds, hours:minutes:seconds, days-hours "
        "or days-hours:minutes:seconds, such as 24:00:00"
    )


def signal_lead(limit_s: int, wanted_s: int | None) -> tuple[int, str]:
    """Seconds before the end at which ranks get the warning signal, and why.

    Raises:
        ConfigError: the lead asked for is not shorter than the time limit.
    """
    if wanted_s is not None:
        if wanted_s >= limit_s:
            raise ConfigError(
                f"signal_lead_s = {wanted_s} is not shorter than the time limit of {limit_s} s: "
                "the job would be told to stop at its start; ask for more time, or a shorter lead"
            )
        return wanted_s, ""
    if limit_s >= 3 * DEFAULT_LEAD_S:
        return DEFAULT_LEAD_S, ""
    return max(limit_s // 3, 1), f"a third of {limit_s} s"
