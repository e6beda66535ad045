"""Charts of metrics that roles and operators of any name write."""

from verl_hpc.metrics.charts import MOST_OWN, charts_of
from verl_hpc.metrics.names import CHARTS, CORRECTION_WEIGHT, LAG_MAX
from verl_hpc.metrics.sections import charts


def by_title(*names):
    found = charts_of([{"step": 1, "time": 1.0, **dict.fromkeys(names, 0.5)}])
    return {chart.title: dict(chart.curves) for chart in found}


def test_a_run_of_standard_metrics_has_the_standard_charts():
    names = [name for chart in CHARTS for name in chart.curves]
    found = charts_of([dict.fromkeys(names, 0.5)])
    assert [chart.title for chart in found] == [chart.title for chart in CHARTS]


def test_the_same_metric_of_another_role_stands_beside_it():
    found = by_title("critic/vf_loss", "cost_critic/vf_loss", "cost_critic/grad_norm")
    assert found["Value loss"] == {"critic/vf_loss": "critic", "cost_critic/vf_loss": "cost_critic"}
    assert found["Gradient norm"]["cost_critic/grad_norm"] == "cost_critic"
    assert len(found) == len(CHARTS)


def test_the_distance_of_engine_and_trainer_is_drawn_where_it_is_more_than_rounding():
    row = {"rollout_corr/kl": 8e-13, LAG_MAX: 0.0}
    titles = [
        {chart.title for chart in charts_of([row, row | change])}
        for change in ({}, {LAG_MAX: 1.0}, {CORRECTION_WEIGHT: 0.99})
    ]
    assert ["rollout_corr/kl" in each for each in titles] == [False, True, True]


def test_evaluation_sets_have_charts_of_their_own():
    names = [f"val/{s}/{m}" for s in ("aime24", "gsm8k") for m in ("accuracy", "num_prompts")]
    found = by_title("val/accuracy", *names, *(f"val/aime24/pass@{k}" for k in (1, 8, 16)))
    curves = {f"val/{name}/accuracy": name for name in ("aime24", "gsm8k")}
    assert found["Accuracy by evaluation set"] == curves
    assert found["pass@k by evaluation set"] == {"val/aime24/pass@16": "aime24, k = 16"}
    assert list(found)[1:3] == ["Evaluation score", "Accuracy by evaluation set"]
    assert len(found) == len(CHARTS) + 2


def test_tasks_have_charts_of_their_scores_and_shares_alone():
    names = [f"task/{t}/{m}" for t in "ab" for m in ("critic/score/mean", "weight", "actor/lr")]
    names.append("set/c/critic/score/mean")
    found = by_title(*names)
    assert found["Score by data set"] == {"set/c/critic/score/mean": "c"}
    assert found["Score by task"] == {f"task/{t}/critic/score/mean": t for t in "ab"}
    assert found["Share of the steps by task"] == {f"task/{t}/weight": t for t in "ab"}
    assert len(found) == len(CHARTS) + 3


def test_what_no_chart_has_gets_one_of_its_name():
    own = {
        "cost/score": {"cost/score/mean": "mean", "cost/score/max": "max"},
        "lagrange/multiplier": {"lagrange/multiplier": "multiplier"},
        "reward/margin": {"reward/margin": "margin"},
    }
    charts = by_title(*(name for curves in own.values() for name in curves))
    assert {title: charts[title] for title in own} == own


def test_what_is_on_the_page_elsewhere_has_none():
    names = ("timing_s/rollout", "perf/memory", "critic/vpred_mean", "val/num_prompts")
    assert len(by_title(*names)) == len(CHARTS)
    # Nor has a loss whose parts have charts.
    assert "cost_critic/loss" not in by_title("cost_critic/loss", "cost_critic/vf_loss")


def test_weights_of_a_correction_have_a_chart():
    whats = ("weight", "truncated")
    names = [f"{role}/correction_{what}" for role in ("actor", "b") for what in whats]
    found = by_title(*names)["Weights of algorithm.correction"]
    assert list(found) == names
    assert len(set(found.values())) == 4, "a curve hides another"
    assert len(by_title(*names)) == len(CHARTS)


def test_own_charts_are_bounded():
    found = charts_of([{f"user/{i}": 1.0 for i in range(100)}])[len(CHARTS) :]
    assert len(found) == len({chart.title for chart in found}) == MOST_OWN


def test_names_are_text_on_the_page():
    rows = [{"step": 1, "../<b>x/mean": 1.0, "../<b>x/max": 2.0}]
    page = charts(rows)
    assert "&lt;b&gt;x" in page and "<b>" not in page
