"""What `benchmarks.forecast` makes of accounts that cannot be had by everybody."""

import csv

import pytest

from benchmarks import forecast


@pytest.mark.parametrize("name", ["none", "empty"])
def test_a_directory_without_accounts_is_named(tmp_path, name, capsys):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit):
        forecast.main([str(tmp_path / name)])
    assert f"{tmp_path / name}: has no jobs in files named *.csv" in capsys.readouterr().err


def test_a_quiet_cluster_is_foreseen(tmp_path, capsys):
    """A job an hour for two months, none of which waits."""
    rows = [_row(24 * day + hour, day + 1, hour) for day in range(30) for hour in range(24)]
    rows += [_row(9000 + number, day, 0, month=6) for number, day in enumerate(range(1, 31))]
    with (tmp_path / "jobs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows([*rows, *rows])
    assert len(list(forecast.lives_of(tmp_path))) == len(rows), "each job once"
    lives = sorted(forecast.lives_of(tmp_path), key=lambda life: life.eligible)
    row = forecast.report(lives, 1, True, 6, 12)
    assert row.startswith("| 6 x 12 h, 1 node, GPUs |")
    assert row.endswith("| 0.0 | 100% | 0% | 100% |")


def _row(number, day, hour, month=5):
    when = f"2021-{month:02}-{day:02}T{hour:02}:00:00"
    times = {f"{name}_time": when for name in ("submit", "eligible", "start")}
    asked = {"req_tres": "cpu=1,gres/gpu=1", "req_cpus": "1", "alloc_nodes": "1.0"}
    return {"job_unique_id": str(number), "elapsed_time": "60", **times, **asked}
