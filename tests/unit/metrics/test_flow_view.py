"""The data flow on pages."""

import os

from verl_hpc.metrics.sections import FLOW_FILE, flow_section


def test_the_text_is_shown(tmp_path):
    text = "grpo(rows)\n  train  ranks 0-1  actor\n\n  train  a(actor)  x => <b>y</b>\x1b[2J\n"
    (tmp_path / FLOW_FILE).write_text(text)
    page = flow_section(tmp_path)
    assert "train  a(actor)  x =&gt; &lt;b&gt;y&lt;/b&gt;\\x1b[2J</pre>" in page
    assert "\x1b" not in page


def test_what_cannot_be_shown_is_left_out(tmp_path):
    assert flow_section(tmp_path) == ""
    os.mkfifo(tmp_path / FLOW_FILE)
    assert flow_section(tmp_path) == ""
    (tmp_path / FLOW_FILE).unlink()
    (tmp_path / FLOW_FILE).write_text("x" * 200_000)
    assert flow_section(tmp_path) == ""
