"""The server: begins submitted jobs in the order of the queue, each in a runner of its own, and watches the runners.

It keeps nothing that is not in the store: another server adopts the runners of one that has ended. On SQLite one
server at a time serves a store; on PostgreSQL several may, each for the jobs of its installation and account.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from scavenger.control.pools.hosts import PoolsHosts
from scavenger.control.pools.keeper import PoolKeepers
from scavenger.control.pools.rented import rented_by
from scavenger.control.provisioning.lease_holder import holder_name
from scavenger.control.service.holders import end_holder, state_of
from scavenger.control.service.life import idle_of
from scavenger.control.service.pools import Pools
from scavenger.control.service.runners import RunnerProcess, Runners
from scavenger.control.service.stopping import stopped_by_signals
from scavenger.control.service.submitting import runner_environment
from scavenger.control.settings import SETTINGS_VARIABLE, load_settings
from scavenger.control.training.operations import knock
from scavenger.domain.intent import Fence, Lease
from scavenger.domain.pool import Pool, differing
from scavenger.domain.pool_settings import pools_of
from scavenger.domain.report import JobState
from scavenger.domain.submission import (
    SERVER_LEASE,
    Backlog,
    RunnerSeen,
    ServerRecord,
    Submission,
    runner_lease,
)
from scavenger.errors import (
    ConfigurationError,
    LeaseLostError,
    ScavengerError,
    StoreBusyError,
    StoreUnavailableError,
    TransientError,
)
from scavenger.logs import Repeated, of_job
from scavenger.policy.admission import BacklogDecision, QueueLimits, admit, budget_period, slotted
from scavenger.policy.runners import (
    SILENT_S,
    AskRunner,
    EndSubmission,
    Holder,
    PauseSubmission,
    Silences,
    StartRunner,
    StopRunner,
    follow_runner,
    given_up,
    rest_s,
)
from scavenger.private_files import make_private_folder, private_opener
from scavenger.store import Store
from scavenger.store.owner import fate
from scavenger.store.record_file import RECORD_FILE
from scavenger.store.records import Owner
from scavenger.train.transport.connections import raise_descriptor_limit
from scavenger.version import __version__

logger = logging.getLogger(__name__)

IDLE_S = 60.0
"""How long a server that was started for a detached job stays when nothing is left to do, seconds."""
RUNNER_LOG = "runner.log"
"""File name of a runner's output, beside the logs of the job's other processes."""
_USED_UP = "what is left of the budget of its pool pays for the end of its VMs"
_LOOK_S = 0.5
_ROUND_S, _HEAR_S = 1.0, 0.1
"""Longest time between two rounds; how often a server looks whether it is woken before."""
_BEAT_S = 2.0
_TAKE_S = 15.0
"""Longest wait for another server to end; the lease of one that cannot be looked for is free if it was not renewed."""


def configured_limits() -> QueueLimits:
    """The limits of the settings file.

    Raises:
        JobFileError: If it is invalid.
    """
    service = load_settings().service
    return QueueLimits(
        service.jobs,
        service.jobs_per_user,
        service.budget,
        service.budget_per_user,
        service.budgets,
    )


def configured_pools(path: Path | None = None) -> dict[str, Pool]:
    """The pools of a file, or of the settings file, and that of this machine.

    Raises:
        JobFileError: If it cannot be read or is invalid.
        ConfigurationError: VMs are to be rented whose price is not known.
    """
    settings = load_settings() if path is None else load_settings({SETTINGS_VARIABLE: str(path)})
    return pools_of(settings.pool, len(os.sched_getaffinity(0)), rented_by)


def runner_log(one: Submission) -> Path:
    """The log of a submission's runner."""
    output = str(one.job.spec.get("output") or ".scavenger")
    return Path(one.job.job_file).parent / output / one.id / "logs" / RUNNER_LOG


class Server:
    """Serves the submissions of this installation and account.

    Args:
        limits: Limits on jobs at once and on money.
        pools: The pools that it shares out, by name; None for those of the settings file.
        idle_s: Ends after so long without anything to do, and gives way to a server that does not; None: never.
        address: URL of its API; empty if it has none.
        held: Descriptors that its runners hold, too; see `place.sole_in`.
        clock: Monotonic seconds.

    Attributes:
        served_at: When it has last completed a round, by its clock; `-inf` before.
    """

    def __init__(
        self,
        store: Store,
        limits: QueueLimits | None = None,
        pools: Mapping[str, Pool] | None = None,
        *,
        idle_s: float | None = None,
        address: str = "",
        held: tuple[int, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._clock, self.idle_s = store, clock, idle_s
        self._limits = configured_limits() if limits is None else limits
        self._served = configured_pools() if pools is None else pools
        self._hosts = PoolsHosts(store, self._served, store.wake_servers)
        self._pools = Pools(store, self._served, hosts=self._hosts.nodes, clock=clock)
        self._keepers = PoolKeepers(store, self._served)
        self._holder, me, now = holder_name(), store.me(), datetime.now(UTC)
        self.record = ServerRecord(
            id=str(uuid.uuid4()),
            host=me.host,
            pid=me.pid,
            started_at_s=me.started_at_s,
            user=me.user,
            uid=os.getuid(),
            address=address,
            version=__version__,
            background=idle_s is not None,
            started_at=now,
            heartbeat_at=now,
            birth=me.birth,
            installation=me.installation,
        )
        self._fence: Fence | None = None
        self._beat_at = self.served_at = -math.inf
        self._children: dict[str, RunnerProcess] = {}
        self._runners = Runners(held)
        self._started_at: dict[str, float] = {}
        self._silences = Silences()
        self._late_at: dict[str, float] = {}
        self._woken_ns = 0

    # ---- its own place -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take the place of the store's server.

        Raises:
            TransientError: Another server has it.
            ConfigurationError: Another server of this machine shares out other pools.
        """
        if self._store.path is not None:
            self._fence = self._taken_lease().fence
        elif self.idle_s is None:
            self._replace_background()
        self._put()
        try:
            self._compare_pools()
        except ConfigurationError:
            self.close()
            raise
        self._hosts.start()
        self._keepers.start()

    def _put(self) -> None:
        self._store.put_server(self.record, self._served.values())
        self._beat_at = self._clock()

    def _compare_pools(self) -> None:
        """Refuse to share out other pools than a server that was there before: they would decide in turns.

        Raises:
            ConfigurationError: One does.
        """
        me = self.record
        for other in self._store.servers():
            mine = other.uid == me.uid and other.serves(me.installation, me.host)
            before = (other.started_at, other.id) < (me.started_at, me.id)
            theirs = self._store.pools_of_server(other.id) if mine and before else {}
            if theirs and not other.background and (what := differing(self._served, theirs)):
                raise ConfigurationError(
                    f"{what}, at process {other.pid} on {other.host}, which serves {self._store.name} too: give both "
                    "servers the same pools (--pool FILE, or the settings file), or end that one"
                )

    def _replace_background(self) -> None:
        """End servers in the background of this machine and account, which know the limits of this one's options not.

        On SQLite, taking the lease does that.
        """
        for other in self._store.servers():
            mine = other.uid == self.record.uid and other.serves(self.record.installation, self.record.host)
            if other.background and mine:
                logger.info("taking over from the server in the background, process %d", other.pid)
                owner = Owner(other.pid, other.host, other.started_at_s, birth=other.birth)
                if fate(owner) == "alive":
                    with suppress(OSError):
                        os.kill(other.pid, signal.SIGTERM)

    def _taken_lease(self) -> Lease:
        until, asked, silences = self._clock() + _TAKE_S + 2 * _LOOK_S, False, Silences()
        while True:
            now_s, lease = self._clock(), self._store.lease(SERVER_LEASE)
            silent_s = silences.look({SERVER_LEASE: lease}, now_s)[SERVER_LEASE]
            state = "dead" if lease is None else state_of(lease.holder)
            elsewhere = state == "unseen"
            if lease is None or state == "dead" or (elsewhere and silent_s > _TAKE_S):
                if (taken := self._store.take_lease(SERVER_LEASE, self._holder, lease)) is not None:
                    return taken
                continue
            others = [one for one in self._store.servers() if f"{one.host}/{one.pid}/" in lease.holder]
            gives_way = self.idle_s is None and bool(others) and others[0].background
            if gives_way and not asked:
                logger.info("taking over from the server in the background, process %d", others[0].pid)
                end_holder(lease.holder, signal.SIGTERM)
                asked = True
            if now_s > until or not (gives_way or elsewhere):
                raise TransientError(
                    f"{self._store.name} is served already, by process {lease.holder.split('/')[1]} on "
                    f"{lease.holder.split('/')[0]}; one server at a time serves a SQLite store"
                )
            time.sleep(_LOOK_S)

    def _beat(self) -> None:
        """Show that this server is alive.

        Raises:
            LeaseLostError: Another server has taken its place.
        """
        if self._clock() - self._beat_at < _BEAT_S:
            return
        if self._fence is not None and not self._store.renew_lease(self._fence):
            raise LeaseLostError(f"another server serves {self._store.name}")
        self._put()

    def close(self) -> None:
        """Leave the place to others. Runners go on; the next server adopts them. VMs that wait for jobs end."""
        self._runners.close()
        self._hosts.close()
        self._keepers.close()
        with suppress(ScavengerError):
            self._store.remove_server(self.record.id)
            if self._fence is not None:
                self._store.release_lease(self._fence)

    # ---- one round -----------------------------------------------------------------------------------------

    def rest(self, stop: threading.Event) -> None:
        """Wait for the next round: until it is due, somebody wakes the server, or the event is set."""
        until = time.monotonic() + _ROUND_S
        self._runners.prepare()
        while (left_s := until - time.monotonic()) > 0.0 and not stop.wait(min(left_s, _HEAR_S)):
            if (woken_ns := self._store.servers_woken_ns()) != self._woken_ns:
                # known before the store is read: whoever wakes it meanwhile wakes it again
                self._woken_ns = woken_ns
                return

    def tick(self) -> bool:
        """Follow every runner, and begin what may begin; returns whether anything waits or runs.

        Raises:
            LeaseLostError: Another server has taken the place of this one.
            StoreError: The store cannot be used.
        """
        self._beat()
        now_s, backlog = self._clock(), self.backlog()
        silent = self._silences.look({seen.submission.id: seen.lease for seen in backlog.running}, now_s)
        for seen in backlog.running:
            self._follow(seen, silent[seen.submission.id])
        self._forget({seen.submission.id for seen in backlog.running})
        self._begin(backlog)
        self.served_at = self._clock()
        return bool(backlog.queued or backlog.running)

    def backlog(self) -> Backlog:
        """What there is to do."""
        month = budget_period(datetime.now(UTC)) if self._limits_now().has_budgets else None
        return self._store.backlog(self.record.host, self.record.uid, month)

    def _limits_now(self) -> QueueLimits:
        return self._limits.under(self._store.budgets())

    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        backlog = self.backlog()
        return bool(backlog.queued or backlog.running)

    def _begin(self, backlog: Backlog) -> None:
        resting = set()
        for one in backlog.queued:
            if reason := given_up(one):
                self._store.end_submission(None, one.id, reason)
            if reason or self._since_start_s(one.id) < rest_s(one.starts):
                resting.add(one.id)
        for one in backlog.queued:
            if (folder := _began_before(self._store, one)) is not None:
                reason = f"it began after the backup that the store was restored from: scavenger store recover {folder}"
                self._store.end_submission(None, one.id, reason)
                resting.add(one.id)
        limits = self._limits_now() if backlog.queued else self._limits  # which only those that wait need
        pooled, able = slotted(backlog, limits, resting)
        admission = admit(backlog, limits, resting, dict.fromkeys(pooled, "") | dict(self._pools.waiting))
        if admission.begin or self._pools.due(backlog, able):
            try:
                admission = self._decided(resting)
            except StoreBusyError:
                raise
            except (ConfigurationError, TransientError) as error:
                # as where a job has died at this moment: nothing was done, and the next round sees it
                logger.info("nothing is begun or changed in this round: %s", error)
        known = {one.id: one.reason for one in backlog.queued}
        changed = {
            job_id: reason
            for job_id, reason in admission.waiting.items()
            if reason and known.get(job_id, reason) != reason and job_id not in resting
        }
        if changed:
            self._store.explain_waiting(changed)

    def _decided(self, resting: Collection[str]) -> BacklogDecision:
        """Share out the pools, and begin what may begin, in one transaction; then start the runners.

        Which ones is decided anew in the transaction, since another server may have begun some, or other jobs, since
        the backlog was read: servers of one account wait for each other here.
        """
        with self._store.together():
            backlog, limits = self.backlog(), self._limits_now()
            pooled, able = slotted(backlog, limits, resting)
            shared = self._pools.decide(backlog, able, self._lives, datetime.now(UTC))
            for name, told in self._pools.renting.items():
                self._keepers.told(name, *told)
            waits = {
                job_id: shared.waiting.get(job_id, "") for job_id in pooled if job_id not in shared.begin
            }
            admission = admit(backlog, limits, resting, waits)
            leases = [
                self._store.start_runner(one.id, self._holder, self._store.lease(runner_lease(one.id)))
                for one in admission.begin
            ]
        for one, lease in zip(admission.begin, leases, strict=True):
            if lease is not None:
                self._launch(one, lease)
        asked = {seen.submission.id: seen.submission for seen in backlog.running}
        for job_id in shared.told:
            with suppress(OSError):
                knock(runner_log(asked[job_id]).parents[1])
        return admission

    def _lives(self, seen: RunnerSeen) -> bool:
        return self._state_of(seen) != "dead"

    # ---- runners -------------------------------------------------------------------------------------------

    def _start(self, one: Submission, seen: Lease | None) -> None:
        """Start a runner, if no other server does."""
        lease = self._store.start_runner(one.id, self._holder, seen)
        if lease is not None:
            self._launch(one, lease)

    def _launch(self, one: Submission, lease: Lease) -> None:
        """Start the runner whose lease this server has."""
        self._started_at[one.id] = self._clock()
        log = runner_log(one)
        try:
            given = self._store.environment_of(one.id)
            background = self.record.background
            env = runner_environment(given, self._store.url, background=background)
        except ConfigurationError as error:  # the key of its environment is gone
            of_job(logger, one.id).error("%s", error)
            self._store.end_submission(lease.fence, one.id, str(error))
            return
        try:
            make_private_folder(log.parent)
            with open(log, "ab", opener=private_opener) as output:
                folder = Path(one.job.job_file).parent
                self._children[one.id] = self._runners.start(
                    one.id, lease.token, env=env, folder=folder, log=output.fileno()
                )
        except OSError as error:
            place = f": {error.filename}" if error.filename else ""
            reason = f"its runner cannot be started: {error.strerror}{place}"
            of_job(logger, one.id).error("%s, and is tried again soon", reason)
            self._store.requeue(lease.fence, one.id, reason)
            return
        of_job(logger, one.id).info("runner %d started", self._children[one.id].pid)

    def _follow(self, seen: RunnerSeen, silent_s: float) -> None:
        one, now_s = seen.submission, self._clock()
        due = now_s - self._late_at.get(one.id, -math.inf) > SILENT_S
        decision = follow_runner(
            seen,
            self._state_of(seen),
            silent_s=silent_s,
            since_start_s=self._since_start_s(one.id),
            late=self._pools.late.get(one.id, "") if due else "",
            stopped=one.id in self._pools.stopped,
        )
        match decision:
            case AskRunner(reason, job=job):
                idle = None if seen.lease is None else idle_of(seen.lease.holder)
                if idle is not None and (max(idle) if job else idle[0]) <= SILENT_S:
                    of_job(logger, one.id).warning("its runner works, although %s", reason)
                    self._late_at[one.id] = now_s
                    self._silences.answered(one.id, now_s)
                    return
                of_job(logger, one.id).warning("its runner is ended: %s, and does not answer", reason)
                self._kill(seen)
            case StopRunner():
                of_job(logger, one.id).warning("its runner is ended: %s", _USED_UP)
                self._kill(seen)
            case StartRunner():
                of_job(logger, one.id).warning("its runner is gone, and another one is started")
                self._start(one, seen.lease)
            case PauseSubmission():
                if seen.lease is not None:
                    stopped = one.id in self._pools.stopped
                    why = f"paused: {_USED_UP}" if stopped else "paused"
                    self._finish(seen, "interrupted", why)  # its VMs end
                    self._store.pause_submission(seen.lease.fence, one.id, why)
            case EndSubmission():
                self._end(seen, decision)

    def _state_of(self, seen: RunnerSeen) -> Holder:
        """Whether the holder of a runner's lease lives; while this server holds it, its child counts."""
        child = self._children.get(seen.submission.id)
        running = child is not None and child.poll() is None
        if seen.lease is None:
            return "dead"
        if seen.lease.holder == self._holder:
            return "alive" if running else "dead"
        return state_of(seen.lease.holder)

    def _kill(self, seen: RunnerSeen) -> None:
        assert seen.lease is not None
        holder = seen.lease.holder
        if holder == self._holder:
            self._children[seen.submission.id].kill()
        elif not any(holder.startswith(f"{one.host}/{one.pid}/") for one in self._store.servers()):
            end_holder(
                holder, signal.SIGKILL
            )  # a server that has not handed the lease over ends its child itself

    def _end(self, seen: RunnerSeen, decision: EndSubmission) -> None:
        """End a submission whose runner is dead, and the job if it has not ended."""
        one = seen.submission
        self._finish(seen, "interrupted" if decision.cancelled else "failed", decision.reason)
        if self._store.end_submission(
            None if seen.lease is None else seen.lease.fence, one.id, decision.reason
        ):
            of_job(logger, one.id).info("%s", decision.reason)

    def _finish(self, seen: RunnerSeen, state: JobState, reason: str) -> None:
        """End the job of a runner that is dead, if it has not ended."""
        if seen.job_state is not None and not seen.ended:
            with suppress(ScavengerError):  # another server may have ended it
                self._store.finish_job(
                    seen.submission.id, state=state, report=None, error=reason, exit_code=None
                )

    def _since_start_s(self, job_id: str) -> float:
        return self._clock() - self._started_at.get(job_id, -math.inf)

    def _forget(self, running: set[str]) -> None:
        """Forget what has ended, and collect exits of runners that this process started."""
        for job_id in list(self._children):
            if self._children[job_id].poll() is not None and job_id not in running:
                self._runners.release(self._children.pop(job_id))
        self._late_at = {key: at for key, at in self._late_at.items() if key in running}


def _began_before(store: Store, one: Submission) -> Path | None:
    """The folder of a job that waits for its first runner, and has begun already, in a lost store; else None."""
    folder = runner_log(one).parents[1]
    begun = not one.starts.count and (folder / RECORD_FILE).is_file() and not store.has_job(one.id)
    return folder if begun else None


def serve(server: Server) -> None:
    """Serve until a signal ends it, or there has been nothing to do for its `idle_s`; runners go on.

    Raises:
        TransientError: Another server serves this store.
        LeaseLostError: Another server has taken its place.
    """
    with stopped_by_signals() as stop:
        run(server, stop)


def run(server: Server, stop: threading.Event, *, begun: Callable[[], None] = lambda: None) -> None:
    """Serve until the event is set; see `serve`. For a thread beside the API.

    Args:
        begun: Called once it has the place of the store's server and is on record.

    Raises:
        TransientError, LeaseLostError: See `serve`.
    """
    raise_descriptor_limit()  # runners inherit it
    server.start()
    try:
        begun()
        while not stop.is_set():
            _serve_until_idle(server, stop)
            server.close()
            # whoever submits looks for a server afterwards: what came in before the sign-off is seen here
            if stop.is_set() or not server.has_work():
                return
            server.start()
    finally:
        server.close()


def _serve_until_idle(server: Server, stop: threading.Event) -> None:
    idle_since, problem = time.monotonic(), Repeated(logger)
    while not stop.is_set():
        try:
            if server.tick():
                idle_since = time.monotonic()
            problem.over()
        except (StoreBusyError, StoreUnavailableError) as error:
            problem.warn(str(error))
            idle_since = time.monotonic()
        if server.idle_s is not None and time.monotonic() - idle_since > server.idle_s:
            return
        server.rest(stop)
