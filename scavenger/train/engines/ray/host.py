"""The Ray actor that `scavenger.train.engines.ray.engine` starts on a host to run one process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.process_runner import ProcessRunner
from scavenger.train.transport.messages.values import ProcessConfiguration

_ANSWER_S = 0.5
"""Longest time that `watch` waits for a change."""
_TICK_S = 0.05
_LAUNCH = 1
"""The launch number of the actor's one process."""


class ProcessActor:
    """Ray actor that runs one process on this host, as the agent of a VM does.

    Ray calls `watch` in a thread of its own, and all other methods, in order, in another one.
    """

    def __init__(self, command: Sequence[str] | None, lease_s: float) -> None:
        self._command = tuple(command or ())
        self._messages: list[m.AgentMessage] = []
        self._runner = ProcessRunner(self._messages.append, forks=False)
        self._started = False
        self._ended: list[m.AgentMessage] = []
        self._lock = threading.Lock()
        self._asked_at = time.monotonic()
        guard = threading.Thread(target=self._guard, args=(os.getppid(), lease_s), name="scavenger-guard")
        guard.daemon = True
        guard.start()

    def start(self, config: ProcessConfiguration, env: dict[str, str] | None) -> str:
        """Start the process; returns the address of this host. Idempotent, because the answer may be lost."""
        import ray

        with self._lock:
            if not self._started:
                self._started = True
                # the training code must not control the cluster that it runs on
                os.environ.pop("RAY_AUTH_TOKEN", None)
                folder = Path(config.job_dir) if config.job_dir else None
                self._runner.start(m.Start(_LAUNCH, config, env or {}, "", self._command), folder)
        address: str = ray.util.get_node_ip_address()
        return address

    def watch(self) -> list[m.AgentMessage]:
        """Return what has changed as soon as something has, at the latest after `_ANSWER_S`."""
        self._asked_at = time.monotonic()
        deadline = self._asked_at + _ANSWER_S
        while not self._ended:
            with self._lock:
                self._runner.step(time.monotonic(), room=True)
                found, self._messages[:] = [*self._messages], []
            if any(isinstance(message, m.Report) and message.status is not None for message in found):
                self._ended = found  # told again if this answer is lost
                self._runner.close()
            elif found or time.monotonic() > deadline:
                return found
            else:
                time.sleep(_TICK_S)
        return self._ended

    def stop(self, grace_s: float) -> None:
        """Have the process end, by itself or by a signal; `watch` reports the end."""
        with self._lock:
            self._runner.stop(_LAUNCH, grace_s, time.monotonic())

    def kill(self) -> None:
        """Kill the process."""
        with self._lock:
            self._runner.kill(_LAUNCH)

    def show_stack(self) -> None:
        with self._lock:
            self._runner.show_stack(_LAUNCH)

    def _guard(self, raylet: int, lease_s: float) -> None:
        """Exit when the raylet has ended, which Ray itself notices late, or when the leader stops calling `watch`."""
        while os.getppid() == raylet and time.monotonic() - self._asked_at < lease_s:
            time.sleep(_TICK_S)
        os._exit(1)  # the reaper kills the process
