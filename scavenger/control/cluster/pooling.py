"""Shares out the pools of a cluster among its ElasticJobs, by the functions that share out a server's pools.

The operator that acts reads the ElasticJobs, their pods and the nodes, asks `step_of`, and puts the allotment on record
in an annotation of the pool's lease, which is written only in place of the version that was read. So of two operators
that both believe to act one has decided, and the other one has done nothing. What is on record is then told to each
ElasticJob in `status.share`: an operator that is killed before is followed by one that tells the same.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from scavenger.cloud.kubernetes.elastic_jobs import Cluster, Json
from scavenger.cloud.kubernetes.nodes import node_from, requests_of, slots_of
from scavenger.cloud.kubernetes.pods import PodSettings
from scavenger.cloud.kubernetes.shapes import PodShape
from scavenger.control.cluster.operating import Installation, Operator, Place, read_job
from scavenger.control.pools.asked import AskedJobs
from scavenger.control.pools.standing import PoolStanding, foreseeable
from scavenger.domain.elastic_job import (
    GROUP,
    JOB_LABEL,
    LEADER,
    ROLE_LABEL,
    WORKER,
    GivenShare,
    job_document,
    read_spec,
    user_of,
)
from scavenger.domain.job import JobSpec
from scavenger.domain.pool import (
    JobStanding,
    Pool,
    PoolAllotment,
    PoolShare,
    allotment_of,
    document_of,
    standing_of,
    workers_of,
)
from scavenger.domain.pool_settings import pool_named
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.policy.elastic_jobs import ENDED
from scavenger.scheduler.jobs.seeing import Means, PoolJob, Sizes, sizes_of
from scavenger.scheduler.jobs.stepping import PoolStep, step_of, why_waiting

log = logging.getLogger(__name__)

ALLOTMENT = f"{GROUP}/allotment"
"""Annotation of a pool's lease: the allotment, and namespace and name of each of its jobs."""
DECIDE_S, UNSETTLED_S = 5.0, 1.0
"""Longest time between two decisions on a pool; and while slots are being given on."""


def lease_name(pool: str) -> str:
    """Name of the lease of a pool."""
    return f"scavenger-pool-{pool}"


@dataclass(slots=True)
class PodsSeen:
    """The pods that have not ended, by the ElasticJobs that they are of.

    Attributes:
        workers, apart: How many with each job's workers, and besides them and its leader.
        leaders: The jobs that have a leader's pod.
        running: Those whose leader runs.
        requests: What each pod on a node requests, with its job; of a leader, and of another's pod, without.
    """

    workers: Counter[Place] = field(default_factory=Counter)
    apart: Counter[Place] = field(default_factory=Counter)
    leaders: set[Place] = field(default_factory=set)
    running: set[Place] = field(default_factory=set)
    requests: list[tuple[str, Place | None, tuple[Mapping[str, str], ...]]] = field(default_factory=list)

    @classmethod
    def of(cls, pods: list[Json]) -> PodsSeen:
        """Take pods apart, as JSON has them."""
        seen = cls()
        for pod in pods:
            meta, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
            if phase in ("Succeeded", "Failed"):
                continue
            labels = meta.get("labels") or {}
            place = (meta["namespace"], labels[JOB_LABEL]) if JOB_LABEL in labels else None
            role = labels.get(ROLE_LABEL)
            if place is not None and role == LEADER:
                seen.leaders.add(place)
                if phase == "Running" and not meta.get("deletionTimestamp"):
                    seen.running.add(place)
                place = None
            elif place is not None:
                (seen.workers if role == WORKER else seen.apart)[place] += 1
            if node := pod["spec"].get("nodeName"):
                seen.requests.append((node, place, requests_of(pod)))
        return seen

    def others(self, members: frozenset[Place]) -> dict[str, list[Mapping[str, str]]]:
        """What pods that take no slots of these jobs request, by node."""
        found: dict[str, list[Mapping[str, str]]] = {}
        for node, place, requests in self.requests:
            if place not in members:
                found.setdefault(node, []).extend(requests)
        return found

    def has(self, place: Place) -> bool:
        """Whether a job has pods besides its leader's."""
        return bool(self.workers[place] or self.apart[place])


def row_of(
    job: Json,
    share: PoolShare | None,
    spec: JobSpec | None,
    pods: PodsSeen,
    *,
    order: int,
    number: int,
    now: datetime,
    idle_at: datetime | None = None,
    per_slot: int = 1,
) -> PoolJob | None:
    """An ElasticJob as a job of its pool; None if it neither waits nor has slots.

    Its slots count as its own until its leader has answered and its pods are gone, whatever becomes of it: one that
    does not want to run is seen as one that is being paused.

    Args:
        share: By the last allotment on record.
        spec: Its job file; None if its `spec` is no job.
        order: In the order of creation.
        number: Of the allotment that is decided next.
        idle_at: Until then it did not want to run.
        per_slot: Workers on a pod.
    """
    meta, status, place = job["metadata"], job.get("status") or {}, _place(job)
    led, standing, given = place in pods.leaders, _standing(job), GivenShare.of(job)
    ended = status.get("state") in ENDED
    if share is None and pods.has(place):
        share = PoolShare(0, 0, pods.workers[place], 0 if given is None else given.allotment)
    told = 0 if share is None else share.told
    tells = given is not None and share is not None and given.allotment == share.since
    obeys = (
        standing is not None
        and share is not None
        and standing.state == "waiting"
        and standing.obeyed >= share.since
    )
    gone = not pods.has(place) and (share is None or ended or not led or obeys)
    leaves = ended or bool(meta.get("deletionTimestamp")) or job["spec"].get("suspend") is True
    if leaves or (spec is None and not told):
        done = gone and (ended or not told)
        return None if share is None or done else leaving(job, share, pods, number=number, now=now)
    if not told and share is not None and not (gone and tells):
        return leaving(job, share, pods, number=number, now=now)
    created = datetime.fromisoformat(meta["creationTimestamp"])
    since = max(created, (share.at if share is not None else None) or created, idle_at or created)
    runs = place in pods.running
    if standing is not None and told:
        standing = standing if runs else standing.under(None)
        standing = replace(standing, held=max(standing.held, pods.workers[place]))
    changed = None if share is None else share.changed
    sizes = Sizes(*[told * per_slot] * 3) if spec is None else sizes_of(spec)
    deadline_s = None if spec is None else spec.constraints.deadline
    return PoolJob(
        id=meta["uid"],
        user=user_of(job),
        priority=int(job["spec"].get("priority") or 0),
        number=order,
        sizes=replace(sizes, apart=int(status.get("apart", 1))),
        waited_s=share.waited_s if told and share is not None else max(0.0, (now - since).total_seconds()),
        standing=standing,
        share=share,
        queued=not told,
        held_back=bool(told) and not (runs and tells and spec is not None),
        changed_s=math.inf if changed is None else max(0.0, (now - changed).total_seconds()),
        due_s=math.inf if deadline_s is None else deadline_s - (now - created).total_seconds(),
    )


def leaving(job: Json, share: PoolShare, pods: PodsSeen, *, number: int, now: datetime) -> PoolJob:
    """An ElasticJob that gets no slots now, and whose pods may still be there; arguments as of `row_of`."""
    place = _place(job)
    counts = max(pods.workers[place], min(1, pods.apart[place]))
    if share.told or place in pods.leaders:  # it may begin others, until it has answered
        counts = max(counts, share.counts)
    if share.told:
        share = replace(share, told=0, since=number, at=now)
    return PoolJob(
        id=job["metadata"]["uid"],
        user=user_of(job),
        priority=0,
        number=0,
        sizes=Sizes(1, 1, 1, apart=pods.apart[place]),
        waited_s=0.0,
        standing=None,
        share=replace(share, slots=0, counts=counts),
        queued=False,
        held_back=True,
    )


class ClusterPools:
    """The pools of a cluster, or of a namespace.

    Args:
        operator: Knows the ElasticJobs.
        namespace: Of the pools' leases.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        installation: Installation,
        operator: Operator,
        namespace: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._installation, self._operator = cluster, installation, operator
        self._namespace, self._clock = namespace, clock
        self._specs: dict[tuple[str, int], JobSpec | None] = {}
        self._idle_at: dict[str, datetime] = {}
        self._asked = {name: AskedJobs(clock) for name in installation.pools}
        self._waiting: dict[str, str] = {}
        self._seen: dict[str, object] = {}
        self._due_at = dict.fromkeys(installation.pools, -math.inf)

    def keep(self, acts: Callable[[], bool], over: threading.Event) -> None:
        """Share out, again and again, while this operator acts."""
        while not over.wait(UNSETTLED_S):
            if acts():
                self.round()
            else:  # whoever acts meanwhile has asked jobs for other things
                self._due_at = dict.fromkeys(self._due_at, -math.inf)

    def round(self) -> None:
        """Share out each pool that is due."""
        there = {job["metadata"]["uid"] for job in self._operator.jobs()}
        self._idle_at = {uid: at for uid, at in self._idle_at.items() if uid in there}
        self._specs = {key: spec for key, spec in self._specs.items() if key[0] in there}
        for name in self._installation.pools:
            jobs = self._jobs(name)
            if self._clock() < self._due_at[name] and self._seen.get(name) == _signature(jobs):
                continue
            try:
                self._share_out(name, jobs)
            except ScavengerError as error:
                log.warning("pool %s: %s", name, error)
            except Exception:
                log.exception("internal fault")

    def _jobs(self, name: str) -> list[Json]:
        """The ElasticJobs of a pool as they are known, in the order of their creation."""
        found = (job for job in self._operator.jobs() if job["spec"].get("pool") == name)
        return sorted(found, key=_by_age)

    def _share_out(self, name: str, jobs: list[Json]) -> None:
        now = datetime.now(UTC)
        lease = self._cluster.lease(self._namespace, lease_name(name))
        last, places = _on_record(lease, jobs)
        if not jobs and (last is None or not last.shares):
            return
        for uid in places.keys() - {job["metadata"]["uid"] for job in jobs}:
            job = self._cluster.job(*places[uid])  # perhaps this operator has only not seen it yet
            if job is not None and job["metadata"]["uid"] == uid and job["spec"].get("pool") == name:
                jobs = sorted([*jobs, job], key=_by_age)
                self._operator.note_job(job)
        if last is not None:
            self._tell(name, jobs, last)
        # after the jobs: who has said that he has stopped begins no pods any more
        pods = PodsSeen.of(self._cluster.pods())
        places = {**places, **{job["metadata"]["uid"]: _place(job) for job in jobs}}
        settings = self._installation.pools[name]
        pool = replace(
            pool_named(name, settings, self._slots(name, pods, places)),
            per_pod=1 if settings.vm is None else PodShape.parse(settings.vm).workers,
        )
        rows = self._rows(pool, jobs, last, places, pods, now)
        names = {uid: place[1] for uid, place in places.items()}
        step = step_of(pool, rows, last, names, now, Means())
        if step.allotment is not last:
            kept = {uid: place for uid, place in places.items() if uid in step.allotment.shares}
            if not self._cluster.write_lease(self._record(lease, step.allotment, kept), fresh=lease is None):
                log.info("pool %s: another operator has decided", name)
                return
            for line in step.allotment.moves:
                log.info("pool %s, allotment %d: %s", name, step.allotment.number, line)
        asked = self._asked[name]
        told = [move.job for move in step.moves if move.kind != "begin"]
        for move in step.moves:
            if move.kind != "begin":
                asked.ask(move)
        asked.settle(rows, told)
        asked.forget(places)
        self._waiting = {uid: why for uid, why in self._waiting.items() if uid not in places}
        self._waiting |= why_waiting(pool, rows, step, names)
        self._tell(name, self._jobs(name), step.allotment)
        self._seen[name] = _signature(self._jobs(name))
        self._due_at[name] = self._clock() + _rest_s(rows, step)

    def _rows(
        self,
        pool: Pool,
        jobs: list[Json],
        last: PoolAllotment | None,
        places: Mapping[str, Place],
        pods: PodsSeen,
        now: datetime,
    ) -> list[PoolJob]:
        shares, number = ({}, 1) if last is None else (last.shares, last.number + 1)
        rows = []
        for order, job in enumerate(jobs):
            uid = job["metadata"]["uid"]
            spec = self._spec_of(job)
            if job["spec"].get("suspend") is True or spec is None:
                self._idle_at[uid] = now
            share, idle_at = shares.get(uid), self._idle_at.get(uid)
            row = row_of(
                job,
                share,
                spec,
                pods,
                order=order,
                number=number,
                now=now,
                idle_at=idle_at,
                per_slot=pool.per_slot,
            )
            if row is not None:
                rows.append(row if row.queued or row.held_back else self._asked[pool.name].heard(pool, row))
        there = {job["metadata"]["uid"] for job in jobs}
        for uid, share in shares.items():  # deleted, or in another pool by now
            place = places.get(uid)
            if uid not in there and place is not None and (pods.has(place) or place in pods.leaders):
                known = {"metadata": {"uid": uid, "namespace": place[0], "name": place[1]}}
                rows.append(leaving(known, share, pods, number=number, now=now))
        return rows

    def _slots(self, name: str, pods: PodsSeen, places: Mapping[str, Place]) -> int:
        """Slots of a pool: as many pods as fit on its nodes beside others', and at most what it was given."""
        settings = self._installation.pools[name]
        most = math.inf if settings.slots is None else settings.slots
        if settings.nodes is None or settings.vm is None:
            return int(most)
        of_pods = PodSettings.of(self._installation.settings)
        of_pods = replace(of_pods, node_labels=(*of_pods.node_labels, *settings.nodes.items()))
        nodes = [node_from(one) for one in self._cluster.nodes()]
        shape = PodShape.parse(settings.vm)
        return int(min(most, slots_of(nodes, of_pods, shape, pods.others(frozenset(places.values())))))

    def _spec_of(self, job: Json) -> JobSpec | None:
        meta = job["metadata"]
        key = (meta["uid"], int(meta.get("generation") or 0))
        if key not in self._specs:
            try:
                self._specs[key] = JobSpec.model_validate(read_job(job, self._installation)[1])
            except (ValueError, ConfigurationError):
                self._specs[key] = None
        return self._specs[key]

    def _workers(self, job: Json, slots: int, allotment: PoolAllotment) -> int:
        """Workers of a job on so many pods."""
        spec, per_slot = self._spec_of(job), allotment.pool.per_slot
        most = slots * per_slot if spec is None else sizes_of(spec).most
        return slots if per_slot == 1 else workers_of(slots, per_slot, most)

    def _tell(self, name: str, jobs: list[Json], allotment: PoolAllotment) -> None:
        """Tell each job its share, as it is on record; who was told a newer one by another operator keeps that."""
        for job in jobs:
            uid, before = job["metadata"]["uid"], GivenShare.of(job)
            share = allotment.shares.get(uid)
            if share is not None:
                known = "" if before is None else before.waits
                waits = "" if share.told else self._waiting.get(uid, known)
                given = GivenShare(
                    name,
                    share.since,
                    share.told,
                    self._workers(job, share.told, allotment),
                    share.reason,
                    waits,
                )
            elif before is not None and before.workers:
                given = GivenShare(name, allotment.number, 0, 0)
            else:
                continue
            if before is None or (given != before and given.allotment >= before.allotment):
                self._operator.patch_status(job, {"share": given.document})

    def _record(self, lease: Json | None, allotment: PoolAllotment, places: Mapping[str, Place]) -> Json:
        name = lease_name(allotment.pool.name)
        meta: Json = dict((lease or {}).get("metadata") or {"name": name, "namespace": self._namespace})
        text = json.dumps({"allotment": document_of(allotment), "jobs": places}, sort_keys=True)
        meta["annotations"] = {**(meta.get("annotations") or {}), ALLOTMENT: text}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": {}}


def standing_pools(at: Callable[[str], Cluster], namespace: str, now: datetime) -> dict[str, PoolStanding]:
    """The pools of a cluster that were shared out, as they stand, by name.

    All is read: each pool's lease, and the ElasticJobs and pods of the namespaces of its jobs.

    Args:
        at: The cluster as seen in a namespace, with the rights of who asks.
        namespace: Of the pools' leases.

    Raises:
        ScavengerError: See `translated_errors`.
    """
    found = {}
    for lease in at(namespace).leases_in(namespace):
        last, places = _on_record(lease, [])
        if last is None or lease["metadata"]["name"] != lease_name(last.pool.name):
            continue
        jobs, pods = list[Json](), list[Json]()
        for space in sorted({space for space, _ in places.values()}):
            there = at(space)
            jobs += [job for job in there.jobs()[0] if job["spec"].get("pool") == last.pool.name]
            pods += there.pods(JOB_LABEL)
        found[last.pool.name] = _standing_of(last, sorted(jobs, key=_by_age), PodsSeen.of(pods), now)
    return found


def _standing_of(last: PoolAllotment, jobs: list[Json], pods: PodsSeen, now: datetime) -> PoolStanding:
    rows = []
    for order, job in enumerate(jobs):
        share = last.shares.get(job["metadata"]["uid"])
        per_slot = last.pool.per_slot
        row = row_of(
            job,
            share,
            _spec_in(job),
            pods,
            order=order,
            number=last.number + 1,
            now=now,
            per_slot=per_slot,
        )
        if row is not None and row.standing is not None:
            row = replace(row, standing=foreseeable(last.pool, row.standing, per_slot))
        rows += [] if row is None else [row]
    names = {job["metadata"]["uid"]: job["metadata"]["name"] for job in jobs}
    return PoolStanding(last.pool, tuple(rows), names, last, math.nan)


def _spec_in(job: Json) -> JobSpec | None:
    """The job file of an ElasticJob, but for what its operator's settings say; None if its `spec` is no job."""
    meta = job["metadata"]
    try:
        document = job_document(
            meta["name"], read_spec(job["spec"]), namespace=meta["namespace"], defaults={}
        )
        return JobSpec.model_validate(document)
    except ValueError:
        return None


def _on_record(lease: Json | None, jobs: list[Json]) -> tuple[PoolAllotment | None, dict[str, Place]]:
    """The last allotment of a pool, and the places of its jobs; if its lease was deleted, by what jobs were told."""
    text = ((lease or {}).get("metadata") or {}).get("annotations", {}).get(ALLOTMENT)
    if text is not None:
        document = json.loads(text)
        return allotment_of(document["allotment"]), {
            uid: (namespace, name) for uid, (namespace, name) in document["jobs"].items()
        }
    given = {job["metadata"]["uid"]: one for job in jobs if (one := GivenShare.of(job)) is not None}
    if not given:
        return None, {}
    shares = {
        uid: PoolShare(one.slots, one.slots, one.slots, one.allotment, one.reason)
        for uid, one in given.items()
    }
    number = max(one.allotment for one in given.values())
    return PoolAllotment(Pool("", 0), number, shares, (), datetime.now(UTC)), {}


def _rest_s(rows: list[PoolJob], step: PoolStep) -> float:
    """How long until a pool is looked at again, if nothing is heard of its jobs: their pods tell nothing."""
    settled = all(row.queued or (row.answered and row.told == _counts(row, step)) for row in rows)
    return min(DECIDE_S, max(UNSETTLED_S, step.again_s)) if settled and not step.moves else UNSETTLED_S


def _counts(row: PoolJob, step: PoolStep) -> int:
    share = step.allotment.shares.get(row.id)
    return 0 if share is None else share.counts


def _place(job: Json) -> Place:
    return str(job["metadata"]["namespace"]), str(job["metadata"]["name"])


def _by_age(job: Json) -> tuple[str, ...]:
    return str(job["metadata"]["creationTimestamp"]), *_place(job)


def _standing(job: Json) -> JobStanding | None:
    found = (job.get("status") or {}).get("standing")
    return None if found is None else standing_of(found)


def _signature(jobs: list[Json]) -> object:
    """What a decision follows from, but for pods, nodes, and what changes all the time."""
    rows: list[Any] = []
    for job in jobs:
        meta, status, one = job["metadata"], job.get("status") or {}, _standing(job)
        told = None if one is None else (one.state, one.held, one.size, one.obeyed, one.refusing)
        rows.append(
            (
                meta["uid"],
                meta.get("generation"),
                bool(meta.get("deletionTimestamp")),
                status.get("state"),
                told,
            )
        )
    return tuple(rows)
