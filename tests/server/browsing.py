"""A real server and a real browser, for the tests and the pictures of the dashboard.

They need Debian's `chromium` and the package `playwright` from PyPI, and axe-core, which npm brings (`npm pack`); none
of them is installed with the project.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scavenger.server.app import create_app
from scavenger.store import Store

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def why_no_browser() -> str:
    """What is missing for tests in a browser; empty if nothing is."""
    if shutil.which("chromium") is None:
        return "chromium is not installed"
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return ""


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        yield opened
        opened.close()


@contextlib.contextmanager
def serving(store: Store) -> Iterator[str]:
    """The application at a free port of this machine; its address."""
    import uvicorn

    server = uvicorn.Server(
        uvicorn.Config(
            create_app(store), host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=1
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until_s = time.monotonic() + 60.0
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < until_s
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30.0)


@functools.cache
def axe_source() -> str | None:
    """The script of axe-core, of the folder `AXE_CORE` or fetched by npm; None if neither is there."""
    if folder := os.environ.get("AXE_CORE"):
        return (Path(folder) / "axe.min.js").read_text("utf-8")
    if shutil.which("npm") is None:
        return None
    with tempfile.TemporaryDirectory() as made:
        command = ["npm", "pack", "axe-core@4", "--silent"]
        if subprocess.run(command, cwd=made, check=False, timeout=120, capture_output=True).returncode:
            return None
        with tarfile.open(next(Path(made).glob("*.tgz"))) as archive:
            file = archive.extractfile("package/axe.min.js")
            return None if file is None else file.read().decode()
