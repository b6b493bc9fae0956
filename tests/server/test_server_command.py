"""`scavenger serve` with its API, and `scavenger api`, as processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from scavenger.store import Store


def _scavenger(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scavenger_cli", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)


@pytest.mark.slow
def test_serve_shows_a_link_once_and_serves_until_it_is_stopped(tmp_path: Path) -> None:
    env = {**os.environ, "SCAVENGER_STORE": f"sqlite:///{tmp_path}/store.db", "XDG_STATE_HOME": str(tmp_path)}
    log = tmp_path / "serve.log"
    command = [sys.executable, "-m", "scavenger_cli", "serve", "--port", "0"]
    for start in (1, 2):
        with log.open("w") as output:
            served = subprocess.Popen(command, env=env, stdout=output, stderr=output)
            try:
                until_s = time.monotonic() + 60
                while "serving the jobs" not in log.read_text() and time.monotonic() < until_s:
                    assert served.poll() is None, log.read_text()
                    time.sleep(0.1)
                text = log.read_text()
                address = re.findall(r"the API is at (http://127\.0\.0\.1:\d+)", text)[0]
                links = re.findall(r"open (\S+)", text)
                assert len(links) == (1 if start == 1 else 0)
                if start == 1:
                    with httpx2.Client(timeout=60) as browser:
                        page = browser.get(links[0], follow_redirects=True)
                        assert "<title>" in page.text
                        assert browser.get(f"{address}/v1/info").json()["role"] == "admin"
                else:
                    told = json.loads(_scavenger("api", "info", "-o", "json", env=env).stdout)
                    assert [one["address"] for one in told["servers"]] == [address]
                    made = _scavenger("api", "token", "ann", "--role", "user", env=env).stdout.strip()
                    mine = httpx2.get(
                        f"{address}/v1/info", headers={"Authorization": f"Bearer {made}"}, timeout=60
                    )
                    assert (mine.json()["user"], mine.json()["servers"]) == ("ann", 1)
            finally:
                served.send_signal(signal.SIGTERM)
                served.wait(timeout=60)
    with Store.open(env["SCAVENGER_STORE"]) as store:
        assert store.servers() == ()


def test_ctrl_c_while_it_starts_ends_a_server_in_order(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    env = {**os.environ, "SCAVENGER_STORE": f"sqlite:///{store}", "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "scavenger_cli", "serve", "--port", "0"]
    served = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        until_s = time.monotonic() + 60
        while not store.exists() and time.monotonic() < until_s:
            assert served.poll() is None, served.communicate()
            time.sleep(0.02)
        served.send_signal(signal.SIGINT)  # the store comes first, and then the API is built
        said, _ = served.communicate(timeout=60)
    finally:
        served.kill()
    assert served.returncode == 0, said
    assert "fault" not in said


def test_a_port_in_use_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = subprocess.run(
            [sys.executable, "-m", "scavenger_cli", "serve", "--port", str(port)],
            env={**os.environ, "SCAVENGER_STORE": f"sqlite:///{tmp_path}/jobs.db"},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use; `--port 0`" in line
