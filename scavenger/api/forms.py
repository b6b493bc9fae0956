"""Forms of what calls are asked with, for validation and for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field


def _whole(value: object) -> object:
    """`2.0` is a whole number of JSON; `"2"` and `true` are not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WorkerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Region = Annotated[str, Field(pattern=r"^[a-z]{1,16}/[a-z0-9-]{1,40}$", description="As `gcp/us-central1`.")]
VmKey = Annotated[str, Field(pattern=r"^[a-z]{1,16}/[a-z0-9-]{1,40}/[A-Za-z0-9._-]{1,100}$")]
UserName = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
ModelKey = Annotated[str, Field(min_length=1, max_length=64, description="Id of a model, or its beginning.")]
JOB_KEY = "The job's id, the beginning of its id, or its name (the latest)."
JobKey = Annotated[str, Field(min_length=1, max_length=200, description=JOB_KEY)]
Word = Annotated[str | None, Field(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._+-]*$")]
Number = Annotated[int, Field(ge=1, lt=2**63)]
WHOLE = BeforeValidator(_whole)
# the bounds stand inside, where the document shows them
Days = Annotated[int, Field(strict=True, ge=1, le=3650), WHOLE]
PAGE_MAX = 200
"""Most entries that a server gives at once."""
Limit = Annotated[int, Field(ge=1, le=PAGE_MAX, description="Most entries of a page.")]
Cursor = Annotated[str | None, Field(max_length=500, description="`next` of the page before.")]
