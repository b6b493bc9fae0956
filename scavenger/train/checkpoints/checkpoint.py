"""Checkpoints of a job, written so that the newest complete one can be found and verified after any failure.

A store holds one folder per attempt to write a checkpoint; only one job may write to a store at a time::

    URL/step-00001200-3f9c/part-0.safetensors       written by the first aggregator
                           part-1.safetensors       written by the second
                           manifest.json            written last, by the first: the commit

The attempt's name is unique, so the parts of two attempts at one step never mix. The manifest holds the SHA-256
of every part, and of itself; a part holds that of every tensor. Data is used only after its digest was verified;
nothing is pickled.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from scavenger.errors import ConfigurationError, TransientError
from scavenger.train.checkpoints.files import Files, open_files
from scavenger.train.checkpoints.format import (
    Array,
    DamagedError,
    Readable,
    SavedTensor,
    TensorStream,
    check_size,
    read_header,
    read_tensor,
    read_tensors,
)
from scavenger.train.checkpoints.manifest import (
    FOLDER,
    FORMAT_VERSION,
    MANIFEST,
    MANIFEST_BYTES_MAX,
    PART_NAME,
    CheckpointFile,
    CheckpointManifest,
    decode,
    encode,
    folder_of,
)
from scavenger.train.checkpoints.ranges import SavedArrays, SavedRange, ranges_of

_DAMAGE = frozenset({errno.ENOENT, errno.EIO, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.EINVAL})
"""Errors of a missing, unreadable or replaced file. Any other error does not mean that the file is damaged."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint whose manifest was verified, and by `CheckpointStore.latest` its parts.

    Attributes:
        problems: Checkpoints that were skipped during the search, with reasons, one line each.
    """

    manifest: CheckpointManifest
    problems: tuple[str, ...]
    _files: Files

    def tensors(self, name: str) -> dict[str, Array]:
        """Read the tensors of a part into new arrays, verifying them on the way.

        Raises:
            KeyError: If there is no such part.
            TransientError: If the part was damaged since the search; a new search finds another checkpoint.
        """
        part = {part.name: part for part in self.manifest.parts}[name]
        with (
            _transient(f"{self._files.root}/{self.manifest.folder}/{_file(part.name)}"),
            self._files.reading(self.manifest.folder, _file(part.name)) as (file, size),
        ):
            check_size(size, part.bytes)
            return read_tensors(file, size=size, sha256=part.sha256)

    @contextlib.contextmanager
    def arrays(self) -> Iterator[SavedArrays]:
        """Open the checkpoint; of its parts, only the headers and what is asked for are read, and verified on the way.

        A part of an older format, which can only be verified as a whole, is read as a whole.

        Raises:
            TransientError: As `tensors`; `SavedArrays.read` does, too.
        """
        with contextlib.closing(_Reader(self._files, self.manifest.folder)) as reader:
            found: list[SavedRange] = []
            for part in self.manifest.parts:
                ranges = reader.ranges(part)
                found += ranges if ranges is not None else ranges_of(self.tensors(part.name))
            yield SavedArrays(found)


class _Reader:
    """Reads some tensors of a checkpoint; one file is open at a time, as long as tensors follow each other in it."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files, self._folder = files, folder
        self._opened = contextlib.ExitStack()
        self._file: Readable | None = None
        self._place: tuple[CheckpointFile, int] | None = None

    def close(self) -> None:
        """Close the file."""
        self._opened.close()
        self._file = self._place = None

    def ranges(self, part: CheckpointFile) -> list[SavedRange] | None:
        """Return what a part holds; None if it can only be verified as a whole."""
        with self._reading(part, 0) as file:
            header = read_header(file, size=part.bytes, sha256=part.sha256)
        if header.digests is None:
            return None
        return [
            SavedRange(
                name,
                tensor.shape,
                tensor.type,
                functools.partial(
                    self._load,
                    part,
                    header.data_at + tensor.data_offsets[0],
                    tensor,
                    header.digests[name],
                ),
            )
            for name, tensor in header.tensors
        ]

    def _load(self, part: CheckpointFile, at: int, tensor: SavedTensor, sha256: str) -> Array:
        with self._reading(part, at) as file:
            array = read_tensor(file, tensor, sha256=sha256)
        self._place = part, at + tensor.bytes
        return array

    @contextlib.contextmanager
    def _reading(self, part: CheckpointFile, at: int) -> Iterator[Readable]:
        with _transient(f"{self._files.root}/{self._folder}/{_file(part.name)}"):
            if self._file is None or self._place != (part, at):
                self.close()
                opening = self._files.reading(self._folder, _file(part.name), at)
                self._file, size = self._opened.enter_context(opening)
                check_size(size, part.bytes)
            self._place = None  # until it is known where the file is
            yield self._file


@contextlib.contextmanager
def _transient(place: str) -> Iterator[None]:
    try:
        yield
    except (DamagedError, OSError) as error:
        raise TransientError(f"{place}: cannot be read: {_reason(error)}") from error


class CheckpointStore:
    """The checkpoints of one job at one location.

    Any process may write parts and search; only the job's sequencer may call `commit` and `discard_unfinished`.

    Args:
        url: A local path or any URL that fsspec supports. Nothing is created before the first write.
        keep: Number of verified checkpoints to keep, at least 1.

    Attributes:
        problems: What the last call skipped or could not remove, one line each.

    Raises:
        ConfigurationError: If the URL's protocol is unknown.
        NotSupportedError: If a package must be installed for the protocol.
    """

    def __init__(self, url: str, *, keep: int = 2) -> None:
        if keep < 1:
            raise ConfigurationError(f"at least one checkpoint must be kept, not {keep}")
        self._files, self._keep = open_files(url), keep
        self._verified: set[str] = set()
        self.problems: tuple[str, ...] = ()

    def write_part(
        self, step: int, attempt: str, name: str, tensors: Mapping[str, Array], *, infinite: bool = False
    ) -> CheckpointFile:
        """Write one part; it becomes valid when a manifest that lists it is committed.

        Needs no extra memory, except for a copy of one non-contiguous tensor at a time.

        Args:
            infinite: See `TensorStream`.

        Raises:
            NotSupportedError: If checkpoints do not support a tensor's type, such as bfloat16.
            TransientError: If it could not be written (disk full, device or network error); the rest is removed.
            ConfigurationError: If the location is not writable.
            ValueError: If the step, the attempt or the name cannot be part of a file name.
        """
        folder = folder_of(step, attempt)
        if not re.fullmatch(PART_NAME, name):
            raise ValueError(f"{name!r} cannot name a part")
        stream = TensorStream(tensors, infinite=infinite)
        self._write(folder, _file(name), stream)
        return CheckpointFile(name, stream.sha256, stream.bytes, stream.finite)

    def commit(self, manifest: CheckpointManifest) -> None:
        """Commit a checkpoint: read its parts back, write the manifest, then remove superseded checkpoints.

        The newest `keep` verified checkpoints are kept, and also the newest finite one. The others are removed, and
        unfinished attempts at this or an earlier step. `problems` lists what cannot be removed.

        Raises:
            TransientError: If a part is damaged, or the manifest could not be written. The newest checkpoint is then
                still the earlier one, unless only the last flush to the device failed.
            ConfigurationError: If the location is not writable.
            ValueError: If the manifest does not survive encoding: `state` holds more than JSON values.
        """
        for part in manifest.parts:
            if problem := self._check_part(manifest.folder, part):
                raise TransientError(f"{problem}; the checkpoint was not committed")
        committed = self._committed([])
        serial = 1 + max((other.serial for other in committed), default=0)
        manifest = msgspec.structs.replace(manifest, serial=serial, version=FORMAT_VERSION)
        self._write(manifest.folder, MANIFEST, [memoryview(encode(manifest))])
        self._verified.add(manifest.folder)
        self._tidy_up(manifest)

    def latest(self, *, finite: bool = False) -> Checkpoint | None:
        """Return the newest checkpoint that passes verification of all sizes, headers, shapes and SHA-256 digests.

        Args:
            finite: Skip checkpoints that contain NaN or an infinity.

        Returns:
            The checkpoint, or None if there is none; a non-empty `problems` then lists damaged ones.

        Raises:
            TransientError: If the location cannot be read now.
            NotSupportedError: If a checkpoint was written by a newer Scavenger.
            ConfigurationError: If reading the location is not permitted.
        """
        problems: list[str] = []
        found = None
        for manifest in self._committed(problems):
            problem = self._check(manifest)
            if problem is None and finite and not manifest.finite:
                problem = f"{self._files.root}/{manifest.folder}: holds NaN or infinity"
            if problem is None:
                found = manifest
                break
            problems.append(problem)
        self.problems = tuple(problems)
        return None if found is None else Checkpoint(found, self.problems, self._files)

    def open(self, folder: str) -> Checkpoint | None:
        """Return a checkpoint by its folder's name, as `CheckpointManifest.folder`; its files are verified when read.

        Returns:
            The checkpoint, or None if there is none that is committed and intact; `problems` then says why.

        Raises:
            TransientError: If the location cannot be read now.
            NotSupportedError: If the checkpoint was written by a newer Scavenger.
            ConfigurationError: If reading the location is not permitted.
        """
        self.problems = ()
        try:
            if FOLDER.fullmatch(folder):
                return Checkpoint(self._read_manifest(folder), (), self._files)
        except (DamagedError, OSError) as error:
            self.problems = (self._problem(folder, MANIFEST, error),)
        return None

    def discard_unfinished(self) -> None:
        """Remove every attempt without a manifest; only while no process writes: at the start or after a failure.

        Otherwise, incomplete attempts would keep a full disk full.
        """
        problems: list[str] = []
        for folder in self._folders():
            if self._is_unfinished(folder):
                self._remove(folder, problems)
        self.problems = tuple(problems)

    def _tidy_up(self, newest: CheckpointManifest) -> None:
        problems: list[str] = []
        try:
            committed = [newest, *(m for m in self._committed([]) if m.folder != newest.folder)]
            kept: list[CheckpointManifest] = []
            superseded, suspect = [], []
            for manifest in committed:
                finite = any(other.finite for other in kept)
                if len(kept) >= self._keep and (finite or not manifest.finite):
                    superseded.append(manifest.folder)
                elif manifest.folder in self._verified or self._check(manifest) is None:
                    self._verified.add(manifest.folder)
                    kept.append(manifest)
                else:
                    suspect.append(manifest.folder)
            known = {manifest.folder for manifest in committed}
            for folder in self._folders():
                if folder not in known and int(folder.split("-")[1]) <= newest.step:
                    (superseded if self._is_unfinished(folder) else suspect).append(folder)
            # a read error may be temporary: remove an unreadable checkpoint only if enough others are kept
            enough = len(kept) >= self._keep and any(manifest.finite for manifest in kept)
            for folder in superseded + (suspect if enough else []):
                self._remove(folder, problems)
        except (TransientError, ConfigurationError) as error:  # the commit succeeded; the next one cleans up
            problems.append(str(error))
        self.problems = tuple(problems)

    def _remove(self, folder: str, problems: list[str]) -> None:
        try:
            self._files.remove(
                folder, first=MANIFEST
            )  # first the manifest, so that a partly removed checkpoint is never valid
        except OSError as error:
            problems.append(f"{self._files.root}/{folder}: could not be removed: {_reason(error)}")
        self._verified.discard(folder)

    def _folders(self) -> list[str]:
        try:
            return [name for name in self._files.folders() if FOLDER.fullmatch(name)]
        except OSError as error:
            raise self._failure(self._files.root, "cannot be read", error) from error

    def _committed(self, problems: list[str]) -> list[CheckpointManifest]:
        """Return the readable manifests, newest commit first; add the others to `problems`."""
        manifests = []
        for folder in self._folders():
            try:
                manifests.append(self._read_manifest(folder))
            except FileNotFoundError:
                continue  # unfinished
            except (DamagedError, OSError) as error:
                problems.append(self._problem(folder, MANIFEST, error))
        return sorted(manifests, key=lambda m: (m.serial, m.view, m.step), reverse=True)

    def _is_unfinished(self, folder: str) -> bool:
        try:
            self._read_manifest(folder)
        except FileNotFoundError:
            return True
        except (DamagedError, OSError) as error:
            self._problem(folder, MANIFEST, error)
        return False

    def _read_manifest(self, folder: str) -> CheckpointManifest:
        with self._files.reading(folder, MANIFEST) as (file, size):
            if size > MANIFEST_BYTES_MAX:
                raise DamagedError(f"it has {size} bytes")
            data = bytearray()
            buffer = bytearray(size + 1)
            while (count := file.readinto(buffer)) and len(data) <= size:
                data += buffer[:count]
        manifest = decode(bytes(data), f"{self._files.root}/{folder}")
        if manifest.folder != folder:
            raise DamagedError(f"it belongs to {manifest.folder}")
        return manifest

    def _check(self, manifest: CheckpointManifest) -> str | None:
        for part in manifest.parts:
            if problem := self._check_part(manifest.folder, part):
                return problem
        return None

    def _check_part(self, folder: str, part: CheckpointFile) -> str | None:
        try:
            self._files.verify(folder, _file(part.name), size=part.bytes, sha256=part.sha256)
        except (DamagedError, OSError) as error:
            return self._problem(folder, _file(part.name), error)
        return None

    def _problem(self, folder: str, name: str, error: DamagedError | OSError) -> str:
        """Describe what is wrong with a file; raise if the error does not prove that the file is damaged."""
        place = f"{self._files.root}/{folder}/{name}"
        if (
            isinstance(error, OSError)
            and error.errno not in _DAMAGE
            and not isinstance(error, FileNotFoundError)
        ):
            raise self._failure(place, "cannot be read", error) from error
        return f"{place}: {_reason(error)}"

    def _write(self, folder: str, name: str, chunks: TensorStream | list[memoryview]) -> None:
        try:
            self._files.write(folder, name, chunks)
        except OSError as error:
            # without the attempt's folder, so that one cause always has the same message
            raise self._failure(self._files.root, "the checkpoint could not be written", error) from error

    def _failure(self, place: str, what: str, error: OSError) -> ConfigurationError | TransientError:
        no_access = isinstance(error, PermissionError | NotADirectoryError) or error.errno == errno.EROFS
        return (ConfigurationError if no_access else TransientError)(f"{place}: {what}: {_reason(error)}")


def _file(name: str) -> str:
    return f"part-{name}.safetensors"


def _reason(error: DamagedError | OSError) -> str:
    """Return the reason in one line, without the path that an `OSError` repeats."""
    if isinstance(error, FileNotFoundError):
        return "it is missing"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
