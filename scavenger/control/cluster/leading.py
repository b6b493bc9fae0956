"""Leads one ElasticJob from within its cluster, in the leader's pod.

It serves a store whose only job is this one, and watches the ElasticJob itself: what others change in `spec` reaches
the job without the operator, and what the job comes to is in `status`. All that it must remember is in the store, in
the job's folder and in the ElasticJob, so that it can be killed at any time.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from scavenger.cloud.kubernetes.elastic_jobs import Cluster, Json, api_client
from scavenger.cloud.kubernetes.shapes import PodShape
from scavenger.control.cluster.reporting import report_of_job
from scavenger.control.job_file.load import load_job
from scavenger.control.jobs.prepared import prepare_job
from scavenger.control.leading.configuration import DOCUMENT
from scavenger.control.places.kinds import kind_of
from scavenger.control.service.place import job_folder, led_store
from scavenger.control.service.server import Server, run
from scavenger.control.service.submitting import new_submission, resubmission
from scavenger.control.training.operations import NOT_YET, knock
from scavenger.domain.elastic_job import (
    CODE_VARIABLE,
    DOCUMENT_VARIABLE,
    JOB_VARIABLE,
    REMOVE,
    REMOVED,
    STORE_VARIABLE,
    ElasticJobSpec,
    GivenShare,
    read_spec,
    worker_selector,
)
from scavenger.domain.operation import PAUSED_BY, REASON_MAX, ScaleIn, ScaleTo, TakeShare
from scavenger.domain.pool import JobStanding, Pool, PoolAllotment, PoolShare, document_of
from scavenger.domain.progress import Progress
from scavenger.domain.submission import Submission, runner_lease
from scavenger.errors import CloudError, ConfigurationError, ScavengerError, TransientError
from scavenger.policy.elastic_jobs import ENDED, SUSPENDED, Training, next_operation
from scavenger.presentation.formatting import clean
from scavenger.private_files import private_opener
from scavenger.store import Store
from scavenger.store.records import JobRecord, OperationRecord

log = logging.getLogger(__name__)

LOOK_S = 0.5
PODS_S = 1.0
"""Interval between two looks for pods that are named to go."""
REPORT_S = 2.0
"""Shortest time between two reports that differ in the step only."""
SETTLED_S = 15.0
"""So long after an operation, the number of workers in effect is what the job has come to."""
_ENDING_S = 110.0


@dataclass(frozen=True, slots=True)
class Key:
    """Which ElasticJob is led."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def read(cls, text: str) -> Key:
        """Read `NAMESPACE/NAME/UID`.

        Raises:
            ConfigurationError: It is none.
        """
        parts = text.split("/")
        if len(parts) != 3 or not all(parts):
            raise ConfigurationError(f"{JOB_VARIABLE} must be NAMESPACE/NAME/UID, not {text!r}")
        return cls(*parts)


@dataclass
class _Asked:
    """What the present attempt of a job was asked for last.

    Attributes:
        attempt: Number of the attempt.
        operation: Asked for last; None before the first.
        at_s: When it was asked for, or was under way.
        target: Workers that the job is at; None while that is not known.
        gone: Workers that were asked to go.
    """

    attempt: int = 0
    operation: OperationRecord | None = None
    at_s: float = -SETTLED_S
    target: int | None = None
    gone: frozenset[str] = frozenset()


class Leader:
    """Follows one ElasticJob, with the job of a store.

    Args:
        store: Has this job, and no other one.
        cluster: The API server.
        key: Which ElasticJob.
        folder: Of the job: the job file, with the training code beside it.
        clock: Monotonic seconds.

    Attributes:
        over: Whether nothing is left to do: the job has ended and that is reported, or its ElasticJob is gone.
        leaving: Whether the pod is being ended: the job is stopped in order, to go on in another pod.
        stopped: Whether it has stopped, and that is reported.
    """

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        key: Key,
        folder: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._cluster, self._key, self._folder = store, cluster, key, folder
        self._clock = clock
        self.over = self.leaving = self.stopped = False
        self._seen: Json | None = None
        self._told: Json = {}
        self._told_at = self._pods_at = -REPORT_S
        self._asked = _Asked()
        self._took = (0, 0)
        self._pods: list[Json] = []

    def see(self, job: Json | None) -> None:
        """Take in the present version of the ElasticJob; None if it is gone. Safe in other threads."""
        self._seen = job if job is None or job["metadata"]["uid"] == self._key.uid else None
        self.over = self.over or self._seen is None

    def round(self) -> None:
        """Bring the job to what its ElasticJob says, and tell what it has come to.

        Raises:
            ScavengerError: The store or the API server cannot be used; the next round does what was left.
        """
        job = self._seen
        if job is None:
            return
        spec, share = read_spec(job["spec"]), GivenShare.of(job)
        one = self._submission(spec, share)
        record = self._store.job(one.id) if one is not None and self._store.has_job(one.id) else None
        if one is not None:
            one = self._held(one, record, spec, share)
        if one is not None and record is not None and one.state == "running" and record.state == "running":
            if spec.pool is None:
                self._ask(job, spec, record)
            elif share is not None and share.slots:
                self._take(share, record)
        self._report(one, record, spec, share)
        self.stopped = self.leaving and (one is None or not one.is_open)

    def fail(self, error: ScavengerError) -> None:
        """Tell that the job cannot be led."""
        told = {"state": "failed", "detail": str(error), "replicas": 0, "pods": 0}
        self._cluster.patch_job(self._key.namespace, self._key.name, {"status": told}, status=True)

    # ---- whether it runs ------------------------------------------------------------------------------------

    def _submission(self, spec: ElasticJobSpec, share: GivenShare | None) -> Submission | None:
        """The job's submission; None as long as it is not to begin."""
        found = self._store.submissions(1)
        if found or self._why_not(spec, share):
            return found[0] if found else None
        path = self._folder / DOCUMENT
        prepared = prepare_job(load_job(path), path)
        with self._store.together():  # a runner that begins has its share
            one = self._store.submit(new_submission(prepared, idempotency_key=self._key.uid))
            self._note(one.id, share)
        return one

    def _why_not(self, spec: ElasticJobSpec, share: GivenShare | None, one: Submission | None = None) -> str:
        """Why the job is not to run now; empty if it is.

        Args:
            one: Its submission, if it runs: one that began without its pool stops, and begins with it.
        """
        if spec.suspend:
            return "suspended"
        if self.leaving:
            return "its leader's pod is ended"
        if spec.pool is None:
            return ""
        if share is None or not share.slots:
            return f"{PAUSED_BY} pool {spec.pool}"
        began_without = one is not None and one.is_open and self._allotment(one.id, spec.pool) is None
        return f"{PAUSED_BY} pool {spec.pool}" if began_without else ""

    def _held(
        self, one: Submission, record: JobRecord | None, spec: ElasticJobSpec, share: GivenShare | None
    ) -> Submission:
        """Stop the job, or let it go on."""
        wait = self._why_not(spec, share, one)
        if wait and one.is_open and not one.cancelling:
            return self._store.cancel(one.id, wait) or one
        ended = record is not None and record.state in ENDED
        if wait or one.is_open or ended:
            return one
        if record is None:  # it was withdrawn before it began
            again = new_submission(prepare_job(load_job(self._folder / DOCUMENT), self._folder / DOCUMENT))
        else:
            # what it was begun with as a share says nothing of what it may have
            before = record if spec.pool is None else replace(record, spec=dict(one.job.spec))
            again = resubmission(before, one, rents=True, audit=one.job.audit)
        with self._store.together():
            self._note(one.id, share)
            return self._store.submit_again(one.id, again)

    # ---- its share of a pool --------------------------------------------------------------------------------

    def _allotment(self, job_id: str, pool: str) -> PoolAllotment | None:
        """What its runner begins with; None if nothing of this pool is on record for it."""
        found = self._store.allotment(pool)
        return found if found is not None and job_id in found.shares else None

    def _note(self, job_id: str, share: GivenShare | None) -> None:
        """Put on record what the job may have, for its runner; only what is newer than what is there."""
        store = self._store
        for other in store.pools():
            if job_id in other.shares and (share is None or share.pool != other.pool.name):
                store.put_allotment(replace(other, number=other.number + 1, shares={}))
        if share is None:
            return
        last = store.allotment(share.pool)
        if last is None or last.number < share.allotment:
            slots, number = share.slots, share.allotment
            mine = PoolShare(slots, slots, slots, number, share.reason)
            pool = Pool(share.pool, slots, per_pod=self._of_file[1])
            store.put_allotment(PoolAllotment(pool, number, {job_id: mine}, (), datetime.now(UTC)))

    def _standing(self, job_id: str) -> JobStanding | None:
        """How the job stands, by its present runner."""
        found, lease = self._store.standings([job_id]).get(job_id), self._store.lease(runner_lease(job_id))
        return None if found is None else found.under(None if lease is None else lease.token)

    def _take(self, share: GivenShare, record: JobRecord) -> None:
        """Ask the job to take its share, unless it has had this one or a newer one."""
        asked = (record.attempts, share.allotment)
        standing = self._standing(record.id)
        if standing is None or standing.obeyed >= share.allotment or self._took == asked:
            return
        if self._store.open_operation(record.id) is not None:
            return
        self._note(record.id, share)
        reason = clean(share.reason)[:REASON_MAX]
        operation = TakeShare(share.slots, share.allotment, reason)
        try:
            self._store.submit_operation(record.id, operation, f"pool {share.pool}")
        except (TransientError, ConfigurationError) as error:  # it has just ended
            log.info("%s", error)
            return
        self._took = asked
        self._knock(record)

    # ---- workers --------------------------------------------------------------------------------------------

    def _ask(self, job: Json, spec: ElasticJobSpec, record: JobRecord) -> None:
        """Ask the job for as many workers as it is to have, and to let go of those that are named."""
        now = self._clock()
        if self._asked.attempt != record.attempts:
            # what the leader before this one has asked for may be under way
            self._asked = _Asked(record.attempts, self._store.open_operation(record.id))
        told = self._store.events(record.id, limit=1, kind="progress")
        there = Progress.read(told[0].data).configuration.workers if told else None
        busy = self._follow_operation(now)
        last = self._asked.operation
        if not busy and now - self._asked.at_s > SETTLED_S:
            self._asked.target = there
        if self._asked.target is None:
            return
        self._look_for_removals(job, record.id, now)
        replicas, leaving = _wanted(self._seen or job)
        refused = _refused(last)
        training = Training(
            self._workers(record.id), self._asked.target, busy, refused, refused_s=now - self._asked.at_s
        )
        operation = next_operation(training, replicas=replicas, leaving=leaving)
        if operation is None:
            return
        try:
            self._asked.operation = self._store.submit_operation(record.id, operation, "its ElasticJob")
        except (TransientError, ConfigurationError) as error:  # somebody else has asked; or it has just ended
            log.info("%s", error)
            return
        self._asked.at_s = now
        self._knock(record)

    def _knock(self, record: JobRecord) -> None:
        knock(Path(record.job_file).parent / str(record.spec.get("output") or ".scavenger") / record.id)

    def _follow_operation(self, now: float) -> bool:
        """Whether what was asked last is under way; once it has ended, what it has come to is known."""
        last = self._asked.operation
        if last is None or last.ended:
            return False
        last = self._asked.operation = self._store.operation(last.id)
        self._asked.at_s = now
        if last.state == "done" and self._asked.target is not None:
            match last.operation:
                case ScaleTo(workers):
                    self._asked.target = workers
                case ScaleIn(remove):
                    self._asked.target -= len(remove)
        gone = last.operation.remove if isinstance(last.operation, ScaleIn) else ()
        self._asked.gone |= frozenset(gone)
        return not last.ended

    def _workers(self, job_id: str) -> dict[str, str]:
        """The workers that train, each with its pod's name."""
        names = {
            str((pod.get("status") or {}).get("podIP")): str(pod["metadata"]["name"]) for pod in self._pods
        }
        return {
            one.process: names.get(one.host or "", "")
            for one in self._store.processes(job_id)
            if (one.role, one.state) == ("worker", "training") and one.process not in self._asked.gone
        }

    def _look_for_removals(self, job: Json, job_id: str, now: float) -> None:
        """Have fewer workers by those of the pods that are named to go: in one write with their names, so only once."""
        if now - self._pods_at < PODS_S:
            return
        self._pods_at = now
        self._pods = self._cluster.pods(worker_selector(self._key.name))
        meta = job["metadata"]
        removed = _removed(job)
        there = {str(pod["metadata"]["name"]) for pod in self._pods}
        named = sorted(
            str(pod["metadata"]["name"])
            for pod in self._pods
            if (pod["metadata"].get("annotations") or {}).get(REMOVE) == "true"
            and pod["metadata"]["name"] not in removed
            and not pod["metadata"].get("deletionTimestamp")
        )
        replicas, on_pods = job["spec"].get("replicas"), Counter(self._workers(job_id).values())
        fewer = sum(max(1, on_pods[name]) for name in named)
        if not named or (replicas is not None and replicas <= fewer):
            return
        kept = [name for name in removed if name in there]
        changes: Json = {
            "metadata": {
                "resourceVersion": meta["resourceVersion"],
                "annotations": {REMOVED: ",".join([*kept, *named])},
            }
        }
        if replicas is not None:
            changes["spec"] = {"replicas": replicas - fewer}
        self.see(self._cluster.patch_job(self._key.namespace, self._key.name, changes))

    # ---- what it tells --------------------------------------------------------------------------------------

    @cached_property
    def _of_file(self) -> tuple[int, int]:
        """Pods that the job has besides those of its workers, and workers on each of these, by its job file."""
        file = self._folder / DOCUMENT
        job = load_job(file)
        sizes = () if job.resources is None else map(PodShape.parse, job.resources.vms)
        return int(kind_of(job, file.parent).has_aggregators), max((one.workers for one in sizes), default=1)

    def _of_pool(
        self, one: Submission | None, spec: ElasticJobSpec, share: GivenShare | None, *, stopped: bool
    ) -> Json:
        """What the pool has to know of the job.

        Args:
            stopped: Whether it has no runner, and gets none before the pool gives it workers.
        """
        if spec.pool is None:
            return {}
        standing = None if one is None else self._standing(one.id)
        if stopped:
            obeyed = 0 if share is None or share.slots else share.allotment
            before = standing or JobStanding(0, "waiting")
            standing = replace(before.under(None), state="waiting", obeyed=obeyed)
        return {
            "apart": self._of_file[0],
            "standing": None if standing is None else document_of(standing),
            "wanted": None if share is None else share.workers or None,
        }

    def _report(
        self, one: Submission | None, record: JobRecord | None, spec: ElasticJobSpec, share: GivenShare | None
    ) -> None:
        last = self._asked.operation
        waits = one is None or not one.is_open
        ended = record is not None and record.state in ENDED
        told = report_of_job(self._store, one, record)
        stopped = waits and not ended and bool(self._why_not(spec, share))
        if stopped:
            told |= {"state": SUSPENDED, "replicas": 0, "pods": 0}
        replicas, _ = _wanted(self._seen or {"spec": {}, "metadata": {}})
        told |= {
            "selector": worker_selector(self._key.name),
            "wanted": replicas,
            "refused": last.message if last is not None and replicas == _refused(last) else "",
            **self._of_pool(one, spec, share, stopped=stopped),
        }
        told = {key: None if value == "" else value for key, value in told.items()}  # null takes a key away
        changed = {key: value for key, value in told.items() if self._told.get(key, None) != value}
        slow = set(changed) <= {"step", "detail", "actual", "standing"} and _same_standing(
            told.get("standing"), self._told.get("standing")
        )
        if not changed or (slow and self._clock() - self._told_at < REPORT_S):
            self.over = self.over or (ended and waits)
            return
        answer = self._cluster.patch_job(
            self._key.namespace, self._key.name, {"status": changed}, status=True
        )
        self._told, self._told_at = {**self._told, **changed}, self._clock()
        if answer is None:
            self.see(None)
        self.over = self.over or (ended and waits)


def _wanted(job: Json) -> tuple[int | None, tuple[str, ...]]:
    return job["spec"].get("replicas"), _removed(job)


def _same_standing(one: Json | None, other: Json | None) -> bool:
    """Whether two standings differ in nothing but what changes all the time."""
    keys = ("state", "held", "size", "obeyed", "refusing")
    return [(one or {}).get(key) for key in keys] == [(other or {}).get(key) for key in keys]


def _removed(job: Json) -> tuple[str, ...]:
    names = (job["metadata"].get("annotations") or {}).get(REMOVED) or ""
    return tuple(name for name in names.split(",") if name)


def _refused(last: OperationRecord | None) -> int | None:
    """The number of workers that the job was asked for last, and did not come to."""
    if last is None or last.state not in ("refused", "failed") or last.message == NOT_YET:
        return None
    return getattr(last.operation, "workers", None)


# ---- the program -----------------------------------------------------------------------------------------------


def job_of(folder: Path, *, document: str, code: str) -> Path:
    """The job's folder, with the job file and the code of an ElasticJob.

    Args:
        folder: The leader's.
        document: Content of the job file.
        code: Folder of the code; empty for none.
    """

    def fill(fresh: Path) -> None:
        if code:
            left_out = shutil.ignore_patterns("..*")
            shutil.copytree(code, fresh, ignore=left_out, symlinks=False, dirs_exist_ok=True)
        with open(fresh / DOCUMENT, "w", opener=private_opener) as file:
            file.write(document)

    return job_folder(folder, fill)


def lead_elastic_job() -> None:
    """Lead the ElasticJob that the environment names until it has ended, or the pod is ended.

    Raises:
        ScavengerError: It cannot be led.
    """
    leaving, environment, folder = threading.Event(), os.environ, Path.cwd()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: leaving.set())
    key = Key.read(environment.get(JOB_VARIABLE, ""))
    cluster = Cluster(api_client(environment), key.namespace)
    document, code = environment.get(DOCUMENT_VARIABLE, "{}"), environment.get(CODE_VARIABLE, "")
    job = job_of(folder, document=document, code=code)
    with led_store(folder, alone=True, url=environment.get(STORE_VARIABLE, "")) as (store, held):
        leader, wake, over = Leader(store, cluster, key, job), threading.Event(), threading.Event()
        server = threading.Thread(target=run, args=(Server(store, held=held), over), name="server")

        def seen(job: Json | None) -> None:
            leader.see(job)
            wake.set()

        watch = threading.Thread(
            target=cluster.watch_job, args=(key.namespace, key.name, seen), name="watch", daemon=True
        )
        server.start()
        watch.start()
        try:
            _follow(leader, wake, leaving, server.is_alive)
        finally:
            over.set()
            server.join()


def _follow(
    leader: Leader, wake: threading.Event, leaving: threading.Event, serves: Callable[[], bool]
) -> None:
    """One round after the other; when the pod is ended, until the job has stopped."""
    until: float | None = None
    while not leader.over and serves():
        if leaving.is_set() and until is None:
            leader.leaving, until = True, time.monotonic() + _ENDING_S
        if until is not None and (time.monotonic() > until or leader.stopped):
            return
        try:
            leader.round()
        except CloudError as error:
            log.warning("%s", error)
        except ScavengerError as error:
            if not error.retryable:
                log.error("%s", error)
                leader.fail(error)
                return
            log.warning("%s", error)
        wake.wait(LOOK_S)
        wake.clear()
