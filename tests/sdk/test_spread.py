"""What sdk/README.md says of 200 refused clients is what the simulation shows."""

from __future__ import annotations

import re
import statistics

from tests.sdk import spread
from tests.support.server import ROOT


def test_the_tables_are_those_of_the_simulation() -> None:
    """To write them anew: python -m tests.sdk.spread."""
    shown = re.search(r"<!-- spread -->\n(.*)\n<!-- /spread -->", (ROOT / "sdk" / "README.md").read_text(), re.DOTALL)
    assert shown is not None and shown[1] == "\n".join(spread.tables())


def test_the_numbers_are_the_servers_own() -> None:
    assert (spread.PLACES, spread.PATIENCE, spread.RETRY_AFTER) == (8, 10.0, 5.0), "as the text before the tables says"


def test_without_the_share_those_who_were_refused_together_return_together() -> None:
    run = spread.simulated(share=False)
    back = [each for each in run.arrivals if each > 0]
    assert run.crowd == back.count(back[0]) == 160


def test_with_the_share_they_return_over_half_of_what_they_were_told_and_evenly() -> None:
    run = spread.simulated(share=True)
    first, last = spread.PATIENCE + spread.RETRY_AFTER, spread.PATIENCE + spread.RETRY_AFTER * 1.5
    back = [each for each in run.arrivals if first <= each <= last]
    assert len(back) == 160 and min(run.arrivals[spread.CLIENTS :]) >= first, "nobody comes earlier than told"
    fifths = [sum(first + i * 0.5 <= each < first + (i + 1) * 0.5 for each in back) for i in range(5)]
    assert max(fifths) <= 2 * 160 / 5 and run.crowd <= 160 / 8


def test_all_come_to_an_end_and_none_starves() -> None:
    run = spread.simulated(share=True)
    assert len(run.ended) == spread.CLIENTS and run.given_up == 0
    assert max(run.ended) <= 3 * statistics.median(run.ended)
    assert run.refused < spread.simulated(share=False).refused
