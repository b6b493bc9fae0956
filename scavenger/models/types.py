"""Number types with ranges, which validate a stored model on load."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

LARGEST, SMALLEST = 1e100, 1e-100
"""Range of plausible values; products of a few larger ones would overflow."""

Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, le=LARGEST, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=SMALLEST, le=LARGEST, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**53)]
