"""The programs of a real control plane, from Debian's packages: `python -m tests.cluster.binaries` builds them once.

`etcd` is a package. Kubernetes is built from Debian's source package, since its servers are in no binary package there.
Its vendored `reflect2` reads the layout of Go's maps, which changed with Go 1.18, and ends the API server at the first
custom resource; Debian's own newer one takes its place. The description of the API is generated, as Debian does.

What is built is kept in a cache outside of the project, by its version, and used by every later run on the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
VERSION = "1.20.2"
BUILT_MAX_S = 3600.0
LIMIT_VARIABLE = "SCAVENGER_BUILD_MAX_S"
"""Environment variable with the longest time that a build may take, seconds."""
_BEGAN = time.monotonic()
_WORK = "scavenger-kubernetes-"
"""Begins the name of a build's folder in the cache, which is removed at its end, or by the next build."""
_WHY_NOT = "not-built.txt"
"""Beside the programs: why the last build has failed."""
_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
_REFLECT2 = "github.com/modern-go/reflect2"
_PACKAGES = ("etcd-server", "golang-go", "dpkg-dev", "golang-github-modern-go-reflect2-dev")
_IMPORTED, _OPENAPI = "k8s.io/kubernetes", "+k8s:openapi-gen="


def folder() -> Path:
    """Where the programs are."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "scavenger-tests" / f"kubernetes-{VERSION}"


@functools.cache
def missing() -> str:
    """Why there is no control plane on this machine; empty where there can be one."""
    lacking = [name for name in PROGRAMS if not (folder() / name).is_file()]
    lacking += ["etcd"] if shutil.which("etcd") is None else []
    if not lacking:
        return ""
    why = folder() / _WHY_NOT
    if why.is_file():
        return f"no control plane: {lacking[0]} could not be built, {why.read_text()}"
    return f"no control plane: {lacking[0]} is not there; `make test-kubernetes` installs and builds what is needed"


def build() -> None:
    """Install what is needed by Debian's package manager, and build the programs, unless they are there.

    Raises:
        RuntimeError: If this is no Debian, or not done as root.
        subprocess.CalledProcessError: If a command fails.
        subprocess.TimeoutExpired, TimeoutError: If it takes too long.
    """
    if not missing():
        return
    if not _SOURCES.is_file() or os.geteuid() != 0:
        raise RuntimeError("the control plane of the tests is built on Debian, as root")
    _run("apt-get", "update", "-qq")
    _run(
        "apt-get",
        "install",
        "-y",
        "-qq",
        "--no-install-recommends",
        *_PACKAGES,
        DEBIAN_FRONTEND="noninteractive",
    )
    folder().mkdir(parents=True, exist_ok=True)
    with building_alone(folder()), tempfile.TemporaryDirectory(prefix=_WORK, dir=folder()) as made:
        missing.cache_clear()
        if not missing():
            return  # another build has just made them
        work = Path(made)
        tree = work / "go" / "src" / _IMPORTED
        _unpack(work, tree)
        _replace_reflect2(tree / "vendor" / _REFLECT2)
        _describe_api(work, tree)
        _compile(work, tree)
        for name in PROGRAMS:
            (work / name).replace(folder() / name)
    missing.cache_clear()


@contextlib.contextmanager
def building_alone(cache: Path) -> Iterator[None]:
    """Build in a cache alone, once other builds have ended, and without what killed ones have left.

    Raises:
        TimeoutError: Another build has not ended in time.
    """
    with (cache / "building.lock").open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > _until():
                    raise TimeoutError from None
                time.sleep(0.1)
        for left in cache.glob(f"{_WORK}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _unpack(work: Path, tree: Path) -> None:
    """Fetch the source package, from where the machine gets its binary packages."""
    parts, lists = work / "sources", work / "lists"
    parts.mkdir()
    lists.mkdir()
    text = re.sub(r"(?m)^Types: deb$", "Types: deb-src", _SOURCES.read_text())
    (parts / "source.sources").write_text(text)
    options = [
        f"Dir::Etc::sourceparts={parts}",
        "Dir::Etc::sourcelist=/dev/null",
        f"Dir::State::lists={lists}",
    ]
    apt = ["apt-get", "-qq", *(word for option in options for word in ("-o", option))]
    _run(*apt, "update", cwd=work)
    _run(*apt, "source", "--download-only", "kubernetes", cwd=work)
    (described,) = work.glob("kubernetes_*.dsc")
    tree.parent.mkdir(parents=True)
    _run("dpkg-source", "--extract", str(described), str(tree), cwd=work)


def _replace_reflect2(vendored: Path) -> None:
    shutil.rmtree(vendored)
    vendored.mkdir()
    for path in (Path("/usr/share/gocode/src") / _REFLECT2).iterdir():
        if path.suffix in (".go", ".s"):
            shutil.copy(path, vendored)


def _describe_api(work: Path, tree: Path) -> None:
    """Generate `pkg/generated/openapi` from the packages that ask for it."""
    generator = work / "openapi-gen"
    _go(work, tree, "build", "-o", str(generator), "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
    staging, found = tree / "staging" / "src", set()
    for top in (tree / "pkg", staging / "k8s.io"):
        for path in top.rglob("*.go"):
            left_out = path.name.startswith("zz_generated") or path.name.endswith("_test.go")
            if left_out or any(part in ("code-generator", "sample-apiserver") for part in path.parts):
                continue
            if _OPENAPI in path.read_text(errors="replace"):
                inside = path.is_relative_to(staging)
                found.add(str(path.parent.relative_to(staging if inside else tree.parent.parent)))
    _run(
        *(str(generator), "--logtostderr", "-O", "zz_generated.openapi", "-r", str(work / "violations")),
        *("-h", "hack/boilerplate/boilerplate.generatego.txt", "-p", f"{_IMPORTED}/pkg/generated/openapi"),
        *("-i", ",".join(sorted(found))),
        cwd=tree,
        **_environment(work),
    )


def _compile(work: Path, tree: Path) -> None:
    major, minor, _ = VERSION.split(".")
    version = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in version.items())
    programs = [f"./cmd/{name}" for name in PROGRAMS]
    # neither the clouds' client libraries, which no test uses, nor what debuggers read: half of the time
    quick = ["-tags", "providerless", "-gcflags", "all=-dwarf=false"]
    _go(work, tree, "build", *quick, "-ldflags", f"-s -w {flags}", "-o", f"{work}/", *programs)


def _go(work: Path, tree: Path, *words: str) -> None:
    _run("go", *words, cwd=tree, **_environment(work))


def _environment(work: Path) -> dict[str, str]:
    folders = {"GOCACHE": str(work / "cache"), "GOPATH": str(work / "go")}
    return {**folders, "GO111MODULE": "off", "GOFLAGS": "", "CGO_ENABLED": "0"}


def _run(*command: str, cwd: Path | None = None, **environment: str) -> None:
    left_s = _until() - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    began = time.monotonic()
    subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        check=True,
        timeout=left_s,
        stdout=sys.stderr,
    )
    print(f"{time.monotonic() - began:6.1f} s  {' '.join(command)[:80]}", file=sys.stderr, flush=True)


@functools.cache
def _until() -> float:
    """When a build that has begun now must be over, monotonic seconds."""
    return time.monotonic() + float(os.environ.get(LIMIT_VARIABLE) or BUILT_MAX_S)


def main() -> int:
    """Build the programs; where that fails, tests that need them say why they are skipped. Returns the exit status."""
    why = folder() / _WHY_NOT
    try:
        build()
    except subprocess.CalledProcessError as error:
        reason = f"`{' '.join(error.cmd)[:80]}` ended with {error.returncode}"
    except (subprocess.TimeoutExpired, TimeoutError):
        reason = f"it took longer than {_until() - _BEGAN:.0f} s"
    except (RuntimeError, OSError) as error:
        reason = str(error)
    else:
        why.unlink(missing_ok=True)
        print(folder())
        return 0
    print(f"no control plane could be built: {reason}", file=sys.stderr)
    why.parent.mkdir(parents=True, exist_ok=True)
    why.write_text(reason)
    return 1


if __name__ == "__main__":
    sys.exit(main())
