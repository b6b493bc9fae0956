"""The coordinator process: leads one job. It may die at any time, and the supervisor starts another.

All of its state can be recovered: every process answers its `RollCall`, the sequencer reports how far the job is, and
the supervisor, which started it, sends the last request. Training does not need the coordinator from step to step.
`scavenger.elastic` decides which membership and views follow from events.
"""

from __future__ import annotations

import logging
import time

import zmq

from scavenger.elastic.liveness import HEARTBEAT_S, SILENT_S, Liveness
from scavenger.elastic.membership import Membership, WorkerState
from scavenger.elastic.quarantine import Cause
from scavenger.elastic.steps import Announce, Death
from scavenger.train.coordinator.initialization import JobInitializer
from scavenger.train.coordinator.roster import RosterReport
from scavenger.train.coordinator.watching import SequencerProgress, StartTimes
from scavenger.train.failpoints import fail_here
from scavenger.train.names import HEARTBEAT_SUFFIX, SUPERVISOR, aggregator_name
from scavenger.train.transport import messages as m
from scavenger.train.transport.sockets import EVERYBODY, HubConnection

_CUT_OFF_S = 4 * HEARTBEAT_S
"""Silence of the supervisor, in seconds, after which the silence of other processes, whose messages it passes on,
does not count."""
_AGAIN_S = 1.0
"""Time after which a view that has not taken effect is announced again, seconds."""


log = logging.getLogger(__name__)


class Coordinator:
    """Leads one job.

    Args:
        config: Its process configuration; its `token` is higher than that of every earlier coordinator.
    """

    def __init__(
        self,
        config: m.ProcessConfiguration,
        hub: HubConnection,
    ) -> None:
        self._token, self._hub = config.token, hub
        self._membership = Membership(config.token)
        self._liveness = Liveness()
        self._brief: m.Brief | None = None
        self._initialization = JobInitializer(
            self._membership, token=config.token, send=hub.send_to, announce=self._announce
        )
        self._present: set[str] = set()
        self._expelled: set[str] = set()
        self._command = 0
        self._wanted: m.ResizeMembers | None = None
        self._sequencer, self._starts, self._roster = SequencerProgress(), StartTimes(), RosterReport()
        self._announced_at = self._watched_at = self._supervisor_at = 0.0
        self._running = True

    def run(self) -> None:
        """Handle messages until the supervisor sends `Quit`."""
        poller = zmq.Poller()
        poller.register(self._hub.socket, zmq.POLLIN)
        self._hub.send_to(SUPERVISOR, m.Beat())
        beat_at = time.monotonic()
        while self._running:
            poller.poll(int(HEARTBEAT_S * 1000 / 2))
            for peer, message in self._hub.receive_messages():
                self._take(peer, message)
            now = time.monotonic()
            if now - beat_at >= HEARTBEAT_S:
                beat_at = now
                self._hub.send_to(SUPERVISOR, m.Beat())
            self._watch(now)
            self._publish()

    # ---- messages ------------------------------------------------------------------------------------------

    def _take(self, peer: str, message: m.Message) -> None:
        self._roster.changed = self._roster.changed or not isinstance(message, m.Beat)
        if peer == SUPERVISOR:
            self._from_supervisor(message)
            return
        if peer.endswith(HEARTBEAT_SUFFIX):
            if isinstance(message, m.Beat):
                self._beat(peer.removesuffix(HEARTBEAT_SUFFIX), message)
            return
        if isinstance(message, m.SamplesQuarantined):
            self._initialization.quarantined(message.samples)
        elif isinstance(
            message,
            m.AggregatorReady
            | m.Initialised
            | m.ViewInstalled
            | m.MapChanged
            | m.Migrated
            | m.SequencerState,
        ):
            if self._may_send(peer, message):
                self._from_aggregator(message)
        elif self._membership.knows(peer) and self._membership.state(peer) is not WorkerState.GONE:
            self._from_worker(peer, message)  # messages of lost workers may arrive late

    def _may_send(self, peer: str, message: m.Message) -> bool:
        """Whether the sender is the aggregator whose index the message has; those about views and maps have index 0."""
        index = message.index if isinstance(message, m.AggregatorReady | m.Initialised) else 0
        aggregators = () if self._brief is None else self._brief.aggregators
        return index in range(len(aggregators)) and aggregators[index] == peer

    def _from_supervisor(self, message: m.Message) -> None:
        match message:
            case m.Beat():
                self._supervisor_at = time.monotonic()
            case m.Brief():
                self._supervisor_at = time.monotonic()
                self._take_over(message)
            case m.Launched():
                self._launched(message.worker)
            case m.ProcessEnded():
                self._ended(message.name, message.death)
            case m.Working():
                for name, idle_s in message.idle_s.items():
                    self._liveness.worked(name, time.monotonic() - idle_s)
            case m.ResizeMembers():
                self._resize(message)
            case m.Rewind() if self._brief is not None:
                self._initialization.rewind(message.restore)
            case m.ReleaseSpares():
                self._command = message.command
                leaving = self._membership.spare(message.keep)
                for worker in leaving:
                    self._membership.release(worker)
                    self._roster.leaving.add(worker)
                    self._liveness.forget(worker)
                    self._initialization.lost(worker)
                self._publish()  # before they end, so that the supervisor does not take that for a failure
                for worker in leaving:
                    self._hub.send_to(worker, m.Quit())
            case m.Quit():
                self._running = False
            case _:
                pass

    def _from_worker(self, worker: str, message: m.Message) -> None:
        match message:
            case m.Hello():
                self._sequencer.validation_size = message.manifest.validation_size
                self._initialization.hello(worker, message.manifest)
            case m.Present():
                self._sequencer.validation_size = message.manifest.validation_size
                if message.ready:
                    self._present.add(worker)
                self._initialization.present(worker, message)
                if message.ready and self._initialization.informed:
                    self._ready(worker)
            case m.Seeded():
                self._initialization.seeded_by(worker, message.memory)
            case m.Ready():
                self._ready(worker)
            case _:
                pass

    def _from_aggregator(self, message: m.Message) -> None:
        match message:
            case m.AggregatorReady():
                self._aggregator_ready(message)
            case m.Initialised():
                self._initialization.initialised(message.index)
            case m.MapChanged():
                self._initialization.map_changed(message.map)
            case m.Migrated():
                self._initialization.map_changed(message.map, settled=not message.reason)
            case m.ViewInstalled():
                view = message.view
                self._announce(
                    self._membership.installed(view.number, [member.worker for member in view.members])
                )
                fail_here("coordinator.installed")
            case m.SequencerState() if not self._initialization.informed:
                self._inform(message)
            case _:
                pass

    # ---- start and takeover --------------------------------------------------------------------------------

    def _take_over(self, brief: m.Brief) -> None:
        if self._brief is not None:
            return
        self._brief = brief
        for worker in brief.workers:
            self._launched(worker)
        self._initialization.take_over(brief)
        if self._token > 1:
            self._hub.send_to(EVERYBODY, m.RollCall(self._token))
            for name in brief.aggregators:
                # an aggregator that hung before this takeover never sends anything; one that starts gets more time
                self._liveness.heard(name, time.monotonic() + SILENT_S)
        if brief.resize is not None:
            self._resize(brief.resize)
        self._command = brief.command

    def _inform(self, message: m.SequencerState) -> None:
        """Lead the job from now on, since the sequencer has reported its view and members."""
        self._initialization.informed = True
        log.info("leads the job from view %d on", message.number)
        assert self._brief is not None
        number = max(message.number, self._brief.number)
        if number:
            self._membership.restore(number, message.view, self._present)
        for worker in self._membership.workers(WorkerState.TRAINING):
            self._liveness.heard(
                worker, time.monotonic()
            )  # so that one that never sends anything counts as silent
        for worker in sorted(self._present):
            self._ready(worker)
        self._initialization.proceed()
        newest = max(self._command, self._brief.command)
        if self._wanted is not None:
            self._resize(self._wanted)
        self._command = newest

    def _launched(self, worker: str) -> None:
        if not self._membership.knows(worker):
            self._membership.launch(worker)
            self._starts.launched(worker, time.monotonic())

    def _aggregator_ready(self, message: m.AggregatorReady) -> None:
        name = aggregator_name(message.index)
        self._liveness.heard(name, time.monotonic())
        self._expelled.discard(name)
        self._initialization.aggregator_ready(message)
        if not message.initialised and message.index == 0 and not self._initialization.informed:
            self._inform(m.SequencerState(False, 0, None, 0))  # it may have started after the roll call

    # ---- views ---------------------------------------------------------------------------------------------

    def _ready(self, worker: str) -> None:
        self._liveness.heard(worker, time.monotonic())
        self._announce(self._membership.ready(worker))

    def _resize(self, message: m.ResizeMembers) -> None:
        self._command, self._wanted = message.command, message
        if not self._initialization.informed:
            return  # `_inform` does it once the members are known
        self._announce(
            self._membership.resize(
                message.workers,
                message.global_batch_size,
                message.reason,
                without=message.without,
                lr_scale=message.lr_scale,
            )
        )

    def _announce(self, announce: Announce | None) -> None:
        if announce is None or not self._initialization.informed or self._brief is None:
            return
        self._announced_at = time.monotonic()
        self._hub.send_to(self._brief.aggregators[0], m.Announcement(announce))
        fail_here("coordinator.announced")

    # ---- losses and hangs ----------------------------------------------------------------------------------

    def _ended(self, name: str, death: Death | None) -> None:
        self._liveness.forget(name)
        if not self._membership.knows(name):
            return
        self._lost(name, death)

    def _lost(self, worker: str, death: Death | None = None) -> None:
        fail_here("coordinator.lost")
        self._announce(self._membership.lost(worker, death))
        self._initialization.lost(worker)

    def _beat(self, name: str, beat: m.Beat) -> None:
        now = time.monotonic()
        if self._brief is None:
            return
        if name in self._brief.aggregators:
            self._liveness.heard(name, now)
            if name == self._brief.aggregators[0]:
                self._sequencer.heard(beat, now)
        elif self._membership.knows(name) and self._membership.state(name) in (
            WorkerState.STANDBY,
            WorkerState.TRAINING,
        ):
            self._liveness.heard(name, now)

    def _watch(self, now: float) -> None:
        """Expel processes that are silent or over their time limits; repeat an announcement without an effect."""
        if now - self._watched_at < HEARTBEAT_S or self._brief is None:
            return
        if now - self._supervisor_at > _CUT_OFF_S:
            return  # the connection is broken, or the supervisor passes no messages on
        self._watched_at, self._roster.changed = now, True
        beat = self._sequencer.beat
        for name in self._liveness.suspects(
            now,
            awaited=beat.missing,
            awaited_for_s=beat.waiting_s,
            step_time_s=self._sequencer.step_time_s,
        ):
            self._liveness.forget(name)
            self._expel(name, "was silent, though its process was running")
        self._end_slow_starters(now)
        limit_s = self._sequencer.limit_s(
            self._brief,
            workers=self._membership.count(WorkerState.TRAINING),
            global_batch_size=None if self._wanted is None else self._wanted.global_batch_size,
        )
        if beat.waiting_s > limit_s:
            self._end_hung(limit_s)
        if now - self._announced_at > _AGAIN_S:
            self._announce(self._membership.announce_again())

    def _end_slow_starters(self, now: float) -> None:
        assert self._brief is not None
        limit = self._brief.start_s
        starting = self._membership.workers(WorkerState.STARTING)
        slow = self._starts.slow(starting, now, limit, connectable=self._initialization.complete)
        for worker in slow:
            if worker not in self._expelled:
                cause = f"did not get ready within {limit:.0f} s (limits.start)"
                # if other workers are ready, the training code is not the cause
                others = self._membership.count(WorkerState.STANDBY, WorkerState.TRAINING)
                self._expel(worker, cause, hung=True, fatal="" if others else f"{worker} {cause}")

    def _end_hung(self, limit_s: float) -> None:
        """End processes that did not do their part in time; if no worker did, the training code is the cause."""
        assert self._brief is not None
        beat, what, within = self._sequencer.overdue(limit_s)
        fatal = ""
        if beat.missing and len(beat.missing) >= self._membership.count(WorkerState.TRAINING):
            fatal = f"{what} was not done {within}"
        cause = f"did not do its part of {what} {within}"
        for worker in beat.missing:
            self._expel(worker, cause, hung=True, fatal=fatal)
        for index in beat.behind:
            self._expel(self._brief.aggregators[index], cause, hung=True)

    def _expel(self, name: str, cause: str, *, hung: bool = False, fatal: str = "") -> None:
        if name in self._expelled:
            return
        self._expelled.add(name)
        if self._membership.knows(name):
            self._lost(name, Death(name, "", Cause.HUNG) if hung else None)
        self._hub.send_to(SUPERVISOR, m.Expel(name, cause, hung, fatal))

    # ---- the roster ----------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Send the supervisor the roster if it has changed, and drop workers that the membership has forgotten."""
        if self._brief is None or not self._initialization.informed:
            return
        roster = self._roster.update(self._membership, self._command)
        if roster is not None:
            self._hub.send_to(SUPERVISOR, roster)
            known = set(roster.states)
            self._present &= known
            self._expelled &= known.union(self._brief.aggregators)
            self._starts.keep(known)
