"""The programs of a real control plane, from Debian's packages: `python -m tests.cluster.binaries` builds them once.

`etcd` is a package. Kubernetes is built from Debian's source package, since its servers are in no binary package there.
Its vendored `reflect2` reads the layout of Go's maps, which changed with Go 1.18, and ends the API server at the first
custom resource; Debian's own newer one takes its place. The description of the API is generated, as Debian does.

What is built is kept in a cache outside of the project, by its version, and used by every later run on the machine.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["PROGRAMS", "folder", "missing"]

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
VERSION = "1.20.2"
BUILT_MAX_S = 3600.0
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
    if shutil.which("etcd") is None:
        return "etcd is not installed; `make test-kubernetes` installs and builds what a control plane needs"
    lacking = [name for name in PROGRAMS if not (folder() / name).is_file()]
    return f"{lacking[0]} was not built; run `make test-kubernetes`" if lacking else ""


def build() -> None:
    """Install what is needed by Debian's package manager, and build the programs, unless they are there.

    Raises:
        RuntimeError: If this is no Debian, or not done as root.
        subprocess.CalledProcessError: If a command fails.
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
    with tempfile.TemporaryDirectory(prefix="scavenger-kubernetes-", dir=folder()) as made:
        work = Path(made)
        tree = work / "go" / "src" / _IMPORTED
        _unpack(work, tree)
        _replace_reflect2(tree / "vendor" / _REFLECT2)
        _describe_api(work, tree)
        _compile(work, tree)
        for name in PROGRAMS:
            (work / name).replace(folder() / name)
    missing.cache_clear()


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
    _go(work, tree, "build", "-ldflags", f"-s -w {flags}", "-o", f"{work}/", *programs)


def _go(work: Path, tree: Path, *words: str) -> None:
    _run("go", *words, cwd=tree, **_environment(work))


def _environment(work: Path) -> dict[str, str]:
    folders = {"GOCACHE": str(work / "cache"), "GOPATH": str(work / "go")}
    return {**folders, "GO111MODULE": "off", "GOFLAGS": "", "CGO_ENABLED": "0"}


def _run(*command: str, cwd: Path | None = None, **environment: str) -> None:
    subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        check=True,
        timeout=BUILT_MAX_S,
        stdout=sys.stderr,
    )


if __name__ == "__main__":
    build()
    print(folder())
