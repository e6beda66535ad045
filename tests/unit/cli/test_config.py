"""`config` lists and explains settings, and resolves a file."""

import pytest
import yaml

from tests.unit.cluster.requests import ROOT
from verl_hpc.cli.main import main


def shown(capsys, *words):
    assert main(["config", *words]) == 0
    return capsys.readouterr().out


def test_all_settings_are_listed_with_their_defaults(capsys):
    lines = [line.split() for line in shown(capsys).splitlines()]
    assert ["optimizer.schedule", "constant", "constant", "|", "linear", "|", "cosine"] in lines


def test_one_setting_is_explained_with_its_meaning(capsys):
    text = shown(capsys, "--explain", "optimizer.min_lr")
    assert text.startswith("optimizer.min_lr = 0.0   (number >= 0")
    assert "Where the schedule ends." in text
    assert "optimizer.lr" not in text


def test_a_section_is_explained_in_full_and_a_part_of_a_name_is_found(capsys):
    assert "rollout.verify.probe =" in shown(capsys, "--explain", "rollout.verify")
    assert "site.restarts.most = 8" in shown(capsys, "--explain", "restarts")


def test_settings_of_a_role_are_explained(capsys):
    text = shown(capsys, "--explain", "roles")
    assert "roles.NAME.head = null   (language_model | value | score or null" in text
    assert "roles.NAME.optimizer.lr = 1e-06" in text


@pytest.mark.parametrize(
    ("word", "near"), [("optimzer.lr", "did you mean optimizer.lr"), ("qqq", "no such setting")]
)
def test_a_word_that_means_nothing_is_answered_with_what_is_near(word, near, capsys):
    assert main(["config", "--explain", word]) == 1
    assert near in capsys.readouterr().err


def test_where_nothing_is_near_the_answer_is_short_and_says_where_all_are(capsys):
    assert main(["config", "--explain", "hint"]) == 1
    said = capsys.readouterr().err
    assert len(said) < 300
    assert "`python -m verl_hpc config`" in said
    assert "the nearest: checkpoint.keep, " in said


def test_a_file_is_resolved_with_overrides(capsys):
    text = shown(capsys, "--config", str(ROOT / "configs/run/grpo_8b.yaml"), "optimizer.lr=3e-6")
    assert yaml.safe_load(text)["optimizer"]["lr"] == 3e-6


@pytest.mark.parametrize(
    "words", [["optimizer.lr=1"], ["--explain", "seed", "--config", "configs/run/grpo_8b.yaml"]]
)
def test_words_that_do_not_go_together(words, capsys):
    assert main(["config", *words]) == 1
    assert capsys.readouterr().err.startswith("ConfigError: ")
