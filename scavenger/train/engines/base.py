"""Contract of the engines, which start, watch and end the processes of a job.

`tests/train/engine_conformance.py` checks every implementation against it.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scavenger.train.transport.messages.values import ProcessConfiguration

GRACE_S = 5.0
"""Default time, in seconds, that `stop` waits for each of its steps."""


_LIMITS = {
    "SIGXFSZ": "the limit on file sizes (ulimit -f)",
    "SIGXCPU": "the limit on processor time (ulimit -t)",
}


@dataclass(frozen=True, slots=True)
class Exit:
    """A process that ended.

    Attributes:
        name: As in its `ProcessConfiguration`.
        status: Exit status. Negative: the signal that killed the process (assumed if its end was not seen).
        reason: What the engine knows beyond the status, e.g. that the host was lost; may be empty.
        refused: The process never ran, because no host with capacity could be had.
        out_of_memory: The kernel killed it because memory ran out, according to the kernel's own counter.
    """

    name: str
    status: int
    reason: str = ""
    refused: bool = False
    out_of_memory: bool = False

    @property
    def cause(self) -> str:
        """What happened, as the predicate of a sentence whose subject is the process name."""
        if self.reason:
            return self.reason
        if self.status >= 0:
            return f"ended with status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:  # a real-time signal, or none at all
            name = f"signal {-self.status}"
        why = "out of memory" if self.out_of_memory else _LIMITS.get(name, "")
        return f"was killed by {name}" + (f": {why}" if why else "")


@dataclass(frozen=True, slots=True)
class PreemptionNotice:
    """Notice that the host of a process is going to be shut down.

    Attributes:
        name: As in its `ProcessConfiguration`.
        in_s: Seconds until then; None if no time is set, as for a mere risk of preemption.
        reason: The cause, for people.
        alone: Whether this process alone has to go, and not its whole host: `Engine.vacated` is then told when it holds
            nothing any more.
    """

    name: str
    in_s: float | None
    reason: str
    alone: bool = False


class Engine(Protocol):
    """Runs each role of a job as a process group of its own, on this host or on many.

    The process that holds the engine is the *leader*. An engine is used from one thread; `kill_all` and
    `running` may also be called from a signal handler. No method but `stop` and `close` waits for a process.

    **When the leader ends**, in whatever way, even by SIGKILL, every process ends together with everything that
    its code started: at once on the leader's host, and on other hosts within seconds after they notice.
    A host that is cut off from the leader ends its processes when `poll` has not reached them for minutes. Until
    then they live, and the protocol between the processes must reject their messages.

    **State is updated by `poll`**: for a process on another host, `pid`, `host`, `suspended`, `idle_s`, `sample_memory`
    and the content of `log` are as of the last call.

    Every method raises `KeyError` for a name that was never launched.
    """

    def launch(
        self,
        config: ProcessConfiguration,
        *,
        env: dict[str, str] | None = None,
        host: str | None = None,
        vm: str = "",
    ) -> int:
        """Start a process, which reads its configuration from the first line of its standard input.

        Args:
            config: Configuration of the process. A name may be reused once `running` lacks it; its log is continued.
            env: Environment variables in addition to the inherited ones.
            host: Address to run at, as returned by `host`; None: any host with capacity.
            vm: Type of VM to run on; ignored by an engine whose hosts are all alike.

        Returns:
            The process id on its host, or 0 while the process is still being placed: `pid` returns the id later,
            and `poll` reports a failed placement.

        Raises:
            ValueError: If a process of that name runs, or the engine cannot run at that host.
            RuntimeError: If the engine is closed.
            OSError: If this machine cannot start one.
        """
        ...

    def poll(self) -> list[Exit]:
        """Return the processes that have ended since the last call; what they started has ended with them.

        Each is returned once. Processes that `stop` ended are not included. Never waits.
        """
        ...

    def preemption_notices(self) -> tuple[PreemptionNotice, ...]:
        """Return notices for processes whose host is going to be shut down, each once; by default none."""
        return ()

    def vacated(self, name: str) -> None:
        """Note that a process that was to go alone holds nothing any more; told until it has ended."""
        return

    @property
    def sharing(self) -> frozenset[str] | None:
        """Names of the aggregators that are to share the model where they are now; None: what was asked for holds."""
        return None

    def stand_by(self, workers: int) -> None:
        """Have so many workers of the next job begin ahead of time, if the engine can: as those of this one began."""
        return

    @property
    def hosts(self) -> tuple[str, ...]:
        """Addresses of the hosts that workers can be placed on; empty if every worker can get a new host."""
        return ()

    def node(self, name: str) -> str:
        """Name of the machine on which a process is or was, as `avoid` takes it; by default its host's address."""
        return self.host(name)

    def place(self, name: str) -> str:
        """What is given up as a whole once no process is there, as a VM; empty while a process waits for it."""
        return self.node(name)

    def avoid(self, hosts: Collection[str]) -> None:
        """Start workers on these hosts (as `node` and `hosts` name them) only if there is no other host.

        Replaces the earlier set. Running processes stay. An engine that uses one host only does nothing.
        """
        return

    def kill(self, name: str) -> None:
        """End a process and everything that it started, at once; `poll` reports it. No effect if it has ended."""
        ...

    def kill_all(self) -> None:
        """Kill every process, without waiting; idempotent and safe to call from a signal handler."""
        for name in self.running:
            self.kill(name)

    def stop(self, names: Sequence[str] | None = None, *, grace_s: float = GRACE_S) -> None:
        """End processes that have been asked to quit: wait, then SIGTERM, then SIGKILL to each group.

        Idempotent: processes that have ended are skipped.

        Args:
            names: Processes to end; None: all.
            grace_s: Seconds for each of the first two steps.

        Raises:
            CleanupError: If a process cannot be ended, or its end cannot be confirmed; the message names it.
        """
        ...

    def close(self) -> None:
        """Stop every process with a short grace period and release all resources. Idempotent; logs stay.

        Raises:
            CleanupError: As `stop`; everything else is released nevertheless.
        """
        ...

    @property
    def in_doubt(self) -> bool:
        """Whether hosts that are not lost do not answer, so that the silence of processes proves nothing for now."""
        return False

    @property
    def leader_host(self) -> str:
        """Address by which processes reach the leader's own host."""
        ...

    @property
    def leader_port(self) -> int:
        """Port at which the leader has to listen for its processes; 0: any."""
        return 0

    @property
    def socket_dir(self) -> Path | None:
        """Private folder for the Unix sockets of a job whose processes are all on this machine; None: they use TCP."""
        return None

    def reachable(self, url: str) -> str:
        """Translate a URL of the leader into the URL of the same files for its processes.

        The two differ where hosts do not share files.
        """
        return url

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the processes whose end has not been seen."""
        ...

    def pid(self, name: str) -> int:
        """Return the process id on its host, also after its end; 0 if the process has not been placed yet."""
        ...

    def host(self, name: str) -> str:
        """Return the address of the process's host; empty if the process has not been placed yet."""
        ...

    def log(self, name: str) -> Path:
        """Return the file on the leader's host that holds the process's standard output and error."""
        ...

    def suspended(self, name: str) -> bool:
        """Return whether the process is stopped by SIGSTOP or the like (state T): alive, silent until continued."""
        ...

    def idle_s(self, name: str) -> float:
        """Return the seconds since the process was last seen to use a processor, or to wait for one.

        Ask repeatedly, in intervals below a second: on this machine, what happened between two calls is compared.
        Infinite for a process that was never seen to, or has ended.
        """
        ...

    def sample_memory(self) -> dict[str, int]:
        """Return the largest resident memory seen so far of each running process, bytes.

        Shared pages count for each process.
        """
        ...

    def cap_logs(self) -> None:
        """Truncate logs that have grown too long to their last part, also while their processes write."""
        ...

    def show_stack(self, name: str) -> None:
        """Make a process write its stack traces to its log (SIGUSR1). No effect if it has ended."""
        ...
