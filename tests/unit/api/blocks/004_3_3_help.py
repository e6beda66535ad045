"""works: help of the program that trains."""

import pydoc

from verl_hpc.trainer import main_ppo

text = pydoc.plain(pydoc.render_doc(main_ppo))

# What it shows.
assert "Start a run from verl's command line" in text
