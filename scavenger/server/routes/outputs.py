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
from scavenger.masking import mask
from scavenger.server.access import CallerOf, PathKey
from scavenger.server.context import ContextOf
from scavenger.server.problems import RefusedError
from scavenger.store.record_file import RECORD_FILE

router = APIRouter(prefix="/v1", tags=["jobs"])

_CHUNK = 1 << 20


@router.get(
    "/jobs/{job}/outputs",
    response_class=StreamingResponse,
    summary="The outputs of a job",
    responses={200: {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}},
)
def outputs(context: ContextOf, caller: CallerOf, job: PathKey) -> StreamingResponse:
    """A tar archive with the folder of the job's outputs, which is named by its id; logs have no secrets in it.

    The job file in its record is as it is, as a job goes on from it: so only its user and admins have it.
    """
    if not caller.user.changes_jobs:
        raise RefusedError(
            403,
            "forbidden",
            f"{caller.user.name} is a viewer, who sees no outputs: they have what the job was given",
            fix="ask the job's user or an admin; `scavenger logs` and `status` show it without secrets",
        )
    record = context.local(caller).find_job(job)
    spec = record.spec or {}
    folder = Path(record.job_file or ".").parent / str(spec.get("output", ".scavenger")) / record.id
    if not (folder / RECORD_FILE).is_file():
        raise NotFoundError(f"job {record.name} has no outputs on this machine")
    file = tempfile.TemporaryFile(prefix="scavenger-")  # noqa: SIM115 - closed when it was sent
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.add(folder, arcname=record.id, filter=lambda member: _plain(member, f"{record.id}/logs/"))
        _add_logs(tar, folder / "logs", f"{record.id}/logs")
    file.seek(0)
    return StreamingResponse(_chunks(file), media_type="application/x-tar")


def _add_logs(tar: tarfile.TarFile, folder: Path, name: str) -> None:
    """Add the logs of a job's processes, without what looks like a secret."""
    for path in sorted(folder.glob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as log, tempfile.TemporaryFile(prefix="scavenger-") as masked:
            while lines := log.readlines(_CHUNK):
                text = b"".join(lines).decode("utf-8", "surrogateescape")
                masked.write(mask(text).encode("utf-8", "surrogateescape"))
            member = tar.gettarinfo(path, arcname=f"{name}/{path.name}")
            member.size = masked.tell()
            masked.seek(0)
            tar.addfile(_anonymous(member), masked)


def _plain(member: tarfile.TarInfo, without: str) -> tarfile.TarInfo | None:
    """Files, folders and links (a command's model is one), without their owners; files of one folder are left out."""
    if not (member.isfile() or member.isdir() or member.issym()):
        return None
    if member.isfile() and member.name.startswith(without):
        return None
    return _anonymous(member)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while data := file.read(_CHUNK):
            yield data
