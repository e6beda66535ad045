"""docs/migrating_from_verl.md has the table's rows."""

from pathlib import Path

from verl_hpc.migration.page import HEADING, renewed
from verl_hpc.migration.table import ROWS

PAGE = Path(__file__).parents[3] / "docs/migrating_from_verl.md"


def test_the_page_is_that_of_the_table():
    text = PAGE.read_text(encoding="utf-8")
    assert text == renewed(text)
    tables = text.partition(HEADING)[2]
    assert [row.key for row in ROWS if f"`{row.key}`" not in tables] == []
