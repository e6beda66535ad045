"""Days as users write and read them, in this machine's time zone."""

from __future__ import annotations

from datetime import UTC, date, datetime, time

from verl_hpc.errors import ConfigError

DAY_S = 86400.0


def parse_day(text: str, option: str) -> float:
    """The first moment of a day here, in seconds since the epoch.

    Raises:
        ConfigError: it is no date.
    """
    try:
        return datetime.combine(date.fromisoformat(text), time()).astimezone().timestamp()
    except ValueError:
        raise ConfigError(f"{option} {text}: expected a date such as 2027-01-31") from None


def day_of(moment: float) -> str:
    """The day of a moment here, such as 2027-01-31."""
    return datetime.fromtimestamp(moment, UTC).astimezone().strftime("%Y-%m-%d")
