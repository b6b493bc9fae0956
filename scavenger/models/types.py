"""Numbers with their range, as a stored model is validated against on load."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

__all__ = ["Count", "Finite", "NotNegative", "Positive"]

Finite = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
