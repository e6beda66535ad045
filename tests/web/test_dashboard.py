"""The dashboard in a real browser, while a run writes."""

import http.client
import subprocess
import sys
import time

from tests.unit.cli.status_runs import STEP, beat, make_run
from verl_hpc.metrics.log import MetricsLog

CURVE = "document.querySelector('#charts figure .curve').getAttribute('d')"
CORNERS = f"{CURVE}.split('L').length"


def write(log, run, step):
    log.write(step, STEP | {"critic/score/mean": 0.1 * (step % 7)})
    beat(run, "reward", step + 1, total_steps=50)


def test_curves_grow_while_a_run_writes(browser, server, tmp_path):
    run = make_run(tmp_path / "runs", "live")
    with MetricsLog(run) as log:
        write(log, run, 1)
        write(log, run, 2)
        browser.open(server.address)
        assert browser.evaluate("location.search") == "", "the token is gone from the address"
        browser.wait("document.querySelector('.runs a').textContent === 'live'")
        browser.evaluate("document.querySelector('.runs a').click()")
        browser.wait("document.querySelector('#charts figure .curve') !== null")
        browser.wait("document.getElementById('connection').textContent === 'page up to date'")
        assert browser.evaluate(CORNERS) == 2
        browser.evaluate("window.neverLoadedAgain = true")
        for step in (3, 4, 5):
            write(log, run, step)
            browser.wait(f"{CORNERS} === {step}")
        browser.wait("document.querySelector('progress').value === 5")
        assert browser.evaluate("document.querySelector('#status').textContent.includes('reward')")
        assert browser.evaluate("window.neverLoadedAgain") is True


def test_without_the_token_the_browser_sees_nothing(browser, server, tmp_path):
    make_run(tmp_path / "runs", "secret")
    browser.open(f"http://127.0.0.1:{server.port}/?token=wrong")
    assert browser.evaluate("document.body.textContent").startswith("403 Forbidden")
    browser.open(f"http://localhost:{server.port}/")
    assert "secret" not in browser.evaluate("document.body.textContent")


def test_the_browser_keeps_to_the_policy(browser, server, tmp_path):
    """Scripts in what runs say would not run even if they got into the page."""
    make_run(tmp_path / "runs", "a")
    browser.open(server.address)
    browser.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hit = 1\">')"
    )
    time.sleep(0.3)
    assert browser.evaluate("window.hit === undefined")
    status = browser.evaluate("fetch('/run?name=..%2F..%2Fetc').then(a => a.status)")
    assert status == 404


def test_a_dashboard_that_has_ended_is_told(browser, tmp_path):
    command = [sys.executable, "-m", "verl_hpc", "dashboard", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            browser.open(process.stdout.readline().strip())
            browser.wait("document.getElementById('connection').textContent === 'page up to date'")
        finally:
            process.terminate()
    browser.wait("document.getElementById('connection').className === 'lost'")


def test_light_and_dark_and_narrow(browser, server, tmp_path):
    run = make_run(tmp_path / "runs", "a" * 40)
    with MetricsLog(run) as log:
        write(log, run, 1)
        write(log, run, 2)
    browser.open(server.address)
    browser.open(f"http://127.0.0.1:{server.port}/run?name={'a' * 40}")
    colours = []
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        colours.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours[0] != colours[1]
    browser.resize(360, 700)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    browser.resize(1100, 900)
    assert browser.evaluate("[...document.querySelectorAll('svg')].every(s => s.ariaLabel)")


def test_a_port_of_the_loopback_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request("GET", "/")
    assert connection.getresponse().status == 403
    connection.close()
