"""A curve as files: CSV for spreadsheets, and one HTML page that needs nothing else."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from html import escape
from typing import Any

from scavenger.domain.curve import Choice, TradeoffCurve
from scavenger.domain.report import RunReport
from scavenger_cli.formatting import clean, duration, duration_range, money, money_range, quantity
from scavenger_cli.plots import Panel, describe_panels, panels_svg
from scavenger_cli.render import relative_note

__all__ = ["curve_csv", "curve_html", "panels_html"]

_FORMULA = ("=", "+", "-", "@")
"""A cell that begins so is run as a formula by spreadsheets."""

_CSS = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
body{color:#1b1b1b;background:#fff}
svg{max-width:100%;height:auto}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid #8886;white-space:nowrap}
th:first-child,td:first-child,td:last-child,th:last-child{text-align:left}
td:last-child{white-space:normal}
tr.front{font-weight:600}
tr.out{opacity:.6}
@media(prefers-color-scheme:dark){body{color:#ececec;background:#161616}}
"""


def curve_csv(rows: list[dict[str, Any]]) -> str:
    """Every point of a report document's `curve`; unknown numbers are empty cells."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    plain = [name for name in rows[0] if name != "interval"] if rows else []
    bounds = ("time_low_s", "time_high_s", "cost_low_usd", "cost_high_usd") if rows else ()
    writer.writerow([*plain, *bounds])
    for row in rows:
        interval = [*row["interval"]["time_s"], *row["interval"]["cost_usd"]]
        writer.writerow([_cell(value) for value in (*(row[name] for name in plain), *interval)])
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = clean(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return value


def curve_html(report: RunReport, curve: TradeoffCurve) -> str:
    """One page: the picture, the choice in words, and every point in a table.

    Raises:
        ConfigurationError: If matplotlib is not installed.
    """
    choice = report.choice if isinstance(report.choice, Choice) else None
    title = f"{clean(report.job_name)}: predicted time and cost"
    return panels_html([(title, curve, choice)], title=title)


def panels_html(panels: Sequence[Panel], *, title: str) -> str:
    """One page: curves of the same configurations side by side, and each one's choice and points.

    Raises:
        ConfigurationError: If matplotlib is not installed.
    """
    svg = panels_svg(panels, title=title)
    first = panels[0][1]
    notes = [*([relative_note] if first.relative_only else []), *map(clean, first.notes)]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{escape(title)}</title><style>{_CSS}</style></head><body><main>",
        f"<h1>{escape(title)}</h1>",
        f"<figure>{svg}<figcaption>{escape(describe_panels(panels))}</figcaption></figure>",
    ]
    chosen = [_chosen(choice) for _, _, choice in panels]
    if len(panels) == 1:
        parts.append(chosen[0])
    parts.append(f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>" if notes else "")
    for words, (name, curve, choice) in zip(chosen, panels, strict=True):
        if len(panels) > 1:
            parts += [f"<h2>{escape(clean(name))}</h2>", words]
        parts.append(
            '<div class="wide" tabindex="0" role="region" aria-label="Every configuration">'
            f"{_html_table(curve, choice)}</div>"
        )
    return "\n".join((*parts, "</main></body></html>", ""))


def _chosen(choice: Choice | None) -> str:
    if choice is None:
        return ""
    return f"<p>{escape(f'Chosen: {clean(choice.configuration)}: {clean(choice.reason)}.')}</p>"


def _html_table(curve: TradeoffCurve, choice: Choice | None) -> str:
    titles = ("VM", "K", "B", "time", "90 %", "cost", "90 %", "step time", "epochs", "remarks")
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    body = []
    for index, point in enumerate(curve):
        configuration = point.configuration
        remarks = (
            ("chosen", choice is not None and configuration == choice.configuration),
            ("knee", index == curve.knee),
            ("front", point.on_front),
            ("measured", point.measured),
            ("extrapolated", point.extrapolated),
            (f"ruled out: {clean(point.excluded)}", bool(point.excluded)),
        )
        cells = (
            clean(configuration.vm),
            str(configuration.workers),
            str(configuration.global_batch_size),
            duration(point.time_s),
            duration_range(*point.time_interval_s),
            money(point.cost_usd),
            money_range(*point.cost_interval_usd),
            duration(point.step_time_s),
            quantity(point.epochs),
            ", ".join(words for words, there in remarks if there),
        )
        kind = "front" if point.on_front else "out" if point.excluded else ""
        body.append(f'<tr class="{kind}">' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
