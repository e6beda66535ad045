"""Slurm's notation of time, and the lead of the warning signal."""

import pytest

from verl_hpc.cluster.time_limit import parse_time, signal_lead
from verl_hpc.errors import ConfigError


def test_every_form_that_sbatch_reads():
    seconds = {"90": 5400, "1:30": 90, "24:00:00": 86400, "00:00:01": 1}
    seconds |= {"1-12": 129600, "1-12:30": 131400, "7-00:00:00": 604800}
    assert {text: parse_time(text) for text in seconds} == seconds


@pytest.mark.parametrize("text", ["", "0", "1h", "24:00:00:00", "-5", "1.5", "1-", "0-0", "٣"])
def test_what_is_no_time_limit(text):
    with pytest.raises(ConfigError) as caught:
        parse_time(text)
    assert repr(text) in str(caught.value)
    assert "24:00:00" in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "wanted", "lead"),
    [
        # A quarter of an hour before the end, or within the time of a short job; or as a site says.
        (86400, None, 900), (2700, None, 900), (3600, 120, 120),
        (2699, None, 899), (600, None, 200), (60, None, 20), (2, None, 1), (1, None, 1),
    ],
)  # fmt: skip
def test_when_a_job_is_warned(limit, wanted, lead):
    reason = f"a third of {limit} s" if limit < 2700 else ""
    assert signal_lead(limit, wanted) == (lead, reason)


def test_a_lead_must_be_shorter_than_the_job():
    for lead in (600, 601):
        told = f"signal_lead_s = {lead} .* 600 s.*ask for more time"
        with pytest.raises(ConfigError, match=told):
            signal_lead(600, lead)
