"""Timeline and samples of a run in a real browser."""

import itertools

from tests.unit.cli.status_runs import make_run
from verl_hpc.metrics.samples import SampleGroup, SampleLog, SampleResponse
from verl_hpc.metrics.timeline import Timeline


def test_the_timeline_shows_ranks_that_work_at_the_same_time(browser, server, tmp_path):
    run = make_run(tmp_path / "runs", "split")
    now = [1000.0]
    train, rollout = (Timeline(run, rank, None, lambda: now[0]) for rank in (0, 1))

    def work(step):
        """Rank 1 generates a step while rank 0 trains on the one before it."""
        train.begin(step - 1, "update_actor", "train")
        rollout.begin(step, "rollout", "rollout")
        now[0] += 10.0
        train.end()
        rollout.end()

    for step in range(2, 13):
        work(step)
    browser.open(server.address)
    browser.open(f"http://127.0.0.1:{server.port}/run?name=split")
    bars = "[...document.querySelectorAll('#timeline svg rect')]"
    browser.wait(f"{bars}.length === 5")
    edges = f"{bars}.map(b => [b.textContent, b.getBoundingClientRect().x])"
    edges_by_name = dict(browser.evaluate(edges))
    same = edges_by_name["step 11, update_actor, 10.0s"] - edges_by_name["step 12, rollout, 10.0s"]
    assert abs(same) < 1, "one above the other"
    words = browser.evaluate("document.querySelector('#timeline').textContent")
    assert "train" in words and "rollout" in words and "steps 10-12 of 1-12" in words
    work(13)
    browser.wait(f"{bars}.some(b => b.textContent === 'step 13, rollout, 10.0s')")
    browser.evaluate("[...document.querySelectorAll('#timeline a')].at(0).click()")
    browser.wait("location.search === '?name=split&steps=8-10'")
    browser.wait("document.querySelector('#timeline b')?.textContent === 'steps 8-10'")
    assert browser.evaluate(f"{bars}.length") == 6


def test_words_on_the_timeline_do_not_cover_each_other(browser, server, tmp_path):
    run = make_run(tmp_path / "runs", "crowd")
    for rank in range(6):
        ticks = itertools.count(1000.0, 0.7 + rank / 10)
        with Timeline(run, rank, None, lambda ticks=ticks: next(ticks)) as timeline:
            for step in range(100_000, 100_020):
                timeline.begin(step, "rollout", f"placement {rank // 2}")
                timeline.begin(step, "update_actor", f"placement {rank // 2}")
    browser.open(server.address)
    browser.open(f"http://127.0.0.1:{server.port}/run?name=crowd&steps=100000-100019")
    browser.wait("document.querySelectorAll('#timeline svg text').length > 20")
    covered = browser.evaluate(
        "(() => { const all = [...document.querySelectorAll('#timeline svg text')]"
        ".map(t => [t.textContent, t.getBoundingClientRect()]);"
        "return all.flatMap(([a, p], i) => all.slice(i + 1)"
        ".filter(([b, q]) => p.right > q.left && q.right > p.left"
        " && p.bottom - 3 > q.top && q.bottom - 3 > p.top).map(([b]) => [a, b])) })()"
    )
    assert covered == []


def test_samples_are_text_and_nothing_else(browser, server, tmp_path):
    run = make_run(tmp_path / "runs", "said")
    evil = (
        "</pre></script><img src=x onerror='window.hit = 1'><script>window.hit = 2</script>\x1b[2J"
    )
    log = SampleLog(run, None)

    def write(step):
        answers = [SampleResponse(f"{evil} {step}", 0.5, -1.25, True, step - 1)]
        log.write(step, "train", [SampleGroup(f"prompt {step}", "truth", answers)])

    write(1)
    browser.open(server.address)
    browser.open(f"http://127.0.0.1:{server.port}/run?name=said")
    browser.evaluate("document.querySelector('#status a[href^=\"/samples\"]').click()")
    browser.wait("document.querySelector('#samples pre') !== null")
    said = "[...document.querySelectorAll('#samples pre')].map(p => p.textContent)"
    shown = evil.replace("\x1b", "\\x1b")
    assert browser.evaluate(said) == ["prompt 1", "truth", f"{shown} 1"]
    words = browser.evaluate("document.querySelector('#samples').textContent")
    for part in ("score 0.5", "advantage -1.25", "weights of step 0", "ended by the length limit"):
        assert part in words
    write(2)
    browser.wait(f"{said}[0] === 'prompt 2'")
    assert browser.evaluate("window.hit === undefined")
    assert browser.evaluate("document.querySelectorAll('#samples img').length") == 0
    browser.evaluate("document.querySelector('#samples a').click()")
    browser.wait("location.search === '?name=said&step=1'")
    browser.wait(f"{said}[0] === 'prompt 1'")
    browser.resize(360, 700)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    browser.resize(1100, 900)
