"""A curve as CSV, for spreadsheets."""

from __future__ import annotations

import csv
import io
from typing import Any

from scavenger.presentation.formatting import clean

_FORMULA = ("=", "+", "-", "@")
"""Spreadsheets run a cell that begins with one of these as a formula."""


def curve_csv(rows: list[dict[str, Any]]) -> str:
    """CSV of every point of a report document's `curve`; unknown numbers are empty cells."""
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
