"""The manifest of a checkpoint: what it holds, whose it is, and how it is written."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import Annotated, Any

import msgspec

from scavenger.errors import NotSupportedError
from scavenger.train.checkpoints.format import DamagedError

FORMAT_VERSION = 3
"""Incremented when an older Scavenger would misread a checkpoint, or this one an older checkpoint.

1: optimizer state named by paths, which several tensors may share. 2: named by tensor index. 3: by tensor index and
range, with a digest for each.
"""

OLDEST_VERSION = 2
"""The oldest format from which a job can resume."""

MANIFEST = "manifest.json"
MANIFEST_BYTES_MAX = 4 << 20
"""A manifest has some hundred bytes plus 120 per part; a longer file is not read into memory."""

_ATTEMPT = r"[A-Za-z0-9_]{1,64}"
FOLDER = re.compile(rf"step-\d{{8,19}}-{_ATTEMPT}", re.ASCII)
PART_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}"

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_PartName = Annotated[str, msgspec.Meta(pattern=rf"^{PART_NAME}\Z")]
_AttemptName = Annotated[str, msgspec.Meta(pattern=rf"^{_ATTEMPT}\Z")]


class CheckpointFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One safetensors file. `finite`: none of its numbers is NaN or infinite."""

    name: _PartName
    sha256: _Digest
    bytes: _Count
    finite: bool


class CheckpointManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Contents and identity of a checkpoint.

    Attributes:
        fingerprint: Fingerprint of the job, so that a job does not load another job's checkpoint.
        step: The last step that the checkpoint includes.
        attempt: Unique name of this attempt to write; letters, digits and `_`.
        epoch: Epoch of the next step (0-based).
        consumed: Number of samples of that epoch already used.
        view: The highest view number that the job has used.
        parts: At least one part, as returned by `CheckpointStore.write_part`.
        created_at: Time of creation, with a time zone.
        state: Everything else that a resumed job needs, as JSON values.
        serial: Number of the commit within the store; set by `CheckpointStore.commit`.
        version: Format version, see `FORMAT_VERSION`.
    """

    fingerprint: str
    step: _Count
    attempt: _AttemptName
    epoch: _Count
    consumed: _Count
    view: _Count
    parts: Annotated[tuple[CheckpointFile, ...], msgspec.Meta(min_length=1)]
    created_at: Annotated[datetime, msgspec.Meta(tz=True)]
    state: dict[str, Any] = {}
    serial: _Count = 0
    version: int = FORMAT_VERSION

    @property
    def finite(self) -> bool:
        """Whether no part contains NaN or an infinity."""
        return all(part.finite for part in self.parts)

    @property
    def folder(self) -> str:
        """Name of the checkpoint's folder in the store."""
        return folder_of(self.step, self.attempt)


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: _Digest
    manifest: msgspec.Raw


class _Version(msgspec.Struct, frozen=True):
    version: Annotated[int, msgspec.Meta(ge=1)]


def folder_of(step: int, attempt: str) -> str:
    folder = f"step-{step:08d}-{attempt}"
    if not FOLDER.fullmatch(folder):
        raise ValueError(f"attempt {attempt!r} at step {step} cannot name a folder")
    return folder


def encode(manifest: CheckpointManifest) -> bytes:
    try:
        body = msgspec.json.encode(manifest)
        same = msgspec.json.decode(body, type=CheckpointManifest) == manifest
    except (msgspec.MsgspecError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"the manifest cannot be written as JSON: {error}") from None
    names = [part.name for part in manifest.parts]
    if not same:  # NaN becomes null, a tuple a list
        raise ValueError("the manifest's state holds values that JSON does not give back, as NaN or a tuple")
    if len(set(names)) < len(names):
        raise ValueError(f"a part is named twice among {names}")
    data = msgspec.json.encode(_Envelope(hashlib.sha256(body).hexdigest(), msgspec.Raw(body)))
    if len(data) > MANIFEST_BYTES_MAX:
        raise ValueError(f"the manifest has {len(data)} bytes; at most {MANIFEST_BYTES_MAX} are read back")
    return data


def decode(data: bytes, place: str) -> CheckpointManifest:
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        body = bytes(envelope.manifest)
        if hashlib.sha256(body).hexdigest() != envelope.sha256:
            raise DamagedError("its SHA-256 is not the one written down")
        version = msgspec.json.decode(body, type=_Version).version
        if version > FORMAT_VERSION:
            raise NotSupportedError(
                f"{place}: written by a newer Scavenger (format {version}, this one reads {FORMAT_VERSION})"
            )
        return msgspec.json.decode(body, type=CheckpointManifest)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DamagedError(f"it is not valid: {error}") from None
