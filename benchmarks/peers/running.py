"""Runs a peer: several processes of one script on this machine, each with its rank, and their measurements."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from typing import Any

_TIMEOUT_S = 300.0
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


def installed(library: str) -> bool:
    """Whether a peer can be run here; `pip install 'scavenger-ml[compare]'` brings what may be missing."""
    return importlib.util.find_spec(library) is not None


def run_peers(script: str, workers: int, **options: object) -> list[dict[str, Any]]:
    """Run `benchmarks.peers.SCRIPT` as so many processes with one thread each.

    Args:
        options: Of the script, `--NAME VALUE`.

    Returns:
        By rank, the JSON document on the last line of its output.

    Raises:
        RuntimeError: If a process fails.
    """
    addresses = ",".join(f"127.0.0.1:{port}" for port in _free_ports(workers))
    command = [sys.executable, "-m", f"benchmarks.peers.{script}", "--addresses", addresses]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    environment = {
        **os.environ,
        **dict.fromkeys(_THREADS, "1"),
        "TF_NUM_INTEROP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "KERAS_BACKEND": "tensorflow",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    processes = [
        subprocess.Popen(
            [*command, "--rank", str(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(workers)
    ]
    answers: list[dict[str, Any]] = []
    try:
        for process in processes:
            out, error = process.communicate(timeout=_TIMEOUT_S)
            if process.returncode:
                raise RuntimeError(f"{script} ended with {process.returncode}: {error[-2000:]}")
            answers.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return answers


def peer_arguments(arguments: Any) -> Any:
    """Add the arguments of every peer."""
    arguments.add_argument("--addresses", required=True, help="of every rank")
    arguments.add_argument("--rank", type=int, required=True)
    return arguments


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
