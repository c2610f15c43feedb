"""docs/consistency.md has the tables that `make consistency-page` writes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.cluster import test_scale, test_visibility
from tests.faults import test_flips, test_outages
from tests.support.consistency_page import PAGE, renewed
from tests.support.flips import KINDS

TABLES = {
    test_visibility.HEADINGS: [each.name for each in test_visibility.ROWS],
    test_flips.HEADINGS: [f"{kind}{mail}" for mail in ("", ", no mail") for kind in KINDS],
    test_outages.HEADINGS: list(test_outages.TROUBLES),
    test_scale.PUBLISHING: [f"{count}" for count in test_scale.INSTANCES],
    test_scale.POLLING: ["0", "1", "10"],
}


@pytest.mark.parametrize("headings", TABLES)
def test_each_table_has_its_rows_and_is_written_anew_with_its_date(headings: Sequence[str]) -> None:
    page = PAGE.read_text()
    known = set(renewed(page, headings, {}, 1, "Measured on another day").splitlines())
    for name in TABLES[tuple(headings)]:
        assert any(line.startswith(f"| {name} |") for line in page.splitlines()), f"no row of {name}"
    name = TABLES[tuple(headings)][-1]
    written = renewed(page, headings, {name: ["77777"]}, 2, "Measured on another day").splitlines()
    (row,) = set(written) - known
    assert row.startswith(f"| {name} |") and row.split("|")[3] == " 77777 "
    assert any("Measured on another day" in line for line in written)
