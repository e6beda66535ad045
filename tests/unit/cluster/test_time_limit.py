"""Slurm's notation of time, and the lead of the warning signal."""

import pytest

from verl_hpc.cluster.time_limit import parse_time, signal_lead
from verl_hpc.errors import ConfigError


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("90", 5400),
        ("1:30", 90),
        ("24:00:00", 86400),
        ("00:00:01", 1),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("7-00:00:00", 604800),
    ],
)
def test_every_form_that_sbatch_reads(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "1h", "24:00:00:00", "-5", "1.5", "1-", "0-0", "٣"])
def test_what_is_no_time_limit(text):
    with pytest.raises(ConfigError) as caught:
        parse_time(text)
    assert repr(text) in str(caught.value)
    assert "24:00:00" in str(caught.value)


def test_a_long_job_is_warned_a_quarter_of_an_hour_before():
    assert signal_lead(86400, None) == (900, "")
    assert signal_lead(2700, None) == (900, "")


@pytest.mark.parametrize("limit", [1, 2, 60, 600, 2699])
def test_a_short_job_is_warned_within_its_time(limit):
    lead, reason = signal_lead(limit, None)
    assert 0 < lead <= limit
    assert lead < limit or limit == 1
    assert str(limit) in reason


def test_a_site_may_choose_the_lead():
    assert signal_lead(3600, 120) == (120, "")


@pytest.mark.parametrize("lead", [600, 601])
def test_a_lead_must_be_shorter_than_the_job(lead):
    with pytest.raises(ConfigError, match=f"signal_lead_s = {lead} .* 600 s.*ask for more time"):
        signal_lead(600, lead)
