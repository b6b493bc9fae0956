"""Forms of what calls are asked with, for validation and for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

WorkerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
