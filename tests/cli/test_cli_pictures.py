"""Curves as pictures and files."""

from __future__ import annotations

import csv
import io
import re
import sys
import xml.etree.ElementTree as ET

import pytest
from cli_samples import make_choice, make_curve, make_report
from matplotlib.text import Text
from scavenger_cli.curve_files import curve_csv, curve_html
from scavenger_cli.plots import INK, curve_figure, curve_svg, landmarks

from scavenger.domain.curve import TradeoffCurve
from scavenger.domain.document import report_document
from scavenger.errors import ConfigurationError

HOSTILE = "<script>alert(1)</script>&\x1b[2J$x$"
SVG = "{http://www.w3.org/2000/svg}"

CURVES = {
    6: make_curve(),
    20: make_curve((1, 2, 3, 4), (64, 128, 256, 512, 1024)),
    100: make_curve(range(1, 11), [64 * i for i in range(1, 11)]),
}


@pytest.mark.parametrize("points", CURVES)
def test_no_label_covers_another_and_none_leaves_the_picture(points: int) -> None:
    curve = CURVES[points]
    figure = curve_figure(curve, make_choice(curve), title="digits-cnn")
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
    svg = curve_svg(curve, make_choice(curve), title="digits")
    root = ET.fromstring(svg)
    words = "".join(root.itertext())

    assert root.get("role") == "img"
    assert root[0].tag == f"{SVG}title"
    assert "20 configurations" in words
    assert "time to target (hours)" in words
    assert "chosen, knee" in words
    assert INK not in svg
    assert "currentColor" in svg
    assert svg == curve_svg(curve, make_choice(curve), title="digits")


def test_hostile_names_stay_text_in_svg_and_html() -> None:
    curve = make_curve(vms=(HOSTILE, "other"))
    report = make_report(curve, name=HOSTILE)
    for text in (curve_svg(curve, make_choice(curve), title=HOSTILE), curve_html(report, curve)):
        assert "<script" not in text
        assert "\x1b" not in text
        assert "&lt;script&gt;" in text


def test_the_html_needs_nothing_else_and_lists_every_point() -> None:
    curve = CURVES[100]
    page = curve_html(make_report(curve), curve)

    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", page)
    assert page.count("<tr") == len(curve) + 1
    assert "prefers-color-scheme:dark" in page
    assert page.count("<svg") == 1


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

    assert curve_svg(curve, choice, title="edge").endswith("</svg>\n")


def test_an_axis_that_spans_more_than_ten_times_is_logarithmic() -> None:
    far = make_curve((1, 64), (64, 8192))
    assert far.time_s.max() > 10 * far.time_s.min()

    assert curve_figure(far, make_choice(far), title="far").axes[0].get_xscale() == "log"
    assert curve_figure(CURVES[6], None, title="near").axes[0].get_xscale() == "linear"


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(ConfigurationError, match=r"scavenger-ml\[plots\]"):
        curve_svg(CURVES[6], None, title="x")


def test_the_csv_has_every_point_and_no_cell_that_a_spreadsheet_would_run() -> None:
    rows = report_document(make_report(make_curve(vms=("=HYPERLINK(1)",))))["curve"]
    read = list(csv.DictReader(io.StringIO(curve_csv(rows))))

    assert [row["global_batch_size"] for row in read] == [str(row["global_batch_size"]) for row in rows]
    assert float(read[0]["time_high_s"]) == rows[0]["interval"]["time_s"][1]
    assert read[0]["vm"] == "'=HYPERLINK(1)"
    assert {row["knee"] for row in read} == {"true", "false"}
