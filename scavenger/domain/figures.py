"""Figures in messages."""

from __future__ import annotations

import math


def rounded(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits, as `12,300`: without an exponent from 0.0001 up to 10^15."""
    if not math.isfinite(value):
        return "unknown" if math.isnan(value) else "unbounded"
    return f"{float(f'{value:.{digits}g}'):,.15g}"
