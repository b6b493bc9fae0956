"""Reads what the cloud shows of VMs that have not joined: their state, why they end, and their console."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from scavenger.cloud.base import Provider
from scavenger.errors import CredentialsError, GoneError, ScavengerError
from scavenger.policy.provisioning.boots import BootEvidence

VMS_MAX = 8
"""VMs that are looked at in one round: what keeps the others from coming is likely the same, and calls are limited."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A VM to look at.

    Attributes:
        intent: Id of its intent.
        instance_id, zone: Where the cloud has it.
    """

    intent: str
    instance_id: str
    zone: str


class BootWatch:
    """Looks at VMs on a thread of its own, since a cloud may take seconds to answer. What was seen of a VM is kept.

    Args:
        interval_s: Time between two rounds.
    """

    def __init__(self, provider: Provider, *, interval_s: float) -> None:
        self._provider, self._interval_s = provider, interval_s
        self._watched: tuple[Watched, ...] = ()
        self._evidence: dict[str, BootEvidence] = {}
        self._denied = ""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scavenger-boots", daemon=True)

    def start(self) -> None:
        """Start the thread. Idempotent."""
        if not self._thread.ident:
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the call that it is in; does not wait for it."""
        self._stopping.set()

    def watch(self, vms: Iterable[Watched]) -> None:
        """Look at these VMs from now on, in place of others."""
        with self._lock:
            self._watched = tuple(vms)[:VMS_MAX]

    @property
    def evidence(self) -> Mapping[str, BootEvidence]:
        """What was last seen of each VM, by its intent."""
        with self._lock:
            return dict(self._evidence)

    @property
    def denied(self) -> str:
        """Why consoles cannot be read, in the cloud's words; empty if they can."""
        return self._denied

    def look(self) -> None:
        """Look at each VM once."""
        with self._lock:
            watched = self._watched
        for vm in watched:
            before = self._evidence.get(vm.intent, BootEvidence())
            seen = self._state(vm, before)
            console = self._console(vm)
            with self._lock:
                # a console is lost with its VM at some clouds, and what it showed last is what matters then
                self._evidence[vm.intent] = replace(seen, console=console or before.console)

    def _state(self, vm: Watched, before: BootEvidence) -> BootEvidence:
        try:
            seen = self._provider.describe(vm.instance_id, vm.zone)
        except GoneError:
            return replace(before, state="gone")
        except ScavengerError:
            return before
        return replace(before, state=seen.state, reason=seen.reason or before.reason)

    def _console(self, vm: Watched) -> str:
        try:
            return self._provider.console(vm.instance_id, vm.zone)
        except CredentialsError as error:
            self._denied = str(error)
        except ScavengerError:
            pass
        return ""

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._attempt(self.look)
            self._stopping.wait(self._interval_s)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - without evidence a job runs as well, and says less
            self._denied = f"{type(error).__name__}: {error}"
