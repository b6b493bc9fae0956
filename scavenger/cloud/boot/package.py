"""The wheel that VMs install: the code of this process, as it lies on this machine, so that leader and VMs agree.

Nothing is built and no index is asked: the files of the package are stored in a wheel, uncompressed and without times.
Equal code gives the identical bytes, from a checkout, from an installation, and on a VM that has installed this very
wheel. So a VM can tell by one digest whether its image has the leader's code.

The wheel has what a VM runs, a leader's included: the store's migrations, but not the commands. Of secrets there are
none in a package.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.metadata
import io
import re
import tomllib
import zipfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scavenger.domain.vm import VmPackage
from scavenger.errors import ConfigurationError
from scavenger.version import __version__

DISTRIBUTION = "scavenger-ml"
CONSTRAINTS = "scavenger/cloud/boot/constraints.txt"
"""Path in the wheel of the versions that the project is tested with; a VM installs no others."""

_PACKAGE = Path(__file__).parents[2]
_MIGRATIONS = "store/migrations/"
_LEFT_OUT = (_MIGRATIONS, "cloud/boot/constraints.txt")
"""Where a checkout and an installation differ, relative to the package."""
_FETCHED_WITH = ("msgspec", "pyzmq")
_SOURCES = (".py", ".yaml", ".yml", ".json", ".toml")
_SOURCE_BYTES_MAX = 1 << 20
KERAS = "keras"
"""An extra that the wheel has, of what only jobs of Keras need: more than a GB, of which all others save the time."""
_OF_KERAS = ("keras", "tensorflow", "tensorflow-cpu")
_SIGNS = {
    "parquet": ("parquet",),
    "aws": ("s3://",),
    "gcp": ("gs://", "gcs://"),
    "torch": ("import torch", "from torch"),
    KERAS: ("keras", "tensorflow"),
}
"""What shows in training code that an extra is needed. An extra too many costs seconds, one too few the job."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel.

    Attributes:
        name: Its file name.
        data: Its content.
    """

    name: str
    data: bytes

    @property
    def sha256(self) -> str:
        """Digest of the content, hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def constraints(self) -> str:
        """The versions that are installed with it."""
        with zipfile.ZipFile(io.BytesIO(self.data)) as content:
            return content.read(CONSTRAINTS).decode()


def own_package(extras: Collection[str] = ()) -> VmPackage:
    """What VMs install to have this process's code.

    Args:
        extras: Extras of the distribution whose requirements are installed, too.

    Raises:
        ConfigurationError: As `own_wheel`, or if there is no such extra.
    """
    known = {extra for extra, _ in _requirements() if extra}
    if unknown := sorted(set(extras) - known):
        raise ConfigurationError(
            f"{DISTRIBUTION} has no extra {unknown[0]!r}; it has {', '.join(sorted(known))}"
        )
    wheel = own_wheel()
    pins = dict(line.partition("==")[::2] for line in wheel.constraints.splitlines() if "==" in line)
    tools = tuple(f"{name}=={pins[name]}" for name in _FETCHED_WITH)
    return VmPackage(wheel=wheel.name, sha256=wheel.sha256, extras=tuple(sorted(extras)), tools=tools)


@functools.cache
def own_wheel() -> Wheel:
    """Pack this process's own package.

    Its version has a local label made from its content, by which pip replaces an installed wheel of other content.

    Raises:
        ConfigurationError: If this installation lacks its metadata or its list of tested versions.
    """
    files = {f"scavenger/{name}": data for name, data in _files()}
    files |= {f"scavenger/{_MIGRATIONS}{name}": data for name, data in _migrations()}
    files[CONSTRAINTS] = _constraints()
    metadata = [
        *(
            f"Requires-Dist: {one}{(' and' if ';' in one else ';') + f' extra == {extra!r}' if extra else ''}"
            for extra, one in _requirements()
        ),
        *(f"Provides-Extra: {extra}" for extra in sorted({extra for extra, _ in _requirements() if extra})),
    ]
    label = hashlib.sha256("\n".join(metadata).encode())
    for name in sorted(files):
        label.update(f"\n{name} {len(files[name])}\n".encode() + files[name])
    version = f"{__version__}+{label.hexdigest()[:12]}"
    stem = f"{DISTRIBUTION.replace('-', '_')}-{version}"
    head = [
        "Metadata-Version: 2.1",
        f"Name: {DISTRIBUTION}",
        f"Version: {version}",
        "Requires-Python: >=3.11",
    ]
    info = f"{stem}.dist-info"
    files[f"{info}/METADATA"] = _lines(*head, *metadata)
    files[f"{info}/WHEEL"] = _lines("Wheel-Version: 1.0", "Root-Is-Purelib: true", "Tag: py3-none-any")
    files[f"{info}/entry_points.txt"] = _lines(
        "[console_scripts]",
        "scavenger-leader = scavenger.server.on_leader:main",
        "scavenger-vm = scavenger.control.provisioning.on_vm:main",
    )
    files[f"{info}/RECORD"] = _lines(
        *(_record(name, files[name]) for name in sorted(files)), f"{info}/RECORD,,"
    )
    return Wheel(f"{stem}-py3-none-any.whl", _zipped(files))


def is_own(sha256: str, extras: Iterable[str] = ()) -> bool:
    """Whether this process's code is that of a wheel, and what the extras require is installed."""
    # what has a condition may not be for this machine; something beside it is in each extra
    needed = [_name(one) for extra, one in _requirements() if extra in set(extras) and ";" not in one]
    return own_wheel().sha256 == sha256 and all(map(_is_installed, needed))


def extras_of(folder: Path, *texts: str, of_keras: bool = False) -> tuple[str, ...]:
    """The extras that a job needs on VMs, by what its code names: Keras, Parquet files, PyTorch, storage services.

    Args:
        folder: Folder of the training code; hidden files and folders are not read.
        texts: Further text, such as the path of the checkpoints.
        of_keras: Whether it trains a Keras model, whatever its files name.
    """
    found = {KERAS} if of_keras else set()
    for text in (*texts, *_sources(folder)):
        lower = text.lower()
        found |= {extra for extra, signs in _SIGNS.items() if any(sign in lower for sign in signs)}
    return tuple(sorted(found))


def _sources(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if (
            path.suffix in _SOURCES
            and not hidden
            and path.is_file()
            and path.stat().st_size <= _SOURCE_BYTES_MAX
        ):
            yield path.read_text(errors="replace")


def _files() -> Iterator[tuple[str, bytes]]:
    for name, data in _below(_PACKAGE):
        if not name.startswith(_LEFT_OUT):
            yield name, data


def _migrations() -> Iterator[tuple[str, bytes]]:
    for folder in (_PACKAGE / _MIGRATIONS, _PACKAGE.parent / "migrations"):
        if (folder / "env.py").is_file():
            yield from _below(folder)
            return
    raise ConfigurationError(f"this installation lacks {_PACKAGE / _MIGRATIONS}; install Scavenger again")


def _below(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        unwanted = any(part.startswith((".", "__pycache__")) for part in name.parts)
        if path.is_file() and not unwanted:
            yield name.as_posix(), path.read_bytes()


def _constraints() -> bytes:
    for path in (_PACKAGE / "cloud" / "boot" / "constraints.txt", _PACKAGE.parent / "constraints.txt"):
        if path.is_file():
            return path.read_bytes()
    raise ConfigurationError(f"this installation lacks {path.name}; install Scavenger again")


@functools.cache
def _requirements() -> tuple[tuple[str, str], ...]:
    """Pairs of an extra, empty for none, and a requirement; in the form that metadata has.

    A checkout's own list is read from its `pyproject.toml`: it may be newer than the metadata of its installation.
    """
    project = _PACKAGE.parent / "pyproject.toml"
    table = tomllib.loads(project.read_text()).get("project", {}) if project.is_file() else {}
    if table.get("name") == DISTRIBUTION:
        found = [("", one) for one in table["dependencies"]]
        found += [(extra, one) for extra, those in table["optional-dependencies"].items() for one in those]
    else:
        try:
            listed = importlib.metadata.requires(DISTRIBUTION) or []
        except importlib.metadata.PackageNotFoundError:
            raise ConfigurationError(
                f"this installation lacks the metadata of {DISTRIBUTION}; install Scavenger again"
            ) from None
        found = []
        for line in listed:
            extra = re.search(r"(?:; *| and )extra == ['\"]([^'\"]+)['\"]$", line)
            found.append((extra[1], line[: extra.start()]) if extra else ("", line))
    wanted = [(extra or (KERAS if _name(one) in _OF_KERAS else ""), one) for extra, one in found]
    return tuple(sorted((extra, _normal(one)) for extra, one in wanted))


def _normal(requirement: str) -> str:
    """A requirement with its name and the order of its limits as build tools write them."""
    requirement, _, marker = requirement.partition(";")
    found = re.fullmatch(r"\s*([A-Za-z0-9._-]+)\s*(\[[^]]*\])?\s*(.*?)\s*", requirement)
    assert found is not None, requirement
    limits = ",".join(sorted(one.strip() for one in found[3].split(",")))
    condition = "; " + marker.strip().replace('"', "'") if marker.strip() else ""
    return f"{_canonical(found[1])}{found[2] or ''}{limits}{condition}"


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _lines(*lines: str) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def _record(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def _zipped(files: dict[str, bytes]) -> bytes:
    """A zip archive, the same on every machine: compression would depend on the version of zlib."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files, key=lambda name: (".dist-info/" in name, name)):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, files[name])
    return packed.getvalue()
