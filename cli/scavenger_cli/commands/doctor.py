"""`doctor`: checks that this machine has everything a job needs, and shows how to fix what is missing."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from scavenger.domain.check import Check
from scavenger.domain.infra import Infra
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.presentation.formatting import clean, plural, size
from scavenger.version import __version__
from scavenger_cli.options import InfraOption, Output, OutputOption, StoreOption
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.store import Store

PYTHON_LEAST = (3, 11)
WORKER_MEMORY_BYTES = 600 * 2**20
"""Resident memory of a process that has imported TensorFlow (565 MB measured), before it holds a model."""
_EXTRAS = (  # optional packages that this version uses
    ("plots", "matplotlib", "curves as SVG, PNG and PDF"),
    ("plots", "plotly", "curves as interactive HTML pages"),
    ("postgresql", "psycopg", "a store on PostgreSQL"),
)


def check_all(store_url: str | None, infra: str | None = None) -> Iterator[Check]:
    """Run all checks.

    They change nothing, except that an old store's schema is migrated, and start nothing, except that TensorFlow is
    asked in a child process what it sees if this machine has a GPU's driver.

    Args:
        store_url: The store; None for the default.
        infra: Where jobs are to run, as in a job file, which is checked too; None for this machine.

    Raises:
        ConfigurationError: If `infra` is malformed.
    """
    place = None if infra is None else _infra(infra)
    yield from (
        _python(),
        *_training(),
        gpus(),
        _cores(),
        _memory(),
        _shared_memory(),
        *_store(store_url),
        *_extras(),
    )
    if place is not None and place.capabilities.rents:
        from scavenger.control.places.inspection import inspect_infra

        yield from inspect_infra(place, os.environ)


def _infra(text: str) -> Infra:
    try:
        return Infra.parse(text)
    except ValueError as error:
        raise ConfigurationError(f"--infra {error}") from None


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < PYTHON_LEAST:
        return Check("Python", "fail", found, "install Python 3.11 or later")
    if platform.system() != "Linux":
        return Check("Python", "fail", found, "training runs on Linux only: use a Linux machine or container")
    return Check("Python", "ok", found)


def _training() -> Iterable[Check]:
    """Read versions from package metadata: importing TensorFlow takes seconds and half a gigabyte."""
    for name, packages in (("TensorFlow", ("tensorflow-cpu", "tensorflow")), ("Keras", ("keras",))):
        versions = [(package, _version(package)) for package in packages]
        there = [f"{package} {found}" for package, found in versions if found is not None]
        if not there:
            yield Check(name, "fail", "not installed", f"pip install {packages[0]}")
        elif find_spec(name.lower()) is None:
            yield Check(
                name,
                "fail",
                f"{there[0]} is listed but its files are gone",
                f"pip install --force-reinstall {packages[0]}",
            )
        elif len(there) > 1 and is_gpu_build():
            yield Check(name, "ok", f"{there[-1]}, for GPUs, installed over {there[0]}")
        elif len(there) > 1:
            yield Check(
                name,
                "warn",
                f"{' and '.join(there)} write the same files: what is there is of the one that was installed last",
                "with a GPU: " + gpu_build() + "; without: pip uninstall -y tensorflow",
            )
        else:
            yield Check(name, "ok", there[0])


def is_gpu_build() -> bool:
    """Whether the files of TensorFlow are those of the build for GPUs; read, since importing it takes seconds."""
    found = find_spec("tensorflow")
    assert found is not None
    assert found.origin is not None
    build = Path(found.origin).with_name("python") / "platform" / "build_info.py"
    return build.exists() and "'is_cuda_build', True" in build.read_text()


def gpu_build() -> str:
    """The command that installs TensorFlow for GPUs."""
    from scavenger.control.places.gpus import GPU_BUILD

    return GPU_BUILD


def gpus() -> Check:
    """Check which GPUs TensorFlow sees, if this machine has any."""
    from scavenger.train.devices import driver_gpus, find_devices, has_driver

    if not has_driver():
        return Check("GPUs", "ok", "none (no NVIDIA driver)")
    try:
        devices = find_devices()
    except ScavengerError as error:
        return Check("GPUs", "warn", str(error), gpu_build())
    if not devices.cuda:
        try:
            names = ", ".join(gpu.name for gpu in driver_gpus().values()) or "no GPU"
            listed = f"loops, scripts and commands have {names}"
        except ScavengerError as error:
            listed = str(error)
        return Check(
            "GPUs",
            "warn",
            f"{listed}; TensorFlow {devices.version} is built for processors alone",
            f"for Keras models: {gpu_build()}",
        )
    if not devices.gpus:
        return Check(
            "GPUs",
            "warn",
            f"there is an NVIDIA driver, but TensorFlow {devices.version} sees no GPU",
            "see what nvidia-smi, CUDA_VISIBLE_DEVICES and `python -m scavenger.train.devices` say",
        )
    seen = ", ".join(f"{gpu.name} ({size(gpu.memory_bytes)})" for gpu in devices.gpus)
    return Check("GPUs", "ok", f"TensorFlow {devices.version} sees {seen}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < 2:
        return Check("processors", "warn", "1", "workers will share it, so more workers will not be faster")
    return Check("processors", "ok", str(cores))


def _memory() -> Check:
    import psutil

    memory = psutil.virtual_memory()
    found = f"{size(memory.available)} of {size(memory.total)} free"
    fits = int(memory.available // WORKER_MEMORY_BYTES)
    if fits < 2:
        return Check(
            "memory",
            "fail" if fits < 1 else "warn",
            found,
            "a worker needs 600 MiB plus its model: free some memory",
        )
    return Check("memory", "ok", f"{found}, room for about {plural(fits, 'small worker')}")


def _shared_memory() -> Check:
    """Check for memfd_create: tensors are shared in anonymous files, which the size of /dev/shm does not limit."""
    if not hasattr(os, "memfd_create"):
        return Check(
            "shared memory", "fail", "no memfd_create", "use Linux 3.17 or later with glibc 2.27 or later"
        )
    try:
        os.close(os.memfd_create("scavenger-doctor"))
    except OSError as error:
        return Check(
            "shared memory", "fail", f"memfd_create: {error.strerror}", "allow memfd_create in the sandbox"
        )
    try:
        mount = os.statvfs("/dev/shm")  # noqa: S108 - its size is asked for, nothing is written
        found = f"memory files; /dev/shm of {size(mount.f_blocks * mount.f_frsize)}"
    except OSError:
        found = "memory files"
    return Check("shared memory", "ok", found)


def _store(url: str | None) -> Iterable[Check]:
    from scavenger.store import Store

    try:
        with Store.open(url) as store:
            yield Check("store", "ok", f"{store.name}, schema {store.revision}")
            here = store.me()  # a pid of another machine may belong to any process on this one
            dead = [
                job
                for job in store.jobs()
                if not job.ended and job.owner.is_same_machine(here) and not store.is_alive(job)
            ]
            bad = [model for model in store.models() if not model.intact]
            left = _leftovers(store, [job.id for job in dead])
    except ScavengerError as error:
        yield Check(
            "store", "fail", str(error), "set SCAVENGER_STORE or --store to a database that can be written"
        )
        return
    if left:
        pids = " ".join(str(pid) for pid in left)
        yield Check("leftovers", "warn", f"processes of dead jobs: {pids}", f"kill {pids}")
    elif dead:
        names = ", ".join(f"{job.name} ({job.id[:8]})" for job in dead)
        yield Check(
            "leftovers",
            "warn",
            f"jobs whose process is gone: {names}",
            "the next `scavenger optimize` closes them",
        )
    else:
        yield Check("leftovers", "ok", "none")
    if bad:
        ids = " ".join(model.id[:8] for model in bad)
        yield Check(
            "models",
            "warn",
            f"changed after they were written, so they are not used: {ids}",
            f"scavenger models rm {bad[0].id[:8]}",
        )


def _leftovers(store: Store, dead_jobs: list[str]) -> list[int]:
    """Live processes of jobs whose own process is gone. A pid counts if it began before the process was last seen."""
    import psutil

    alive = []
    for job_id in dead_jobs:
        for process in store.processes(job_id):
            if process.pid is None or process.state in ("lost", "failed", "gone"):
                continue
            try:
                began = psutil.Process(process.pid).create_time()
            except psutil.Error:
                continue
            if began <= process.updated_at.timestamp():
                alive.append(process.pid)
    return alive


def _extras() -> Iterable[Check]:
    for extra, module, purpose in _EXTRAS:
        try:
            there = find_spec(module) is not None
        except ModuleNotFoundError:
            there = False
        install = f"pip install 'scavenger-ml[{extra}]'"
        found = f"installed ({purpose})" if there else f"not installed; for {purpose}: {install}"
        yield Check(f"extra {extra}", "ok", found)


def doctor(
    infra: InfraOption = None, store_url: StoreOption = None, output: OutputOption = Output.TEXT
) -> int:
    """Check that this machine has everything a job needs, and with --infra also a cloud."""
    checks = []
    for check in check_all(store_url, infra):
        checks.append(check)
        if not output.is_json:
            _emit(check)
    failed = any(check.status == "fail" for check in checks)
    if output.is_json:
        console.emit_json(
            {
                "schema_version": console.SCHEMA_VERSION,
                "version": __version__,
                "ok": not failed,
                "checks": console.plain(checks),
            }
        )
    elif failed:
        console.emit("next: mend what has failed above, and run scavenger doctor again")
    else:
        console.emit("next: scavenger optimize train.py (a script that calls fit), or scavenger demo")
    return 1 if failed else 0


def _emit(check: Check) -> None:
    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    fix = f" - fix: {clean(check.fix)}" if check.fix else ""
    line = f" {clean(check.name)}: {clean(check.found)}{fix}"
    mark = (f"{check.status:<4}", styles[check.status])
    console.emit(Text.assemble(mark, line, no_wrap=True, overflow="ignore"))
