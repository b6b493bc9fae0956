"""A job's VMs on their way to it: shows how far they are, warns of late ones, and finds out why others failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from scavenger.control.provisioning.boot_watch import BootWatch, Watched
from scavenger.control.provisioning.booting import boot_way
from scavenger.domain.intent import FleetSpec, Intent
from scavenger.domain.vm import VmPackage
from scavenger.errors import ConfigurationError, QuotaError, ScavengerError, TransientError
from scavenger.policy.provisioning.boot_failures import REPEATED, BootFailure, diagnose, last_words, repeated
from scavenger.policy.provisioning.boots import (
    BootEvidence,
    BootSeen,
    UsualBoot,
    in_words,
    phase_of,
    progress_line,
    reaches,
    usual_boot,
)
from scavenger.policy.provisioning.fleet_plan import AgentSeen

log = logging.getLogger(__name__)

PROGRESS_S = 3.0
"""Shortest time between two lines about progress: VMs that come together are shown together."""
EXPLAINED_S = 15.0
"""Longest wait, after a VM has ended, for what the cloud shows of it last."""
WARNINGS_MAX = 3
"""VMs of a job that are reported as late: what keeps more of them is likely the same."""
_FAILED = ("never_joined", "died")
_EVIDENT = ("refused", "disk", "index", "package", "unreachable", "image")
"""Causes that a console proves while its VM still runs."""


def is_proven(history: Iterable[Intent], spec: FleetSpec) -> bool:
    """Whether a VM has ever joined as this job's are to: same region and image, coordinator's address and package."""
    template = spec.template
    return any(
        one.acks > 0
        and (one.provider, one.region, one.request.template.image)
        == (spec.provider, spec.region, template.image)
        and boot_way(one.request.template.user_data) == boot_way(template.user_data)
        for one in history
    )


def failure_line(failure: BootFailure) -> str:
    """A failure that VMs repeat, with its fix, in one line."""
    return f"{REPEATED} VMs failed alike, and more would: each {failure.words}; {failure.fix}"


@dataclass(slots=True)
class _Vm:
    asked_at: float
    joined_at: float | None = None
    ended_at: float | None = None
    warned_of: str | None = None
    failure: BootFailure | None = None


class FleetBoots:
    """The boots of one job's VMs.

    Args:
        spec: Of the job's VMs, with their user data.
        watch: Looks at VMs that have not joined.
        history: Intents of all jobs, oldest first.
        note: Shows a warning to the user.
        folder: Receives the consoles of VMs that are late or have failed.
        title: What a VM is called at the beginning of a sentence.

    Attributes:
        usual: The usual boot time here.
    """

    def __init__(
        self,
        spec: FleetSpec,
        package: VmPackage,
        watch: BootWatch,
        history: tuple[Intent, ...],
        *,
        endpoint: str,
        note: Callable[[str], None],
        inform: Callable[[str], None],
        folder: Path,
        title: Callable[[BootSeen], str] = attrgetter("title"),
    ) -> None:
        self._spec, self._package, self._title = spec, package, title
        self._watch, self._endpoint = watch, endpoint
        self._note, self._inform, self._folder = note, inform, folder
        image = spec.template.image
        self.usual: UsualBoot = usual_boot(history, provider=spec.provider, region=spec.region, image=image)
        self._released = is_proven(history, spec)
        self._vms: dict[str, _Vm] = {}
        self._failures: list[BootFailure] = []
        self._shown: tuple[object, float] = ((), float("-inf"))

    def start(self) -> None:
        """Start to look at the cloud."""
        self._watch.start()

    def stop(self) -> None:
        """Stop looking at the cloud."""
        self._watch.stop()

    @property
    def one_first(self) -> bool:
        """Whether only one VM is to be rented yet, since nothing has proven that VMs come."""
        return not self._released

    @property
    def failure(self) -> BootFailure | None:
        """The failure by which VMs fail again and again; None if there is none."""
        return repeated(self._failures)

    def error(self, failure: BootFailure) -> ScavengerError:
        """The error that ends the job for such a failure."""
        message = failure_line(failure)
        match failure.kind:
            case "configuration":
                return ConfigurationError(message)
            case "quota":
                return QuotaError(message, quota=failure.cause, region=self._spec.region)
            case _:
                return TransientError(message)

    def look(
        self, intents: Iterable[Intent], agents: Mapping[str, AgentSeen], wanted: int, now: float
    ) -> None:
        """Show what has changed.

        Args:
            agents: By intent.
            wanted: Number of VMs that the job wants, requested or not.
            now: Monotonic seconds.
        """
        attempt = self._spec.attempt
        mine = [one for one in intents if one.attempt == attempt and one.asked]
        evidence = self._watch.evidence
        seen = [
            self._seen(one, agents.get(one.id), evidence.get(one.id, BootEvidence()), now) for one in mine
        ]
        coming = [vm for vm in seen if vm.intent.state in ("PLAN", "UP")]
        for vm in seen:
            self._judge(vm, now)
        self._watch.watch(self._unjoined(seen))
        if reaches(coming):
            self._release(coming, wanted)
        self._show_progress(coming, wanted, now)

    def _seen(self, intent: Intent, agent: AgentSeen | None, evidence: BootEvidence, now: float) -> BootSeen:
        vm = self._vms.setdefault(intent.id, _Vm(now))
        # one that is shut out counts as about to end
        joined = intent.acks > 0 or (agent is not None and agent.joined and not agent.is_ending)
        if joined and vm.joined_at is None:
            vm.joined_at = now
            self._failures.clear()  # one that has joined proves that others can
        until = now if vm.joined_at is None else vm.joined_at
        return BootSeen(intent, vm.joined_at is not None, until - vm.asked_at, evidence)

    def _unjoined(self, seen: Iterable[BootSeen]) -> list[Watched]:
        """VMs to look at: those on their way, and failed ones whose end has not been explained yet."""
        return [
            Watched(vm.intent.id, vm.intent.instance_id, vm.intent.request.zone)
            for vm in seen
            if vm.intent.instance_id
            and not vm.joined
            and (vm.intent.state == "UP" or self._vms[vm.intent.id].failure is None)
            and vm.intent.ending in ("", *_FAILED)
        ]

    def _judge(self, vm: BootSeen, now: float) -> None:
        known = self._vms[vm.intent.id]
        if vm.joined or known.failure is not None:
            return
        if vm.intent.ending in _FAILED:
            known.ended_at = now if known.ended_at is None else known.ended_at
            explained = vm.evidence.state in ("stopping", "gone") or now - known.ended_at > EXPLAINED_S
            if explained:
                self._note_failure(vm, known)
        elif vm.intent.state in ("PLAN", "UP") and known.warned_of is None:
            self._warn(vm, known)

    def _note_failure(self, vm: BootSeen, known: _Vm) -> None:
        known.failure = failure = self._diagnosed(vm, vm.evidence.reason or vm.intent.reason)
        is_known = failure.cause in (known.warned_of, *(one.cause for one in self._failures))
        self._failures.append(failure)
        if is_known:
            self._note(f"{self._named(vm)} has ended and not joined, for the reason above")
            return
        self._note(f"{self._named(vm)} {failure.words}; {failure.fix}{self._shown_console(vm)}")

    def _warn(self, vm: BootSeen, known: _Vm) -> None:
        """Warn of a VM that is late, or whose console shows why it cannot join."""
        failure = self._diagnosed(vm, "")
        evident, late = failure.cause in _EVIDENT, vm.age_s > self.usual.slow_s
        if (
            not (evident or late)
            or sum(one.warned_of is not None for one in self._vms.values()) >= WARNINGS_MAX
        ):
            return
        known.warned_of = failure.cause
        if evident:
            self._note(f"{self._named(vm)} {failure.words}; {failure.fix}{self._shown_console(vm)}")
            return
        about = "" if failure.cause in ("unknown", "unread") else f" and {failure.words}; {failure.fix}"
        self._note(
            f"{self._named(vm)} has not joined after {in_words(vm.age_s)}, usually it takes {self.usual}: "
            f"it is {phase_of(vm)}{about}{self._shown_console(vm)}"
        )

    def _diagnosed(self, vm: BootSeen, reason: str) -> BootFailure:
        template = vm.intent.request.template
        found = diagnose(
            reason,
            vm.evidence.console,
            endpoint=self._endpoint,
            image=template.image,
            package=self._package.name,
        )
        if found.cause == "silent" and self._watch.denied and not vm.evidence.console:
            why = f" ({reason})" if reason else ""
            return BootFailure(
                "unread", f"has not joined{why}", "allow consoles to be read to know why", "transient"
            )
        return found

    def _named(self, vm: BootSeen) -> str:
        request = vm.intent.request
        return f"{self._title(vm)} ({vm.intent.instance_id or 'no id yet'}, {request.vm} in {request.zone})"

    def _shown_console(self, vm: BootSeen) -> str:
        """The end of a VM's console for a message, and where the rest of it was written."""
        text = vm.evidence.console
        if not text.strip():
            return f"; its console cannot be read: {self._watch.denied}" if self._watch.denied else ""
        shown = f'; its console ends with "{" | ".join(last_words(text, 2))}"'
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"console-{vm.intent.instance_id}.log"
            path.write_text(text, errors="replace")
        except OSError as error:
            log.warning("the console of %s cannot be written: %s", vm.intent.instance_id, error)
            return shown
        return f"{shown} (in {self._folder.name}/{path.name})"  # short, so that terminals do not break it

    def _release(self, coming: list[BootSeen], wanted: int) -> None:
        if self._released:
            return
        self._released = True
        if wanted > len(coming):
            self._inform(
                f"VMs: the first one reaches this machine, so the other {wanted - len(coming)} are rented"
            )

    def _show_progress(self, coming: list[BootSeen], wanted: int, now: float) -> None:
        if not any(not vm.joined for vm in coming) and not self._shown[0]:
            return
        key = tuple((vm.intent.id, phase_of(vm)) for vm in coming)
        done = all(vm.joined for vm in coming)
        if not coming or key == self._shown[0] or (now - self._shown[1] < PROGRESS_S and not done):
            return
        self._shown = (key, now)
        self._inform(f"VMs: {progress_line(coming, rest=max(0, wanted - len(coming)))}")
