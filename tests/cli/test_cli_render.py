"""What is printed fits 80 columns, says what it must, and needs neither colour nor Unicode."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from cli_samples import make_choice, make_curve, make_infeasible_report, make_report
from hypothesis import given
from hypothesis import strategies as st
from nested import changed
from rich.console import Console
from rich.text import Text
from scavenger_cli.ui import console, render
from scavenger_cli.ui.terminal_picture import TerminalPicture

from scavenger.domain.curve import Choice, TradeoffCurve
from scavenger.domain.document import report_document, report_from_document
from scavenger.domain.report import (
    Actual,
    EpochsForecast,
    MetricOutcome,
    Predicted,
    RunReport,
    SearchOutcome,
    time_error,
)
from scavenger.presentation.picture import draw
from scavenger.search.choose import choose

LARGE = make_curve(
    range(1, 11), [64 * i for i in range(1, 11)], ("e2-standard-4", "n2-standard-8"), deadline_s=900
)


def printed(*parts: object) -> str:
    stream = io.StringIO()
    console.emit(*parts, stream=stream)  # type: ignore[arg-type]
    return stream.getvalue()


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize(
    "report", [make_report(), make_report(planned=True), make_report(LARGE), make_infeasible_report()]
)
def test_no_line_of_a_report_is_longer_than_80_columns(report: RunReport, verbose: bool) -> None:
    text = printed(*render.report_text(report, verbose=verbose))

    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert text.isascii()


def test_a_report_says_what_was_chosen_what_was_predicted_and_what_came() -> None:
    text = printed(*render.report_text(make_report()))

    assert len(text.splitlines()) <= 20
    assert "scavenger explain" in text
    assert "Chosen: 2 x e2-standard-4, batch 128 (knee): the bend of the front: faster costs" in text
    assert "-20.0 %" in text  # 1.25 times as slow as predicted
    assert "val_accuracy 0.971, target 0.97 reached" in " ".join(text.split())
    assert "/home/u/.scavenger/model.keras" in text


@given(
    reason=st.text(alphabet="abcde ", max_size=600),
    warnings=st.lists(st.text(alphabet="abcde ", max_size=400), max_size=12),
    metric=st.text(alphabet="abcde_", min_size=1, max_size=60),
)
def test_the_end_of_a_job_fits_twenty_rows_whatever_there_is_to_tell(
    reason: str, warnings: list[str], metric: str
) -> None:
    report = make_report()
    assert isinstance(report.choice, Choice)
    assert report.result.metric is not None
    report = replace(
        report,
        choice=replace(report.choice, reason=reason),
        warnings=tuple(warnings),
        estimate=object(),  # type: ignore[arg-type]
        result=replace(report.result, metric=replace(report.result.metric, name=metric)),
    )
    text = printed(*render.report_text(report))

    assert len(text.splitlines()) <= render.SUMMARY_ROWS, text
    assert len(re.findall("^warning:", text, re.MULTILINE)) == min(len(warnings), render.WARNINGS)
    assert ("more warning" in text) == (len(warnings) > render.WARNINGS)
    for words in (
        "Job digits-cnn",
        "Chosen: 2 x e2-standard-4",
        "off by",
        "/home/u/.scavenger/model.keras",
        "next",
    ):
        assert words in text


def test_the_front_comes_first_and_the_chosen_point_is_marked() -> None:
    curve = make_curve()
    lines = printed(*render.curve_table(curve, make_choice(curve))).splitlines()
    rows = [line for line in lines if " min " in line]
    on_front = ["*" in row.split("  ")[0] for row in rows]

    assert len(rows) == 6
    assert on_front == sorted(on_front, reverse=True)
    assert sum(row.startswith(">") for row in rows) == 1


def test_what_a_batch_size_gives_up_of_a_fixed_number_of_epochs_is_shown() -> None:
    curve = make_curve()
    shares = 1.0 / (1.0 + curve.configurations.global_batch_size / 300.0)
    text = printed(*render.report_text(make_report(replace(curve, progress_share=shares)), verbose=True))

    titles, *_ = (line for line in text.splitlines() if line.lstrip().startswith("K "))
    chosen = next(line for line in text.splitlines() if line.startswith(">"))
    assert titles.endswith("progress")
    assert chosen.split()[2] == "128"
    assert chosen.endswith("70 %")
    assert re.search(r"fastest [^%]*, \d+ % of the progress", " ".join(text.split()))
    assert max(map(len, text.splitlines())) <= 80


def test_on_a_narrow_terminal_numbers_stay_whole_and_the_intervals_go() -> None:
    curve = make_curve()
    stream = io.StringIO()
    narrow = Console(file=stream, width=40, color_system=None)
    for part in render.curve_table(curve, make_choice(curve)):
        narrow.print(part)
    rows = re.findall(r"^[>k*me]* +(\d+) +(\d+) +\S+ (?:min|s) .*\$\S+$", stream.getvalue(), re.MULTILINE)

    assert "(90 %)" not in stream.getvalue()
    assert sorted(int(batch) for _, batch in rows) == sorted(
        int(b) for b in curve.configurations.global_batch_size
    )


def test_a_job_that_failed_before_the_search_says_nothing_of_one() -> None:
    report = changed(
        make_report(planned=True),
        state="failed",
        search=SearchOutcome("none", "nothing was searched", (), 0.0, 0.0),
        curve=None,
        choice=None,
        predicted=None,
        metric=MetricOutcome("val_mae", None, 0.5, False),
    )
    text = printed(*render.report_text(report))

    assert text.startswith("Job digits-cnn")
    assert "earch" not in text
    assert "val_mae" not in text


def test_ruled_out_configurations_are_counted_with_their_reason_and_not_listed() -> None:
    excluded = int((LARGE.marks.excluded > 0).sum())
    text = printed(*render.curve_table(LARGE, make_choice(LARGE)))

    assert excluded > 1
    assert f"ruled out: {excluded} configurations: slower than the deadline" in text
    assert f"and {len(LARGE) - excluded - render.ROWS} more configurations" in text


def test_the_chosen_point_is_shown_even_where_the_table_is_cut() -> None:
    text = printed(*render.curve_table(LARGE, make_choice(LARGE), rows=2))

    assert any(line.startswith(">") for line in text.splitlines())


def test_without_known_epochs_ratios_are_shown_instead_of_figures() -> None:
    curve = make_curve(relative_only=True)
    text = printed(*render.curve_table(curve, make_choice(curve)))

    assert "$" not in text
    assert " min" not in text
    assert "1.00" in text


def test_saying_yes_is_asked_with_time_cost_and_their_intervals() -> None:
    report = make_report()
    assert report.curve is not None
    assert report.predicted is not None
    text = printed(*render.confirmation(report.curve, make_choice(report.curve), report.predicted))

    assert text.startswith("You will pay about $")
    assert "in 23 min" in text
    assert text.count("90 %") == 2


def test_names_cannot_carry_terminal_escapes_or_markup_into_the_output() -> None:
    curve = make_curve(vms=("\x1b[2J[red]vm",))
    text = printed(*render.report_text(make_report(curve, planned=True, name="a\x1b]0;owned\x07b\rc")))

    assert "\x1b" not in text
    assert "\r" not in text
    assert "[red]vm" in text


def plotted(curve: TradeoffCurve, choice: Choice | None, width: int = 80, encoding: str = "utf-8") -> str:
    """The picture of a curve as a stream of this width and encoding gets it, without colours."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    Console(file=stream, width=width, color_system=None).print(TerminalPicture(draw(curve, choice, "digits")))
    stream.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("curve", [make_curve(), make_curve((1, 2, 3, 4), (64, 128, 256, 512, 1024)), LARGE])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_picture_fits_its_width_needs_no_colour_and_shows_the_choice_once(
    curve: TradeoffCurve, encoding: str
) -> None:
    choice = make_choice(curve)
    for width in (40, 80, 200):
        text = plotted(curve, choice, width, encoding)
        rows = [line.split("|", 1)[1] for line in text.splitlines() if "|" in line]
        assert sum(line.count("@") for line in rows) == 1
        assert max(map(len, text.splitlines())) <= width
        assert sum(line.startswith("@ chosen") for line in text.splitlines()) == 1
        front = "." if encoding == "ascii" else chr(0x2800)
        assert any(letter >= front if encoding != "ascii" else letter == front for letter in "".join(rows))


def test_the_picture_begins_with_what_it_says_for_who_cannot_see_it() -> None:
    curve = make_curve((1, 2, 4, 8), (64, 128, 256))
    choice = choose(curve, "cost")
    assert isinstance(choice, Choice)
    words = " ".join(plotted(curve, choice).split("\n\n")[0].split())

    assert words == " ".join(draw(curve, choice, "digits").caption)
    assert "Twice the speed costs" in words


def test_paths_stay_whole_on_one_line_so_that_they_can_be_copied() -> None:
    path = "/home/u/" + "long/" * 30 + "model.keras"
    report = changed(make_report(), model_path=path)

    assert any(line.endswith(path) for line in printed(*render.report_text(report)).splitlines())


def test_a_plot_of_nothing_says_so() -> None:
    assert "No allowed configuration" in plotted(make_curve(deadline_s=0.5), None)


def test_what_a_stream_cannot_encode_is_replaced_by_as_many_plain_characters() -> None:
    console.prepare_streams()
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="scavenger-plain")
    console.write(stream, "2 × é…漢")

    assert raw.getvalue() == b"2 x e.?"


def _off(epochs: float, step_time_s: float, other_s: float = 0.0) -> RunReport:
    """A run of 100 s that was predicted with so many times its epochs and step time; 20 s were spent before."""
    actual = Actual(time_s=100.0, cost_usd=0.01, step_time_s=0.05, epochs=16.0)
    predicted = Predicted(
        time_s=20.0 + 80.0 * epochs * step_time_s + other_s,
        time_interval_s=(50.0, 300.0),
        cost_usd=0.01,
        cost_interval_usd=(0.005, 0.03),
        step_time_s=0.05 * step_time_s,
        epochs=16.0 * epochs,
        spent_s=20.0,
    )
    curve = replace(make_curve(), notes=("epochs from goal.epochs_hint: 30 at batch 32", "another"))
    return changed(make_report(curve), predicted=predicted, actual=actual)


@given(
    st.floats(0.1, 10.0),
    st.floats(0.1, 10.0),
    st.floats(0.0, 50.0),
)
def test_the_causes_of_an_error_in_time_add_up_to_it(
    epochs: float, step_time_s: float, other_s: float
) -> None:
    report = _off(epochs, step_time_s, other_s)
    assert report.predicted is not None
    assert report.result.actual is not None
    error = time_error(report.predicted, report.result.actual)

    assert error is not None
    assert error.epochs_s + error.step_time_s + error.other_s == pytest.approx(error.whole_s, abs=1e-6)
    assert error.epochs_s * (epochs - 1.0) >= 0.0
    assert error.step_time_s * (step_time_s - 1.0) >= 0.0
    assert error.other_s == pytest.approx(0.0, abs=1e-6) or other_s > 0.0


def test_an_error_is_told_by_cause_with_the_source_of_the_epochs() -> None:
    report = _off(30 / 16, 0.98)
    text = " ".join(printed(*render.report_text(report, verbose=True)).split())
    document = report_document(report)

    assert "time off by +67.0 %: +69.2 % from epochs (30 predicted, 16 trained" in text
    assert "epochs from goal.epochs_hint: 30 at batch 32" in text.split("trained")[1]
    assert "-2.2 % from step time, 0 % from the rest" in text
    assert document["time_error"]["from_epochs_s"] == pytest.approx(69.2, abs=0.1)
    assert report_document(report_from_document(document)) == document


def test_a_run_that_was_cut_short_is_not_held_against_what_was_predicted_of_its_end() -> None:
    text = printed(*render.report_text(changed(_off(2.0, 1.0), state="interrupted"), verbose=True))

    assert "off by" not in text
    assert "from epochs" not in text


def test_a_prediction_says_what_was_added_to_the_figure_in_the_table() -> None:
    report = _off(1.0, 1.0)
    predicted, actual = report.predicted, report.result.actual
    assert predicted is not None
    assert actual is not None
    ended = changed(
        report,
        predicted=replace(predicted, time_s=102.0, end_s=2.0),
        actual=replace(actual, time_s=actual.time_s + 3.0, end_s=3.0),
    )
    text = " ".join(printed(*render.report_text(ended, verbose=True)).split())

    assert (
        "time predicted: 20 s until the choice and for starting workers, 1 min 20 s (actual: 1 min 20 s)"
        in text
    )
    assert "for the remaining 100 % of the training, which takes 23 min" in text
    assert "and 2 s (actual: 3 s) for saving the model and ending the processes" in text
    error = time_error(ended.predicted, ended.result.actual)
    assert error is not None
    assert (error.whole_s, error.epochs_s, error.step_time_s) == pytest.approx((-1.0, 0.0, 0.0), abs=1e-9)


def test_one_note_is_shown_and_all_where_they_are_asked_for() -> None:
    curve = replace(make_curve(), notes=tuple(f"remark {number}" for number in range(5)))
    short = printed(*render.curve_table(curve, make_choice(curve)))
    whole = printed(*render.curve_table(curve, make_choice(curve), verbose=True))

    assert short.count("note: remark") == 1
    assert "and 4 more notes: -v shows them" in short
    assert whole.count("note: remark") == 5
    assert "more note" not in whole


def test_the_course_of_the_forecast_epochs_is_shown() -> None:
    forecasts = tuple(
        EpochsForecast(after, epochs, (0.7 * epochs, 1.4 * epochs), 80.0, 0.006, 0.05, 0.9)
        for after, epochs in ((3, 40.0), (6, 26.3))
    )
    report = make_report()
    report = replace(report, result=replace(report.result, forecasts=forecasts))
    text = printed(*render.report_text(report, verbose=True))

    assert "after 3: 40 (28-56), after 6: 26.3 (18-37)" in " ".join(text.split())


LONG_PATH = "/home/ann/" + "a-long-name-of-a-folder/" * 5 + "model.keras"


def test_paths_in_texts_and_tables_are_never_broken() -> None:
    grid = render.table(("when", "left"), ("what", "left"))
    grid.add_row("13:00", f"the model was written to {LONG_PATH}, which has all that is needed to go on")
    grid.add_row("13:01", "done")
    words = "and some words " * 8
    lines = printed(Text(f"warning: {words}{LONG_PATH} {words}"), "", grid).splitlines()
    in_text, in_table = (line for line in lines if LONG_PATH in line)

    assert in_text == LONG_PATH
    assert in_table.split()[0].startswith(LONG_PATH)
    assert all(len(line) <= console.PLAIN_WIDTH for line in lines[: lines.index("")] if line != LONG_PATH)


@pytest.mark.parametrize("width", [1, 7, 20, 80])
def test_lines_are_broken_between_words_only_and_nothing_is_lost(width: int) -> None:
    text = Text("  two spaces, a-long-word and\nanother line,  with more words\n")
    broken = console.unbroken(text, width).plain

    assert broken.split() == text.plain.split()
    assert all(len(line) <= width or len(line.split()) == 1 for line in broken.splitlines())
