"""The worked example of the documentation is what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_plan import lines

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT.parent / "shared" / "data" / "measured"


@pytest.mark.skipif(not MEASURED.is_dir(), reason="the measurements are not beside the checkout")
def test_the_documented_plan_is_the_one_that_comes_out() -> None:
    documented = " ".join((ROOT / "docs" / "costs.md").read_text("utf-8").split())

    for line in lines(MEASURED):
        assert " ".join(line.split()) in documented
