"""`scavenger serve` with its API, and `scavenger api`, as processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from waiting import wait_for
from warm_commands import Command

from scavenger.store import Store


def _scavenger(*arguments: str, env: dict[str, str]) -> str:
    command = [sys.executable, "-m", "scavenger_cli", *arguments]
    process = Command(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return out


@pytest.mark.slow
def test_serve_shows_a_link_once_and_serves_until_it_is_stopped(tmp_path: Path) -> None:
    env = {**os.environ, "SCAVENGER_STORE": f"sqlite:///{tmp_path}/store.db", "XDG_STATE_HOME": str(tmp_path)}
    log = tmp_path / "serve.log"
    command = [sys.executable, "-m", "scavenger_cli", "serve", "--port", "0"]
    for start in (1, 2):
        with log.open("w") as output:
            served = Command(command, env=env, stdout=output, stderr=output)
            try:
                wait_for(lambda: "serving the jobs" in log.read_text(), served)
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
                    told = json.loads(_scavenger("api", "info", "-o", "json", env=env))
                    assert [one["address"] for one in told["servers"]] == [address]
                    made = _scavenger("api", "token", "ann", "--role", "user", env=env).strip()
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
        wait_for(store.exists, served)
        served.send_signal(signal.SIGINT)  # the store comes first, and then the API is built
        said, _ = served.communicate(timeout=60)
    finally:
        served.kill()
    assert served.returncode == 0, said
    assert "fault" not in said


def test_a_port_in_use_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = Command(
            [sys.executable, "-m", "scavenger_cli", "serve", "--port", str(port)],
            env={**os.environ, "SCAVENGER_STORE": f"sqlite:///{tmp_path}/jobs.db"},
            stderr=subprocess.PIPE,
        )
        _, said = refused.communicate(timeout=60)
    assert refused.returncode == 2
    (line,) = said.splitlines()
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use; `--port 0`" in line
