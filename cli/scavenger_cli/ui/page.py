"""A curve as one self-contained interactive HTML page, which includes plotly's bundle (extra `plots`)."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files

from scavenger.domain.curve import Choice, TradeoffCurve
from scavenger.errors import ConfigurationError
from scavenger.presentation.figure import picture_figure, themes
from scavenger.presentation.formatting import (
    clean,
    duration_ranges,
    durations,
    money_ranges,
    moneys,
    quantity,
)
from scavenger.presentation.picture import RELATIVE_NOTE, Picture, describe


def pictures_page(pictures: Sequence[Picture], *, title: str) -> str:
    """One page with one or more curves of the same configurations, with their choices and points.

    Raises:
        ConfigurationError: If plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ConfigurationError(
            "an interactive page needs plotly: pip install 'scavenger-ml[plots]' "
            "(or use --format terminal, csv or json)"
        ) from error
    bundle = get_plotlyjs().replace("\r\n", "\n").replace("\r", "\n")  # as a browser reads, and hashes, it
    script = files(__package__).joinpath("page.js").read_text("utf-8")
    style = files(__package__).joinpath("page.css").read_text("utf-8")
    allowed = " ".join(f"'sha256-{_sha256(one)}'" for one in (bundle, script))
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; img-src data: blob:; font-src data:"
    batches = max(len(picture.batches) for picture in pictures)
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            f"<title>{escape(clean(title))}</title><style>{style}</style></head><body><main>",
            f"<h1>{escape(clean(title))}</h1>",
            *(part for at, one in enumerate(pictures) for part in _section(one, at, len(pictures))),
            _notes(pictures),
            f'<script type="application/json" id="themes">{_json(themes(batches))}</script>',
            f"<script>{bundle}</script>",
            f"<script>{script}</script>",
            "</main></body></html>",
            "",
        )
    )


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: object) -> str:
    """JSON for a script element, in which no text can close that element."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")


def _section(picture: Picture, number: int, count: int) -> Iterator[str]:
    if count > 1:
        yield f"<h2>{escape(clean(picture.title))}</h2>"
    words = escape(describe(picture))
    yield f'<figure><div class="plot" id="plot{number}" role="img" aria-label="{words}"></div>'
    yield f'<script type="application/json" id="plot{number}-data">{_json(picture_figure(picture))}</script>'
    yield f"<figcaption>{words}</figcaption></figure>"
    if picture.choice is not None:
        chosen = f"Chosen: {clean(picture.choice.configuration)}: {clean(picture.choice.reason)}."
        yield f"<p>{escape(chosen)}</p>"
    yield '<div class="wide" tabindex="0" role="region" aria-label="Every configuration">'
    yield f"{_html_table(picture.curve, picture.choice)}</div>"


def _notes(pictures: Sequence[Picture]) -> str:
    notes = dict.fromkeys(clean(note) for one in pictures for note in one.curve.notes)
    shown = [*([RELATIVE_NOTE] if pictures[0].curve.relative_only else []), *notes]
    return f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in shown)}</ul>" if shown else ""


def _html_table(curve: TradeoffCurve, choice: Choice | None) -> str:
    titles = ("VM", "K", "B", "time", "90 %", "cost", "90 %", "step time", "epochs", "remarks")
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    body = []
    points = list(curve)
    figures = zip(
        durations([point.time_s for point in points]),
        duration_ranges([point.time_interval_s for point in points]),
        moneys([point.cost_usd for point in points]),
        money_ranges([point.cost_interval_usd for point in points]),
        durations([point.step_time_s for point in points]),
        strict=True,
    )
    for index, (point, shown) in enumerate(zip(points, figures, strict=True)):
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
            *shown,
            quantity(point.epochs),
            ", ".join(words for words, there in remarks if there),
        )
        kind = "front" if point.on_front else "out" if point.excluded else ""
        body.append(f'<tr class="{kind}">' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
