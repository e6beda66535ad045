"""The data flow on pages."""

import os

from verl_hpc.metrics.flow_view import FILE_NAME, flow_section


def test_the_text_is_shown_and_the_graph_is_not(tmp_path):
    text = "grpo(rows)\n  train  ranks 0-1  actor\n\n  train  a(actor)  x => <b>y</b>\x1b[2J\n\n"
    (tmp_path / FILE_NAME).write_text(f"{text}flowchart LR\n  op0 --> op1\n")
    page = flow_section(tmp_path)
    assert "train  a(actor)  x =&gt; &lt;b&gt;y&lt;/b&gt;\\x1b[2J</pre>" in page
    assert "flowchart" not in page and "\x1b" not in page


def test_what_cannot_be_shown_is_left_out(tmp_path):
    assert flow_section(tmp_path) == ""
    os.mkfifo(tmp_path / FILE_NAME)
    assert flow_section(tmp_path) == ""
    (tmp_path / FILE_NAME).unlink()
    (tmp_path / FILE_NAME).write_text("x" * 200_000)
    assert flow_section(tmp_path) == ""
