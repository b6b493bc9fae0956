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

import numpy as np
import plotly.graph_objects as go
import pytest
from cli_samples import make_choice, make_curve, make_report
from matplotlib.figure import Figure
from matplotlib.text import Text
from plotly.offline import get_plotlyjs
from scavenger_cli.ui.curve_files import curve_csv
from scavenger_cli.ui.drawing import Drawing

from scavenger.domain.curve import Choice, TradeoffCurve
from scavenger.domain.document import report_document
from scavenger.domain.report import Actual
from scavenger.errors import ConfigurationError
from scavenger.pictures.still import INK, figure_of, svg_of
from scavenger.presentation.axes import time_unit
from scavenger.presentation.figure import picture_figure
from scavenger.presentation.picture import SHAPES, Picture, describe, draw

pytestmark = pytest.mark.slow

HOSTILE = "<script>alert(1)</script>&\x1b[2J$x$"
SVG = "{http://www.w3.org/2000/svg}"

CURVES = {
    6: make_curve(),
    20: make_curve((1, 2, 3, 4), (64, 128, 256, 512, 1024)),
    100: make_curve(range(1, 11), [64 * i for i in range(1, 11)]),
}


def drawn(curve: TradeoffCurve, choice: Choice | None = None) -> Figure:
    return figure_of([draw(curve, choice, "digits")])


def svg(curve: TradeoffCurve, choice: Choice | None, title: str = "digits") -> str:
    return svg_of([draw(curve, choice, title)], title=title)


def page_of(curve: TradeoffCurve, name: str = "digits") -> str:
    """Without plotly's bundle, which is four megabytes of others' text."""
    page = Drawing(make_report(curve, name=name)).content("html").decode()
    assert get_plotlyjs() in page
    return page.replace(get_plotlyjs(), "")


def ran(curve: TradeoffCurve, slower: float = 1.2, deadline_s: float | None = None) -> Picture:
    """As if the job had run: so many times slower and dearer than predicted."""
    predicted = make_report(curve).predicted
    assert predicted is not None
    actual = Actual(
        predicted.time_s * slower, predicted.cost_usd * slower, predicted.step_time_s, predicted.epochs
    )
    return draw(curve, make_choice(curve), "digits", run=(predicted, actual), deadline_s=deadline_s)


def test_that_a_cache_of_fonts_is_built_is_said_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    svg(CURVES[6], None)
    logging.getLogger("matplotlib.font_manager").warning("Matplotlib is building the font cache")
    assert not caplog.records


@pytest.mark.parametrize("points", CURVES)
def test_no_label_covers_another_and_none_leaves_the_picture(points: int) -> None:
    curve = CURVES[points]
    picture = draw(curve, make_choice(curve), "digits")
    figure = figure_of([picture])
    figure.draw_without_rendering()
    axes = figure.axes[0]
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # without the line to its point
    must = sum(label.kind != "point" for label in picture.labels)

    assert len(boxes) >= must
    for i, box in enumerate(boxes[:must]):
        assert not any(box.overlaps(other) for other in boxes[:i] + boxes[i + 1 :])
        assert axes.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
    for text in axes.texts[:must]:
        assert np.hypot(*text.get_position()) <= 85.0  # points: a longer line would be taken for data


def test_the_svg_is_well_formed_text_with_title_description_and_the_readers_colours() -> None:
    curve = CURVES[20]
    text = svg(curve, make_choice(curve))
    root = ET.fromstring(text)
    words = "".join(root.itertext())

    assert root.get("role") == "img"
    assert root[0].tag == f"{SVG}title"
    assert "20 configurations" in words
    assert "time to target (minutes)" in words
    assert "chosen, knee" in words
    assert root.findtext(f"{SVG}desc") == describe(draw(curve, make_choice(curve), "digits"))
    assert INK not in text
    assert "currentColor" in text
    assert text == svg(curve, make_choice(curve))


@pytest.mark.slow
def test_hostile_names_stay_text_in_svg_and_html() -> None:
    curve = make_curve(vms=(HOSTILE, "other"))
    for text in (svg(curve, make_choice(curve), HOSTILE), page_of(curve, HOSTILE)):
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


def colourless(picture: Picture) -> go.Figure:
    """The page's figure as plotly itself reads it: it refuses what it does not know."""
    text = re.sub(r'"@\w+@"', '"#123456"', json.dumps(picture_figure(picture)))
    return go.Figure(json.loads(text))


@pytest.mark.parametrize("points", CURVES)
def test_over_every_point_the_page_says_k_b_vm_time_cost_their_intervals_and_why(points: int) -> None:
    curve = CURVES[points]
    picture = ran(curve, deadline_s=float(curve.time_s.max()))
    said = [text for trace in colourless(picture).data if trace.text is not None for text in trace.text]
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

    assert "this run" in text
    assert "deadline 1 h" in text
    assert "Beyond the picture: budget $1,000" in text
    assert "this run" not in plan
    assert "budget" not in plan


def test_time_and_cost_of_a_point_are_one_line_along_its_ray() -> None:
    curve = CURVES[6]
    axes = drawn(curve, make_choice(curve)).axes[0]
    scale, _ = time_unit(curve.time_s)
    rays = [line for line in axes.lines if len(line.get_xdata()) == 3 and line.get_zorder() == 1]
    slopes = curve.cost_usd / (curve.time_s / scale)

    assert len(rays) == len(curve)
    for ray in rays:
        x, y = np.asarray(ray.get_xdata()), np.asarray(ray.get_ydata())
        assert y / x == pytest.approx(np.full(3, slopes[np.isclose(slopes, y[1] / x[1])][0]))


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 9])
@pytest.mark.parametrize("vms", [("local-1",), ("a-machine-with-a-long-name", "another-one-of-that-kind")])
def test_the_legend_is_never_wider_than_the_picture(count: int, vms: tuple[str, ...]) -> None:
    curve = make_curve((1, 2, 3, 4), [32 * 2**i for i in range(count)], vms)
    figure = figure_of([ran(curve, deadline_s=float(curve.time_s.max()))])
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()

    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0
    assert sum("batch" in text.get_text() for text in figure.legends[0].get_texts()) in (count * len(vms), 0)
    assert (len(figure.axes) == 1) == (count * len(vms) <= SHAPES)  # or a bar tells the batch sizes


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

    assert svg(curve, choice).endswith("</svg>\n")
    assert colourless(draw(curve, choice, "edge")).layout.xaxis.title.text


@pytest.mark.parametrize("points", CURVES)
def test_every_series_has_a_marker_of_its_own(points: int) -> None:
    """So batch sizes can be told apart without colours."""
    curve = CURVES[points]
    picture = draw(curve, make_choice(curve), "digits")
    named = [one.get_text() for one in drawn(curve).legends[0].get_texts()]
    symbols = {
        trace.name: str(trace.marker.symbol[0]).removesuffix("-open")
        for trace in colourless(picture).data
        if trace.name.startswith("batch")
    }

    assert len(set(symbols.values())) == len(symbols) == len(picture.batches)
    assert set(symbols) <= set(named)


@pytest.mark.parametrize(("package", "form"), [("matplotlib", "svg"), ("plotly.offline", "html")])
def test_without_what_draws_it_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, form: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ConfigurationError, match=r"scavenger-ml\[plots\]"):
        Drawing(make_report(CURVES[6])).content(form)


def test_the_csv_has_every_point_and_no_cell_that_a_spreadsheet_would_run() -> None:
    rows = report_document(make_report(make_curve(vms=("=HYPERLINK(1)",))))["curve"]
    read = list(csv.DictReader(io.StringIO(curve_csv(rows))))

    assert [row["global_batch_size"] for row in read] == [str(row["global_batch_size"]) for row in rows]
    assert float(read[0]["time_high_s"]) == rows[0]["interval"]["time_s"][1]
    assert read[0]["vm"] == "'=HYPERLINK(1)"
    assert {row["knee"] for row in read} == {"true", "false"}
