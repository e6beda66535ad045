"""`plan calibrate` and `report scaling --predict` on runs of a made-up machine."""

import json
from dataclasses import replace

import pytest

from tests.unit.cluster.requests import ROOT
from tests.unit.config.trees import GAE, parse
from verl_hpc.cli.plan_runs import read_run
from verl_hpc.config.load import dump_config
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.planner.timing.cost import Efficiency
from verl_hpc.planner.timing.efficiency_file import read_efficiency
from verl_hpc.planner.timing.lengths import Lengths
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.step import predict_step
from verl_hpc.planner.timing.workload import workload_of

SIZES = ROOT / "configs/model/Qwen3-8B.json"
ARCH = read_architecture(SIZES)
TRUTH = replace(Efficiency(), training=0.2, inference=0.6, memory=0.5, layers=1e-4)
SITE = "name: site\ngpus_per_node: 8\ncores_per_node: 64\ngpu: H100-80\n"
PROMPT, RESPONSE, LONGEST = 200.0, 700.0, 2048


def make(directory, name, nodes, seconds=1.0, **parallel):
    """A run of the made-up machine; its own name, ranks and layout."""
    config = parse(
        **GAE,
        name=name,
        model={"path": str(SIZES)},
        parallel=parallel,
        batch={"size": 256, "mini_batches": 2},
        rollout={"max_prompt_tokens": 512, "max_response_tokens": LONGEST, "num_samples": 4},
        offload={"optimizer": True, "gradients": True, "parameters": True},
        steps=9,
    )
    layouts = run_layouts(config, ARCH, 8 * nodes)
    work = workload_of(config, PROMPT, Lengths(RESPONSE, LONGEST))
    step = predict_step(
        config, ARCH, layouts, Machine(Hardware(KINDS["H100-80"], 8), TRUTH), work=work
    )
    run = directory / "runs" / name
    (run / "job").mkdir(parents=True)
    (run / "config.yaml").write_text(dump_config(config))
    (run / "facts.json").write_text(json.dumps({"ranks": f"{8 * nodes} on {nodes} nodes"}))
    (run / "job/site.yaml").write_text(SITE)
    row = {f"timing_s/{name}": seconds * value for name, value in step.operators.items()}
    row |= {"timing_s/step": seconds * step.seconds, "time": 0.0}
    row |= {"response_length/mean": RESPONSE, "prompt_length/mean": PROMPT}
    row |= {"perf/max_memory_allocated_gb": 1.0}
    # The first steps are slow: kernels are compiled.
    slow = {key: 9 * value for key, value in row.items() if key.startswith("timing_s/")}
    rows = [row | (slow if number <= 3 else {}) | {"step": number} for number in range(1, 10)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return step


MODEL = ("--model-config", SIZES)


def test_factors_that_are_fitted_predict_a_third_layout(here, called):
    make(here, "a", 1, tensor_parallel=2)
    make(here, "b", 2, tensor_parallel=4)
    status, out, err = called("plan", "calibrate", "a", "b", *MODEL, "--out", "fit.yaml")
    assert (status, err) == (0, "")
    assert "fitted to seconds of the clock of 2 runs" in out
    assert "runs/a" in out and "wrote fit.yaml" in out
    assert (here / "fit.yaml").read_text().startswith("# Fitted by `plan calibrate`")
    # Factors that the runs do not tell are named with the run to add.
    told = out.split("these runs tell little of some factors")[1].split("\n\n")[0].splitlines()
    factors = {line.split()[0]: line for line in told[1:]}
    assert "training" not in factors and "memory" not in factors
    assert "a small part of all; add a run with another batch.size" in factors["sequences"]
    assert "not kept apart from" in factors["elementwise"]
    assert factors["elementwise"].endswith("add a run with another tensor_parallel")
    third = make(here, "c", 4, tensor_parallel=8)
    run = read_run(here / "runs/c", None, [str(SIZES)])
    machine = Machine(run.hardware, read_efficiency(here / "fit.yaml"))
    work = workload_of(run.config, PROMPT, Lengths(RESPONSE, LONGEST))
    answers = predict_step(run.config, run.archs, run.layouts, machine, work=work)
    before = replace(machine, efficiency=Efficiency())
    unfitted = predict_step(run.config, run.archs, run.layouts, before, work=work)
    assert answers.seconds == pytest.approx(third.seconds, rel=0.1)
    assert abs(unfitted.seconds / third.seconds - 1) > 0.1
    for name in ("rollout", "values", "update_actor", "update_critic"):
        assert answers.operators[name] == pytest.approx(third.operators[name], rel=0.2)


def test_of_three_runs_each_is_predicted_by_the_others(here, called):
    for name, nodes, tp in (("a", 1, 2), ("b", 2, 4), ("c", 4, 8)):
        make(here, name, nodes, tensor_parallel=tp)
    _, out, _ = called("plan", "calibrate", "a", "b", "c", *MODEL)
    table = out[out.index("  operator ") :].splitlines()
    assert "by others" in table[0]
    rows = [line.split() for line in table[1:] if "runs/" in line]
    assert {row[-1] for row in rows} == {"runs/a", "runs/b", "runs/c"}
    assert all(len(row) == 6 and row[4].endswith("%") for row in rows)
    # Of a made-up machine all of it is told but what runs cannot tell.
    assert max(abs(int(row[4][:-1])) for row in rows if row[0] == "update_actor") <= 15


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([], "name the runs"),
        (["gone"], "gone: no such run"),
        (["a", "--skip", 9], "runs/a: no step after the first 9"),
        (["a", "--skip", -1], "--skip -1"),
        (["a", "--nodes", 2], "--nodes: plan calibrate takes no such option; leave it out"),
        (["a", "--out", "gone/x.yaml"], "--out gone/x.yaml: No such file"),
        (["a", "--by", "cpu"], "it recorded no CPU seconds (cpu_s/NAME of metrics.jsonl), since"),
        (["a", "--cluster", "small.yaml"], "it had 8 ranks on 1 node, and site small has 4"),
        (["a", "--cluster", "gone.yaml"], "--cluster gone.yaml: no such file"),
    ],
)
def test_what_calibrate_refuses(here, refuses, words, answer):
    make(here, "a", 1)
    (here / "small.yaml").write_text(SITE.replace("site", "small").replace(": 8", ": 4"))
    assert answer in refuses("plan", "calibrate", *words, *MODEL)


def test_a_run_alone_tells_little_and_needs_a_site(here, prints, refuses):
    make(here, "a", 1)
    told = prints("plan", "calibrate", "a", *MODEL)
    assert told.rstrip().endswith("add one with another layout")
    (here / "runs/a/job/site.yaml").unlink()
    err = refuses("plan", "calibrate", "a", *MODEL)
    assert "no job/site.yaml" in err and "--cluster" in err


def test_the_scaling_page_has_the_prediction_beside_each_size(here, called):
    """The machine is twice as fast as it is predicted to be."""
    sizes = {"n1": 1, "n2": 2, "n4": 4}
    for name, nodes in sizes.items():
        make(here, name, nodes, 0.5, tensor_parallel=2)
    from verl_hpc.planner.timing.efficiency_file import write_efficiency

    (here / "truth.yaml").write_text(write_efficiency(TRUTH, []))
    words = ["report", "scaling", *sizes, "--predict", *MODEL, "--efficiency", "truth.yaml"]
    status, out, err = called(*words)
    assert (status, err) == (0, "")
    section = out.split("## Prediction\n")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| n")]
    assert [row[4] for row in rows] == ["+100%"] * 3
    assert all(row[5] == row[6].removesuffix(" |") for row in rows), "efficiencies"
    assert "factors of truth.yaml" in section
    assert TRUTH.basis.sentence in section and "of GPUs" not in section
    assert "| rollout | " in section
    assert called(*words, "--out", "page.md")[0] == 0
    assert (here / "page.md").read_text() == out
    assert called(*words, "--out", "gone/page.md")[0] == 1


def test_without_predict_the_page_is_as_it_was(here, prints, refuses):
    make(here, "n1", 1)
    make(here, "n2", 2)
    words = ["report", "scaling", "n1", "n2"]
    assert "## Prediction" not in prints(*words)
    assert "belong to --predict" in refuses(*words, "--efficiency", "x")
    assert "takes one run and no options" in refuses("report", "n1", "--predict")
