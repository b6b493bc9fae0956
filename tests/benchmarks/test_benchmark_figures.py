from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.__main__ import BENCHMARKS, benchmark_of
from benchmarks.figures import Spread, markdown_table, median_interval, relative_error, replace_section
from benchmarks.prediction import shape_error
from benchmarks.search_overhead import at_epochs

FINITE = st.floats(-1e6, 1e6)


@given(st.lists(FINITE, min_size=1, max_size=20), st.randoms())
def test_a_spread_holds_every_value_and_forgets_their_order(values: list[float], random: Random) -> None:
    spread = Spread.of(values)
    shuffled = list(values)
    random.shuffle(shuffled)

    assert Spread.of(shuffled) == spread
    assert all(spread.low <= value <= spread.high for value in values)
    assert spread.low <= spread.median <= spread.high
    assert sum(value < spread.median for value in values) <= len(values) / 2
    assert sum(value > spread.median for value in values) <= len(values) / 2
    assert spread.count == len(values)


def test_a_spread_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        Spread.of(())


@pytest.mark.parametrize(("count", "place"), [(1, 0), (5, 0), (6, 0), (9, 1), (12, 2), (20, 5), (100, 39)])
def test_a_median_lies_between_values_as_tables_of_the_binomial_distribution_say(
    count: int, place: int
) -> None:
    assert median_interval(range(count)) == (place, count - 1 - place)


def test_a_spread_is_written_in_the_unit_asked_for() -> None:
    assert Spread.of((0.001, 0.004, 0.002)).text(1e3) == "2.0 (1.0 – 4.0)"


@given(st.floats(0.01, 100.0), st.floats(0.0, 0.99))
def test_too_high_and_too_low_by_the_same_share_are_equally_wrong(measured: float, share: float) -> None:
    high = relative_error(measured * (1.0 + share), measured)
    low = relative_error(measured * (1.0 - share), measured)

    assert high == pytest.approx(share, abs=1e-9)
    assert low == pytest.approx(share, abs=1e-9)


@pytest.mark.parametrize("measured", [0.0, -1.0, float("nan")])
def test_no_error_is_relative_to_what_cannot_have_been_measured(measured: float) -> None:
    with pytest.raises(ValueError, match="no error is relative to"):
        relative_error(1.0, measured)


def test_a_table_lines_up_and_reads_as_markdown() -> None:
    table = markdown_table(("what", "n"), (("a step", "3"), ("b", "12345")))

    assert table.splitlines() == [
        "| what   |     n |",
        "| ------ | ----: |",
        "| a step |     3 |",
        "| b      | 12345 |",
    ]


def test_a_row_with_a_cell_missing_is_refused() -> None:
    with pytest.raises(ValueError, match="one cell per header"):
        markdown_table(("what", "n"), (("a step",),))


def test_only_the_named_section_is_replaced() -> None:
    text = "top\n<!-- begin a -->\nold\n<!-- end a -->\n<!-- begin b -->\nkept\n<!-- end b -->\n"

    replaced = replace_section(text, "a", "new\n")

    assert replaced == text.replace("old", "new")
    assert replace_section(replaced, "a", "new") == replaced


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<!-- begin a -->",
        "<!-- end a --><!-- begin a -->",
        "<!-- begin a --><!-- begin a --><!-- end a -->",
        "<!-- begin a --><!-- end a --><!-- end a -->",
    ],
)
def test_a_document_whose_place_is_not_clear_is_left_alone(text: str) -> None:
    with pytest.raises(ValueError, match="needs one"):
        replace_section(text, "a", "new")


@given(st.floats(1.0, 1e4), st.floats(0.0, 1.0), st.floats(1.0, 100.0), st.floats(1.0, 100.0))
def test_only_the_training_part_of_a_run_grows_with_its_epochs(
    time_s: float, startup_share: float, epochs: float, wanted: float
) -> None:
    startup_s = startup_share * time_s

    stretched_s = at_epochs(time_s, startup_s, epochs, wanted)

    assert at_epochs(time_s, startup_s, epochs, epochs) == pytest.approx(time_s)
    assert (stretched_s - startup_s) * epochs == pytest.approx((time_s - startup_s) * wanted, abs=1e-6)


def test_the_readme_has_a_place_for_every_benchmark() -> None:
    readme = Path(__file__).parents[2].joinpath("benchmarks", "README.md").read_text()

    for name in BENCHMARKS:
        assert benchmark_of(name).name == name
        assert f"## {name}\n" in readme
        assert "<new>" in replace_section(readme, name, "<new>")


def test_help_imports_no_benchmark() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "benchmarks", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rsplit("|", 1)[-1].strip() for line in told.stderr.splitlines()}

    assert set(BENCHMARKS) <= set(re.findall(r"\w+", told.stdout))
    assert "benchmarks.figures" in imported
    assert not imported & {"tensorflow", "keras", *(f"benchmarks.{name}" for name in BENCHMARKS)}


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=20), st.floats(0.1, 10.0))
def test_predictions_off_by_one_common_factor_have_the_right_shape(
    measured: list[float], factor: float
) -> None:
    assert shape_error([factor * value for value in measured], measured) == pytest.approx(0.0, abs=1e-9)


def test_one_point_out_of_line_is_an_error_of_shape() -> None:
    assert shape_error([2.0, 2.0, 3.0], [1.0, 1.0, 1.0]) == pytest.approx(0.5 / 3)
