"""The outputs of a job, as one archive: how its result leaves the machine that led it."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fastapi import APIRouter
from starlette.responses import StreamingResponse

from scavenger.errors import NotFoundError
from scavenger.server.access import CallerOf, find_job
from scavenger.server.context import ContextOf
from scavenger.server.routes.jobs import JobKey
from scavenger.store.record_file import RECORD_FILE

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["jobs"])

_CHUNK = 1 << 20


@router.get(
    "/jobs/{job}/outputs",
    response_class=StreamingResponse,
    summary="The outputs of a job",
    responses={200: {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}},
)
def outputs(context: ContextOf, caller: CallerOf, job: JobKey) -> StreamingResponse:
    """A tar archive with the folder of the job's outputs, which is named by its id."""
    record = find_job(context, caller, job)
    spec = record.spec or {}
    folder = Path(record.job_file or ".").parent / str(spec.get("output", ".scavenger")) / record.id
    if not (folder / RECORD_FILE).is_file():
        raise NotFoundError(f"job {record.name} has no outputs on this machine")
    file = tempfile.TemporaryFile(prefix="scavenger-")  # noqa: SIM115 - closed when it was sent
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.add(folder, arcname=record.id, filter=_plain)
    file.seek(0)
    return StreamingResponse(_chunks(file), media_type="application/x-tar")


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Files and folders, without their owners."""
    if not (member.isfile() or member.isdir()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while data := file.read(_CHUNK):
            yield data
