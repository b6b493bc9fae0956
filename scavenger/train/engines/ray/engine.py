"""Engine that runs a job's processes on the hosts of a Ray cluster.

Ray places an actor for each process and reports lost hosts. The actor runs the process as the agent of a VM
does, so that process groups, markers, the reaper and logs work there as they do locally. Reasons and measurements:
docs/adr/0007-ray-engine.md.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from scavenger.errors import CleanupError, NotSupportedError, TransientError
from scavenger.private_files import make_private_folder
from scavenger.train.engines.base import GRACE_S, Engine, Exit
from scavenger.train.engines.logs import cap_log
from scavenger.train.engines.ray.host import ProcessActor
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.remote import RemoteProcess, RemoteProcesses
from scavenger.train.transport.messages.values import ProcessConfiguration

_PLACING_S = 60.0
"""How long a process may wait for a host with capacity before it counts as ended."""
_TICK_S = 0.05
_LEASE_S = 300.0
"""Longer than any pause of a healthy leader. Ray itself does not end the processes of a host that is cut off."""
_CLOSING_S = 1.0
_CONNECTING_S = 5.0
_MARGIN_S = 30.0
"""How long `stop` waits beyond the host's own deadlines; Ray needs half of it to declare a host dead."""
_LOCAL_STORE_BYTES = 80 << 20
"""The smallest object store that Ray accepts: payloads are not sent through it."""
_KEEP_CHILDREN = {"RAY_kill_child_processes_on_worker_exit": "0"}
"""Otherwise Ray kills the reaper before it can end what the training code started in other sessions."""


@dataclass(slots=True)
class _Process(RemoteProcess):
    """A remote process with its Ray handles, which are untyped.

    Attributes:
        actor: Actor that runs the process.
        answer: Future that the leader waits for: the result of `start`, then repeatedly that of `watch`.
        again: Makes the call for the next answer.
    """

    actor: Any = None
    answer: Any = None
    again: Any = None
    killed: bool = False


class RayEngine(RemoteProcesses[_Process]):
    """Runs each role of a job in a process of its own on some host of a Ray cluster.

    A process reserves as many CPUs of its host as its configuration has threads, and Ray spreads processes over the
    hosts. `poll` reports, with a reason, a process that takes longer than a minute to place or is lost with its host.

    Args:
        log_dir: Local folder to which output is copied, one file per process.
        address: Address of the cluster, `HOST:PORT`; `auto`: the one that this host belongs to; `local`: a new one, on
            this host only, which ends with this engine.
        command: Command of each process; None: the training process, with the host's own Python.
        lease_s: How long a process lives without a call of `poll` or `stop`, because the leader hangs or the host
            is cut off from it.
        clock: Returns monotonic seconds.

    Raises:
        NotSupportedError: If Ray is not installed.
        TransientError: If the cluster cannot be reached.
    """

    def __init__(
        self,
        log_dir: Path,
        *,
        address: str = "auto",
        command: Sequence[str] | None = None,
        lease_s: float = _LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(log_dir, clock)
        self._ray = _connections.join(address)
        self._here: str = self._ray.util.get_node_ip_address()
        self._command = command
        self._lease_s = lease_s
        self._avoided: frozenset[str] = frozenset()
        make_private_folder(log_dir)
        self._actor_class = self._ray.remote(
            concurrency_groups={"watch": 1},
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": _KEEP_CHILDREN},
        )(ProcessActor)

    def launch(
        self,
        config: ProcessConfiguration,
        *,
        env: dict[str, str] | None = None,
        host: str | None = None,
        vm: str = "",
    ) -> int:
        """See `Engine.launch`; always 0."""
        self._check_launch(config.name)
        # a resource that Ray defines for every host; a tiny amount pins the actor there
        pin = (
            {"resources": {f"node:{host}": 0.001}}
            if host is not None
            else {"scheduling_strategy": self._spread()}
        )
        actor = self._actor_class.options(num_cpus=config.threads, **pin).remote(self._command, self._lease_s)

        config = msgspec.structs.replace(config, memory_fd=-1)  # descriptors are not inherited across hosts

        def start() -> Any:  # not the constructor, because Ray stores its arguments, which contain keys
            return actor.start.remote(config, env)

        log, place_by = self._new_log(config.name), self.clock() + _PLACING_S
        self._processes[config.name] = _Process(
            config, log, place_by, actor=actor, answer=start(), again=start
        )
        return 0

    def poll(self) -> list[Exit]:
        self._receive(0.0)
        for process in self._waited_too_long():
            self._ray.kill(process.actor)
            self._lose(process, "found no host with capacity for it")
        return self._take_exits()

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node["NodeManagerAddress"] for node in self._usable_nodes()))

    def cpus(self) -> dict[str, int]:
        """How many CPUs each host has for processes, by its address."""
        return {
            node["NodeManagerAddress"]: int(node["Resources"].get("CPU", 0)) for node in self._usable_nodes()
        }

    def avoid(self, hosts: Collection[str]) -> None:
        self._avoided = frozenset(hosts)

    def kill(self, name: str) -> None:
        process = self._processes[name]
        if not process.ended:
            process.killed = True
            if process.pid:
                process.actor.kill.remote()
            else:
                self._ray.kill(process.actor)

    def stop(self, names: Sequence[str] | None = None, *, grace_s: float = GRACE_S) -> None:
        """See `Engine.stop`; a process whose host Ray has declared dead counts as ended."""
        chosen = {name: self._processes[name] for name in (names if names is not None else self.running)}
        for process in chosen.values():
            if process.ended:
                continue
            if process.pid:
                process.actor.stop.remote(grace_s)
            else:
                self._ray.kill(process.actor)
        deadline = self.clock() + 3 * grace_s + _MARGIN_S
        while (left := [name for name in chosen if not chosen[name].ended]) and self.clock() < deadline:
            self._receive(_TICK_S)
        self._exits = [ended for ended in self._exits if ended.name not in chosen]
        if left:
            where = ", ".join(chosen[name].where for name in left)
            raise CleanupError(
                f"the end of these processes cannot be confirmed: {where}; check there and kill them"
            )

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self.stop(grace_s=_CLOSING_S)
        finally:
            for process in self._processes.values():
                self._release(process)
            _connections.leave()

    @property
    def leader_host(self) -> str:
        return self._here

    def show_stack(self, name: str) -> None:
        process = self._processes[name]
        if not process.ended:
            process.actor.show_stack.remote()

    def _spread(self) -> Any:
        """Return Ray's scheduling strategy: use hosts that are not avoided, unless there are no others with CPUs."""
        if not self._avoided:
            return "SPREAD"
        usable = self._usable_nodes()
        avoided = [node["NodeID"] for node in usable if node["NodeManagerAddress"] in self._avoided]
        if not avoided or len(avoided) == len(usable):
            return "SPREAD"
        labels = self._ray.util.scheduling_strategies
        return labels.NodeLabelSchedulingStrategy(hard={"ray.io/node-id": labels.NotIn(*avoided)})

    def _usable_nodes(self) -> list[dict[str, Any]]:
        """Return the cluster's live nodes that have CPUs."""
        return [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]

    def _receive(self, timeout_s: float) -> None:
        """Handle the answers that have arrived, waiting at most `timeout_s` for the first."""
        waiting = {process.answer: process for process in self._processes.values() if not process.ended}
        if not waiting:
            return
        ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        for answer in ready:
            self._handle_answer(waiting[answer])

    def _handle_answer(self, process: _Process) -> None:
        errors = self._ray.exceptions
        try:
            update = self._ray.get(process.answer)
        except errors.ActorUnavailableError:  # unreachable, but not known to be dead
            process.answer = process.again()
            return
        except errors.RayTaskError as error:
            place = process.host or "a host"
            self._lose(process, f"could not be run on {place}: {error.cause or error}")
            return
        except errors.RayError:
            where = f"on {process.host}" if process.host else "where it was being started"
            self._lose(process, "" if process.killed else f"was lost: Ray cannot reach it any more {where}")
            return
        if isinstance(update, str):
            process.host = update
            process.again = process.actor.watch.options(concurrency_group="watch").remote
        else:
            for message in update:
                if isinstance(message, m.Placed):
                    process.pid = message.pid
                elif isinstance(message, m.Report):
                    self._report(process, message)
        if not process.ended:
            process.answer = process.again()

    def _end(self, process: _Process, status: int, reason: str = "", *, refused: bool = False) -> None:
        self._release(process)
        super()._end(process, status, reason, refused=refused)

    @staticmethod
    def _release(process: _Process) -> None:
        process.ended, process.suspended = True, False
        process.actor = process.answer = process.again = (
            None  # Ray ends an actor when its last handle is dropped
        )
        cap_log(process.log)


def engine_maker(choice: str) -> Callable[[Path, int], Engine] | None:
    """Return a function that makes a supervisor's engine, given the job file's `process`, `ray` or `ray/ADDRESS`.

    Returns:
        None for `process`, which is the supervisor's default.
    """
    name, _, address = choice.partition("/")
    if name == "process":
        return None
    return lambda log_dir, _: RayEngine(log_dir, address=address or "auto")


class RayHome:
    """A place in a Ray cluster, held until `close`.

    Args:
        address: See `RayEngine`.

    Attributes:
        address: At which the cluster's other nodes reach this machine.

    Raises:
        NotSupportedError, TransientError: See `RayEngine`.
    """

    def __init__(self, address: str = "auto") -> None:
        try:
            ray = _connections.join(address)
        except TransientError as error:
            raise TransientError(
                f"{error}; start the command on a node of the Ray cluster, as in its head's pod"
            ) from error
        self.address: str = ray.util.get_node_ip_address()
        self._open = True

    def close(self) -> None:
        """Leave it. Idempotent."""
        if self._open:
            self._open = False
            _connections.leave()


class _Connections:
    """The one connection to Ray per process, shared by all engines and closed by the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._ours = False

    def join(self, address: str) -> ModuleType:
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # read by Ray on import
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # the user has not agreed to it
        try:
            import ray
        except ImportError:
            raise NotSupportedError(
                "the engine `ray` needs Ray: `pip install 'scavenger-ml[ray]'` here and on every host"
            ) from None
        # Ray has no public setting that stops it from writing cluster events to standard output
        setattr(sys.modules.get("ray._private.worker"), "_worker_logs_enabled", False)  # noqa: B010
        with self._lock:
            if not ray.is_initialized():
                self._connect(ray, address)
                self._ours = True
            self._users += 1
        module: ModuleType = ray
        return module

    def leave(self) -> None:
        import ray

        with self._lock:
            self._users -= 1
            if self._users == 0 and self._ours:
                self._ours = False
                ray.shutdown()

    @staticmethod
    def _connect(ray: ModuleType, address: str) -> None:
        local: dict[str, Any] = {"include_dashboard": False, "object_store_memory": _LOCAL_STORE_BYTES}
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            host, _, port = address.rpartition(":")
            if host:  # fail fast: Ray itself retries for minutes
                socket.create_connection((host, int(port)), timeout=_CONNECTING_S).close()
            ray.init(
                address=address,
                log_to_driver=False,
                configure_logging=False,
                **(local if address == "local" else {}),
            )
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise TransientError(f"no Ray cluster answers at {address!r}: {error}") from error
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in handlers.items():  # restore them: Ray installs its own
                    if handler is not None:
                        signal.signal(number, handler)


_connections = _Connections()
