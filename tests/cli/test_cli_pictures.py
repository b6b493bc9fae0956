"""Curves as pictures, pages and files."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import logging
import re
import struct
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
from cli_samples import make_choice, make_curve, make_report
from matplotlib.figure import Figure
from matplotlib.text import Text
from nested import changed
from plotly.offline import get_plotlyjs
from scavenger_cli.ui.curve_files import curve_csv
from scavenger_cli.ui.drawing import Drawing
from scavenger_cli.ui.plots import INK, panels_figure, panels_svg

from scavenger.domain.curve import Choice, TradeoffCurve
from scavenger.domain.document import report_document
from scavenger.domain.report import Actual
from scavenger.errors import ConfigurationError
from scavenger.presentation.figure import panel_figure
from scavenger.presentation.panel import Panel, axis_span, landmarks, panel_of, time_unit

HOSTILE = "<script>alert(1)</script>&\x1b[2J$x$"
SVG = "{http://www.w3.org/2000/svg}"

CURVES = {
    6: make_curve(),
    20: make_curve((1, 2, 3, 4), (64, 128, 256, 512, 1024)),
    100: make_curve(range(1, 11), [64 * i for i in range(1, 11)]),
}


def figure_of(curve: TradeoffCurve, choice: Choice | None) -> Figure:
    return panels_figure([Panel("digits", curve, choice)])


def svg_of(curve: TradeoffCurve, choice: Choice | None, title: str = "digits") -> str:
    return panels_svg([Panel(title, curve, choice)], title=title)


def page_of(curve: TradeoffCurve, name: str = "digits") -> str:
    """Without plotly's bundle, which is four megabytes of others' text."""
    page = Drawing(make_report(curve, name=name)).content("html").decode()
    assert get_plotlyjs() in page
    return page.replace(get_plotlyjs(), "")


def ran(panel: Panel) -> Panel:
    """As if the job had run: a fifth slower and dearer than predicted."""
    predicted = make_report(panel.curve).predicted
    assert predicted is not None
    actual = Actual(predicted.time_s * 1.2, predicted.cost_usd * 1.2, predicted.step_time_s, predicted.epochs)
    return replace(panel, predicted=predicted, actual=actual)


def test_that_a_cache_of_fonts_is_built_is_said_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    svg_of(CURVES[6], None)
    logging.getLogger("matplotlib.font_manager").warning("Matplotlib is building the font cache")
    assert not caplog.records


@pytest.mark.parametrize("points", CURVES)
def test_no_label_covers_another_and_none_leaves_the_picture(points: int) -> None:
    curve = CURVES[points]
    figure = figure_of(curve, make_choice(curve))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # without the line to its point
    must = len(landmarks(curve, make_choice(curve)))

    assert len(boxes) >= must
    for i, box in enumerate(boxes[:must]):
        assert not any(box.overlaps(other) for other in boxes[:i] + boxes[i + 1 :])
        assert axes.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1


def test_the_svg_is_well_formed_text_with_title_description_and_the_readers_colours() -> None:
    curve = CURVES[20]
    svg = svg_of(curve, make_choice(curve))
    root = ET.fromstring(svg)
    words = "".join(root.itertext())

    assert root.get("role") == "img"
    assert root[0].tag == f"{SVG}title"
    assert "20 configurations" in words
    assert "time to target (minutes)" in words
    assert "chosen, knee" in words
    assert INK not in svg
    assert "currentColor" in svg
    assert svg == svg_of(curve, make_choice(curve))


@pytest.mark.slow
def test_hostile_names_stay_text_in_svg_and_html() -> None:
    curve = make_curve(vms=(HOSTILE, "other"))
    for text in (svg_of(curve, make_choice(curve), HOSTILE), page_of(curve, HOSTILE)):
        assert "<script>alert" not in text
        assert "\x1b" not in text
        assert "&lt;script&gt;" in text
    assert page_of(curve, HOSTILE).count("<script") == page_of(make_curve(vms=("a", "b"))).count("<script")


def test_the_page_needs_nothing_else_and_lists_every_point() -> None:
    page = page_of(CURVES[100])

    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", page)
    assert page.count("<tr") == len(CURVES[100]) + 1
    assert "prefers-color-scheme: dark" in page
    assert page.count("digits: predicted time and cost") == 2  # the window's title and the heading


def test_the_page_runs_its_own_scripts_and_no_others() -> None:
    page = Drawing(make_report(CURVES[6])).content("html").decode()
    allowed = set(re.findall(r"'sha256-([^']+)'", page))
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)

    assert "unsafe-eval" not in page
    assert "script-src 'unsafe-inline'" not in page
    assert len(scripts) == 2
    assert {base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts} == allowed


def colourless(panel: Panel) -> go.Figure:
    """The page's figure as plotly itself reads it: it refuses what it does not know."""
    text = re.sub(r'"@\w+@"', '"#123456"', json.dumps(panel_figure(panel)))
    return go.Figure(json.loads(text))


@pytest.mark.parametrize("points", CURVES)
def test_over_every_point_the_page_says_k_b_vm_time_cost_their_intervals_and_why(points: int) -> None:
    curve = CURVES[points]
    panel = ran(Panel("digits", curve, make_choice(curve), deadline_s=curve.time_s.max()))
    said = [text for trace in colourless(panel).data if trace.text is not None for text in trace.text]
    hovers = [text for text in said if "e2-standard-4" in text]

    assert len(hovers) == len(curve)
    for point in curve:
        mine = f"K {point.configuration.workers}, B {point.configuration.global_batch_size:,}</b>"
        (hover,) = [text for text in hovers if mine in text]
        assert re.search(r"time [^(]+\([^)]+\)<br>cost \$[^(]+\(\$[^)]+\)", hover)
    assert sum("why: the bend of the front" in text.replace("<br>", " ") for text in hovers) == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["svg", "html"])
def test_predicted_and_actual_of_the_run_the_deadline_and_the_budget_are_shown(form: str) -> None:
    curve = CURVES[20]
    report = make_report(curve)
    assert report.predicted is not None
    deadline_s, budget_usd = float(curve.time_s.max()), 1000.0
    text = Drawing(report, deadline_s=deadline_s, budget_usd=budget_usd).content(form).decode()
    plan = Drawing(make_report(curve, planned=True)).content(form).decode()

    assert "this run, predicted" in text
    assert "deadline 1 h" in text
    assert "Beyond the picture: budget $1,000" in text
    assert "this run" not in plan
    assert "budget" not in plan


def test_time_and_cost_of_a_point_are_one_line_along_its_ray() -> None:
    curve = CURVES[6]
    axes = figure_of(curve, make_choice(curve)).axes[0]
    scale, _ = time_unit(curve.time_s)
    rays = [line for line in axes.lines if len(line.get_xdata()) == 3 and line.get_zorder() == 1]
    slopes = curve.cost_usd / (curve.time_s / scale)

    assert len(rays) == len(curve)
    for ray in rays:
        x, y = np.asarray(ray.get_xdata()), np.asarray(ray.get_ydata())
        assert y / x == pytest.approx(np.full(3, slopes[np.isclose(slopes, y[1] / x[1])][0]))


@pytest.mark.parametrize(
    ("times_s", "unit"),
    [
        ((36.0, 75.0), "seconds"),
        ((66.0, 159.0), "seconds"),
        ((301.0, 3000.0), "minutes"),
        ((0.5, 0.9), "milliseconds"),
        ((30.0, 7200.0), "seconds"),
        ((5.0, 500_000.0), "minutes"),
        ((20_000.0, 90_000.0), "hours"),
    ],
)
def test_an_axis_is_in_the_longest_unit_of_which_no_time_is_a_fraction(
    times_s: tuple[float, float], unit: str
) -> None:
    assert time_unit(np.array(times_s))[1] == unit


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 9])
@pytest.mark.parametrize("vms", [("local-1",), ("a-machine-with-a-long-name", "another-one-of-that-kind")])
def test_the_legend_is_never_wider_than_the_picture(count: int, vms: tuple[str, ...]) -> None:
    curve = make_curve((1, 2, 3, 4), [32 * 2**i for i in range(count)], vms)
    panel = ran(Panel("digits", curve, make_choice(curve), deadline_s=float(curve.time_s.max())))
    figure = panels_figure([panel])
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()

    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0
    assert sum("batch" in text.get_text() for text in figure.legends[0].get_texts()) == count


def test_png_and_pdf_are_what_their_names_say() -> None:
    drawing = Drawing(make_report(CURVES[6]))
    png, pdf = drawing.content("png"), drawing.content("pdf")
    width, height = struct.unpack(">II", png[16:24])

    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert width > height > 400
    assert pdf.startswith(b"%PDF-")
    assert pdf == drawing.content("pdf")


@pytest.mark.parametrize(
    "curve",
    [
        make_curve(price=0.0),
        make_curve((1,), (64,)),
        make_curve((1, 64), (64, 4096)),
        make_curve(deadline_s=1.0),
    ],
)
def test_free_single_far_and_ruled_out_points_can_be_drawn_too(curve: TradeoffCurve) -> None:
    choice = None if curve.knee is None else make_choice(curve)

    assert svg_of(curve, choice).endswith("</svg>\n")
    assert colourless(Panel("edge", curve, choice)).layout.xaxis.title.text


def test_an_axis_that_spans_more_than_ten_times_is_logarithmic() -> None:
    far = make_curve((1, 64), (64, 8192))
    assert far.time_s.max() > 10 * far.time_s.min()

    assert figure_of(far, make_choice(far)).axes[0].get_xscale() == "log"
    assert figure_of(CURVES[6], None).axes[0].get_xscale() == "linear"


@pytest.mark.parametrize(("package", "form"), [("matplotlib", "svg"), ("plotly.offline", "html")])
def test_without_what_draws_it_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, form: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ConfigurationError, match=r"scavenger-ml\[plots\]"):
        Drawing(make_report(CURVES[6])).content(form)


def test_an_axis_holds_the_run_and_a_limit_that_is_near() -> None:
    curve = CURVES[20]
    panel = ran(Panel("digits", curve, make_choice(curve), deadline_s=1.2 * float(curve.time_s.max())))
    assert panel.actual is not None
    far = replace(panel, actual=replace(panel.actual, time_s=10 * float(curve.time_s.max())))

    assert axis_span(panel, "time_s")[1] > panel.deadline_s  # type: ignore[operator]
    assert axis_span(far, "time_s")[1] > far.actual.time_s  # type: ignore[union-attr]
    assert axis_span(replace(panel, deadline_s=1e9), "time_s")[1] < 1e8


def test_a_plan_and_a_run_that_was_cut_short_show_no_run() -> None:
    report = make_report(CURVES[6])

    assert panel_of(report, "x").run is not None
    assert panel_of(changed(report, state="stopped"), "x").run is None
    assert panel_of(make_report(CURVES[6], planned=True), "x").run is None


def test_the_csv_has_every_point_and_no_cell_that_a_spreadsheet_would_run() -> None:
    rows = report_document(make_report(make_curve(vms=("=HYPERLINK(1)",))))["curve"]
    read = list(csv.DictReader(io.StringIO(curve_csv(rows))))

    assert [row["global_batch_size"] for row in read] == [str(row["global_batch_size"]) for row in rows]
    assert float(read[0]["time_high_s"]) == rows[0]["interval"]["time_s"][1]
    assert read[0]["vm"] == "'=HYPERLINK(1)"
    assert {row["knee"] for row in read} == {"true", "false"}
