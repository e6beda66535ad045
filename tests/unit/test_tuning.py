"""docs/tuning.md: its settings, metrics, links and figures are there."""

import re
import shlex
from pathlib import Path

import pytest

from verl_hpc.cli.main import main
from verl_hpc.config.run import RunConfig
from verl_hpc.config.settings import settings_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tuning.md").read_text(encoding="utf-8")
SETTINGS = {info.name for info in settings_of(RunConfig)}
SECTIONS = {name.partition(".")[0] for name in SETTINGS}
WORDS = re.findall(r"`([^`\n]+)`", PAGE)


def named_settings():
    """Dotted words that begin with a section's name, without their value."""
    dotted = [re.match(r"[a-z_]+(?:\.\w+)+", word) for word in [*WORDS, *PAGE.split()]]
    return {d[0] for d in dotted if d and d[0].partition(".")[0] in SECTIONS}


def is_one(name):
    """Also a section, and `roles.NAME.offload`."""
    return name in SETTINGS or any(known.startswith(f"{name}.") for known in SETTINGS)


def test_what_the_page_names_are_settings():
    files = {"metrics.jsonl"}
    named = named_settings() - files
    assert len(named) > 40
    assert [name for name in named if not is_one(name)] == []


def test_metrics_of_the_page_are_the_programs():
    """Operators as `timing_s/NAME`, and other metrics by their whole name."""
    source = "".join(
        path.read_text(encoding="utf-8")
        for room in ("step", "generation", "trainer", "metrics")
        for path in (ROOT / "verl_hpc" / room).rglob("*.py")
    )
    metrics = {w for w in WORDS if re.fullmatch(r"[a-z_]+/\w+", w)} - {
        "timing_s/NAME",
        "cpu_s/NAME",
    }
    assert len(metrics) > 8
    for metric in metrics:
        prefix, _, name = metric.partition("/")
        pattern = (
            rf"def {name}\b|\"{name}\"|\b{name}\b *:" if prefix in ("timing_s", "cpu_s") else metric
        )
        assert re.search(pattern, source), metric


def test_links_lead_somewhere():
    for target, anchor in re.findall(r"\]\(([^)#]+)(#[^)]*)?\)", PAGE):
        file = ROOT / "docs" / target
        assert file.exists(), target
        headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        anchors = ["#" + re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
        assert not anchor or anchor in anchors, (target, anchor)


def sentences_with_results():
    """Each sentence that ends in a link to a page of results, and that page."""
    text = " ".join(PAGE.split())
    for part, file in re.findall(r"([^()]*)\(\[page\]\(\.\./(benchmarks/results/[^)]+)\)\)", text):
        yield re.split(r"(?<=[a-z`*)])[.:] ", part)[-1], file


@pytest.mark.parametrize(("sentence", "file"), sentences_with_results())
def test_figures_are_those_of_their_page(sentence, file):
    results = (ROOT / file).read_text(encoding="utf-8")
    figures = re.findall(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?![\w-])", sentence)
    assert figures, sentence
    missing = [f for f in figures if not re.search(rf"(?<![\d.]){re.escape(f)}(?!\d)", results)]
    assert missing == [], sentence


def test_the_page_has_no_figures_without_a_page():
    """Figures are of seconds, shares, bytes and ratios."""
    linked = "".join(sentence for sentence, _ in sentences_with_results())
    figures = re.findall(r"\d[\d,.]* (?:%|ms|s|bytes|points|of the time|times)\b", PAGE)
    assert [f for f in figures if f not in linked] == []


@pytest.mark.parametrize("verb", ["status", "plan", "report", "doctor"])
def test_verbs_of_the_page_are_verbs(verb, capsys):
    assert re.search(rf"(?:python -m verl_hpc |`){verb}\b", PAGE)
    with pytest.raises(SystemExit) as left:
        main([verb, "--help"])
    assert left.value.code == 0 and capsys.readouterr().out


def test_submissions_of_the_page_have_what_submit_wants(capsys):
    """They get as far as the site profile that is not here."""
    page = PAGE.replace("\\\n", "")
    commands = re.findall(r"^    python -m verl_hpc\.submit (.*)$", page, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert main(["submit", *shlex.split(command)]) == 1
        assert "my_site.yaml: no such file" in capsys.readouterr().err
