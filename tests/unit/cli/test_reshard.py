"""`python -m verl_hpc reshard`: figures, JSON and one-line complaints."""

import json
import re
import subprocess
import sys

import pytest

from tests.unit.layout.models import PUBLISHED
from verl_hpc.cli.reshard import parse_sizes
from verl_hpc.errors import ConfigError

SMALL = {
    "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 128,
    "torch_dtype": "bfloat16",
}  # fmt: skip

SITE = "name: here\ngpus_per_node: 2\ncores_per_node: 8\n"

SPREADS = {
    f"{name}_bytes_per_{unit}"
    for unit, names in (("rank", "received minimum allgather"), ("node", "inbound minimum_inbound"))
    for name in names.split()
}

NUMBERS = {f"{name}_seconds" for name in ("predicted", "limit", "planning")}
NUMBERS |= {"paper_bytes_per_rank", "model_bytes", "peak_bucket_bytes", "messages"}


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    return str(tmp_path)


@pytest.fixture
def reshard(model, called):
    """Run the verb on the small model with some flags changed: (status, stdout, stderr)."""

    def run(*more, **changes):
        flags = {"model": model, "train": "tp=4,dp=2", "rollout": "tp=2", "gpus-per-node": "4"}
        flags |= changes
        words = [word for name, value in flags.items() for word in (f"--{name}", value)]
        return called("reshard", *words, *more)

    return run


def test_json_has_exactly_these_figures(reshard):
    status, out, err = reshard("--json")
    found = json.loads(out)
    assert ((status, err), set(found)) == ((0, ""), SPREADS | NUMBERS | {"basis"})
    for name in SPREADS:
        assert set(found[name]) == {"min", "mean", "max"}
    assert found["model_bytes"] == 2 * (2 * 128 * 64 + 64 + 8 * (4 * 64**2 + 3 * 64 * 128 + 128))
    assert found["paper_bytes_per_rank"] == (4 - 2) / (2 * 4) * found["model_bytes"]
    assert found["received_bytes_per_rank"] == found["minimum_bytes_per_rank"]


def test_adapters_are_counted_alone(reshard):
    """A and B of the seven linear layers; a rank has half of what its engine needs of B's rows, or
    of A's columns, and all of the other factor."""
    status, out, _ = reshard("--json", "--lora-rank", "3")
    counted = json.loads(out)
    assert (status, counted["paper_bytes_per_rank"]) == (0, None)
    assert counted["model_bytes"] == 2 * 3 * 8 * (4 * (64 + 64) + 3 * (64 + 128))
    received = 2 * 3 * 8 * (3 * 64 + 64 + 2 * 128 + 128) // 4
    assert counted["received_bytes_per_rank"]["max"] == received
    assert counted["received_bytes_per_rank"] == counted["minimum_bytes_per_rank"]
    printed = reshard("--lora-rank", "3")[1]
    assert re.search(r"(?m)^adapters +\d", printed)
    assert re.search(r"merging them comes on top +see plan", printed)
    assert "merging" not in reshard()[1]


def test_predicted_seconds_say_what_they_rest_on(tmp_path, monkeypatch, reshard):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.yaml").write_text(f"{SITE}links: {{network_gb_s: 20}}\n")
    told = " ".join(reshard()[1].split())
    assert "an H100 as a default: NVLink 200, network 45 and memory 2010 GB/s per GPU." in told
    assert "no band is known" in told
    basis = json.loads(reshard("--site", "site.yaml", "--json")[1])["basis"]
    assert "of site.yaml: NVLink" in basis and "network 20 " in basis


def test_the_paper_is_null_where_its_grouping_does_not_apply(reshard):
    told = json.loads(reshard("--json", "--grouping", "contiguous")[1])
    assert told["paper_bytes_per_rank"] is None
    assert "does not apply" in reshard("--grouping", "contiguous")[1]


def test_flags_reach_the_plan(reshard):
    def figures(*more, **changes):
        return json.loads(reshard("--json", *more, **changes)[1])

    usual = figures()
    assert figures("--dtype", "float32")["model_bytes"] == 2 * usual["model_bytes"]
    assert figures(**{"gpus-per-node": "8"})["inbound_bytes_per_node"]["max"] == 0
    assert figures(train="tp=4,pp=2,dp=1")["inbound_bytes_per_node"]["max"] > 0
    assert figures(rollout="tp=4")["messages"] == 0


def test_a_site_gives_links_and_gpus_per_node(tmp_path, model, prints):
    """Half the network, and no other change: twice the seconds that the network needs."""
    site = tmp_path / "site.yaml"
    limits = []
    for network in (40.0, 20.0):
        site.write_text(f"{SITE}links: {{network_gb_s: {network}}}\n")
        words = ["--train", "tp=4,pp=2", "--rollout", "tp=2", "--site", str(site), "--json"]
        figures = json.loads(prints("reshard", "--model", model, *words))
        assert figures["limit_seconds"] < figures["predicted_seconds"]
        limits.append(figures["limit_seconds"])
        inbound = figures["inbound_bytes_per_node"]["max"]
        assert figures["limit_seconds"] == pytest.approx(inbound / (2 * network * 1e9))
    assert limits[1] == pytest.approx(2 * limits[0])


def test_neither_a_site_nor_gpus_per_node(model, refuses):
    words = ["--model", model, "--train", "tp=4", "--rollout", "tp=2"]
    assert "give --gpus-per-node N, or --site" in refuses("reshard", *words)


def test_gpus_per_node_wins_over_the_sites(tmp_path, monkeypatch, reshard):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.yaml").write_text(SITE)

    def inbound(number):
        _, out, _ = reshard("--site", "site.yaml", "--json", **{"gpus-per-node": number})
        return json.loads(out)["inbound_bytes_per_node"]["max"]

    assert inbound("8") == 0
    assert inbound("1") > 0


BAD_SITES = [
    (None, "ConfigError: --site site.yaml: no such file; profiles here: none below slurm/"),
    (SITE + "links: {network_gb_s: 0}\n", "ConfigError: --site site.yaml:\n  links.network"),
]


@pytest.mark.parametrize(("text", "message"), BAD_SITES)
def test_a_bad_site_is_named_as_it_was_given(tmp_path, monkeypatch, reshard, text, message):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "site.yaml").write_text(text)
    status, _, err = reshard("--site", "site.yaml")
    assert status == 1
    assert err.startswith(message)
    assert "--cluster" not in err


def test_the_bucket_bounds_messages(tmp_path, reshard):
    (tmp_path / "8b.json").write_text(json.dumps(PUBLISHED["Llama-3.1-8B"][0]))
    sizes = {"model": str(tmp_path / "8b.json"), "train": "tp=2"}
    _, out, _ = reshard("--json", "--bucket-mib", "1", **{**sizes, "rollout": "tp=1"})
    found = json.loads(out)
    assert found["peak_bucket_bytes"] <= 2**20
    assert found["messages"] >= 2 * found["received_bytes_per_rank"]["min"] / 2**20
    assert found["model_bytes"] == 2 * 8_030_261_248


def test_the_program_as_a_user_starts_it(tmp_path):
    """Llama-3.1-8B; (8*2 - 2)/(2*8*2) of 14.96 GiB is 6.54, norms and later stages aside."""
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["Llama-3.1-8B"][0]))
    program = [sys.executable, "-m", "verl_hpc", "reshard", "--model", str(tmp_path)]
    words = ["--train", "tp=8,pp=2,dp=2", "--rollout", "tp=2", "--gpus-per-node", "8"]
    done = subprocess.run([*program, *words], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    lines = dict(
        line.strip().split("  ", 1) for line in done.stdout.splitlines()[1:] if "  " in line.strip()
    )
    assert lines["received per rank"].split() == ["6.54", "GiB"] * 3
    assert lines["received per rank, HybridFlow"].split() == ["6.54", "GiB"]
    assert lines["model"].split() == ["14.96", "GiB"]


BAD_INPUT = [
    ({"model": "/nowhere"}, ["ModelError", "no config.json at /nowhere"]),
    ({"train": "tp=3"}, ["LayoutError", "tensor_parallel = 3", "8 attention heads"]),
    ({"train": "tp=2,pp=11"}, ["LayoutError", "8 layers", "pipeline_parallel = 11"]),
    ({"train": "tp=2,ep=2"}, ["LayoutError", "expert_parallel = 2", "no experts"]),
    ({"rollout": "tp=3"}, ["LayoutError", "tensor_parallel = 3", "8 ranks"]),
    ({"rollout": "tp=2,pp=2"}, ["ConfigError", "--rollout", "'pp=2'"]),
    ({"train": "tp=2,dp=4", "rollout": "tp=4", "grouping": "zero_redundancy"}, ["(2)", "(4)"]),
    ({"gpus-per-node": "0"}, ["ConfigError", "--gpus-per-node 0: a whole number from 1 up"]),
    ({"lora-rank": "0"}, ["ConfigError", "--lora-rank 0: a whole number from 1 up"]),
    ({"bucket-mib": "0"}, ["ConfigError", "--bucket-mib 0: a whole number from 1 up"]),
]


@pytest.mark.parametrize("changes, words", BAD_INPUT)
def test_bad_input_is_one_line_and_status_one(reshard, changes, words):
    status, out, err = reshard(**changes)
    assert ((status, out), err.count("\n")) == ((1, ""), 1)
    for word in words:
        assert word in err


AXES = ("tp", "pp", "dp")


def test_sizes():
    for text, sizes in (
        ("tp=8,pp=4,dp=2", {"tp": 8, "pp": 4, "dp": 2}),
        ("dp=2", {"dp": 2}),
        (" pp=16 , tp=1 ", {"pp": 16, "tp": 1}),
    ):
        assert parse_sizes("--train", text, AXES) == sizes


NO_SIZES = [
    ("tp=2,xp=3", "'xp=3'; give each of tp, pp, dp once"),
    ("tp=2,tp=2", "'tp=2'; give each of"),
    ("", "''; give each of"),
    ("tp=0", "tp = '0'; a whole number from 1 up"),
    ("tp=2.0", "tp = '2.0'; a whole number"),
    ("pp=two", "pp = 'two'; a whole number"),
]


@pytest.mark.parametrize("text, words", NO_SIZES)
def test_what_is_no_size_is_told_with_its_flag(text, words):
    with pytest.raises(ConfigError) as caught:
        parse_sizes("--train", text, AXES)
    assert str(caught.value).startswith(f"--train {text}: ")
    assert words in str(caught.value)
