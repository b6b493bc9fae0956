"""Every test's environment, its tier, what it costs, and which tests passed only at the second try."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from properties import USUAL

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["SCAVENGER_PRICE_REFRESH"] = "never"  # no test asks a real cloud
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).with_name("lean")), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# A shell's background job ignores Ctrl-C, and one by `nohup` a closed terminal; so would each command of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What is collected is compiled once, whatever the environment says of what tests write and import.
_writes_nothing, sys.dont_write_bytecode = sys.dont_write_bytecode, False

# Machines are shared and busy, so no example has a time limit of its own; pytest-timeout ends what hangs. In CI
# a failure prints what reproduces it, and no database of earlier failures decides what is tried.
settings.register_profile("development", deadline=None, max_examples=USUAL)
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=USUAL,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=10)
settings.register_profile("nightly", settings.get_profile("ci"), max_examples=300)
settings.load_profile("ci" if os.environ.get("CI") else "development")


_TESTS = Path(__file__).parent
_ENDS = ("rerun", "passed", "failed", "error")

# Files are given to processes in this order; no process waits at the end for one that has begun a long file late.
_LONGEST_FIRST = ("clouds_e2e", "e2e", "train")


def _turn(item: pytest.Item) -> int:
    folder = item.path.parent.name
    return _LONGEST_FIRST.index(folder) if folder in _LONGEST_FIRST else len(_LONGEST_FIRST)


# Whole commands, servers and clouds; the other folders have tests of each tier.
_SYSTEMS = {"clouds_e2e", "cluster", "e2e", "server"}


def _tier(item: pytest.Item) -> str:
    """The name of the marker that says how much a test takes; the marks `slow` and `long` are given by hand."""
    if item.get_closest_marker("long") is not None:
        return "nightly"
    if not item.path.is_relative_to(_TESTS):
        return "unit"
    if item.path.relative_to(_TESTS).parts[0] in _SYSTEMS:
        return "system"
    return "unit" if item.get_closest_marker("slow") is None else "process"


# Folders whose unit tests are held to what that tier says.
_HELD = {"elastic", "jobfile", "scheduler", "sdk", "search", "store", "test_tiers.py"}
_OUTSIDE = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "socket.bind", "socket.connect"}
_held: list[str] = []


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if _held and (event in _OUTSIDE or (event == "import" and arguments[0] == "tensorflow")):
        raise RuntimeError(
            f"{_held[0]} is a unit test, which starts no process, opens no socket and imports no TensorFlow: "
            "mark it slow"
        )


sys.addaudithook(_refuse)


def _processor_s() -> float:
    """Seconds that processors have computed for this process, and for those that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Hold unit tests to their tier; with SCAVENGER_TEST_COSTS write what each test took: of processors, of time."""
    held = item.path.is_relative_to(_TESTS) and item.path.relative_to(_TESTS).parts[0] in _HELD
    _held[:] = [item.nodeid] if held and _tier(item) == "unit" else []
    computed_s, began_at = _processor_s(), time.monotonic()
    try:
        return (yield)
    finally:
        _held.clear()
        if told := os.environ.get("SCAVENGER_TEST_COSTS"):
            computed_s, took_s = _processor_s() - computed_s, time.monotonic() - began_at
            with Path(told).open("a") as file:
                file.write(f"{computed_s:.2f} {took_s:.2f} {item.nodeid}\n")


_ALL_SLOW = re.compile(r"^pytestmark = (\[[^]]*)?pytest\.mark\.slow", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import nothing that has no unit test where those alone are asked for: it would take longer than they."""
    if config.option.markexpr != "unit" or not collection_path.is_relative_to(_TESTS):
        return None
    if (folders := collection_path.relative_to(_TESTS).parts) and folders[0] in _SYSTEMS:
        return True
    if collection_path.suffix == ".py" and _ALL_SLOW.search(collection_path.read_text(encoding="utf-8")):
        return True
    return None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of long tests go first; long proofs are left to `make proofs`, so that an ordinary run stays short."""
    items.sort(key=_turn)
    for item in items:
        tier = _tier(item)
        item.add_marker(tier)
        if tier == "nightly" and not os.environ.get("SCAVENGER_EVERYTHING"):
            item.add_marker(pytest.mark.skip(reason="long: SCAVENGER_EVERYTHING=1 tries it"))


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = _writes_nothing


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the tests that passed only at the second try, which is a fault of quality, here and to CI."""
    tried = {name: {report.nodeid for report in terminalreporter.stats.get(name, ())} for name in _ENDS}
    again = sorted(tried["rerun"] & tried["passed"] - tried["failed"] - tried["error"])
    if again:
        terminalreporter.section("faults of quality: passed only at the second try")
        for name in again:
            terminalreporter.write_line(name)
    in_worker = "PYTEST_XDIST_WORKER" in os.environ  # whose report the controller gets
    if again and not in_worker and (told := os.environ.get("SCAVENGER_SECOND_TRIES")):
        with Path(told).open("a") as file:
            file.writelines(f"{name}\n" for name in again)
