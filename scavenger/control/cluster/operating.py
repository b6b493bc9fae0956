"""The operator's hands: reads what there is, asks `scavenger.policy.elastic_jobs`, and carries out what it decides.

Jobs wait in a queue by name; each is looked at by one thread at a time, with all that is known of it then. Nothing is
read from the API server for a look: watches tell what there is, and the answer to a write is its newest version.
"""

from __future__ import annotations

import functools
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from scavenger.cloud.kubernetes.adapter import POD_OWNER
from scavenger.cloud.kubernetes.elastic_jobs import Cluster, Json, leader_why
from scavenger.cloud.kubernetes.leader import LeaderPod, Mounted, leader_pod
from scavenger.cloud.kubernetes.pods import PodSettings
from scavenger.cloud.kubernetes.shapes import PodShape
from scavenger.control.cluster.behind import Behind
from scavenger.control.job_file.load import job_of
from scavenger.control.places.launching import GPU_VMS, UNPROVEN_VARIABLE
from scavenger.domain.elastic_job import (
    CODE_VARIABLE,
    DOCUMENT_VARIABLE,
    JOB_LABEL,
    JOB_VARIABLE,
    LEADER,
    ROLE_LABEL,
    STORE_VARIABLE,
    WORKER,
    ElasticJobSpec,
    job_document,
    leader_name,
    owner_of,
    read_spec,
)
from scavenger.domain.job import JobSpec
from scavenger.domain.pool_settings import PoolSettings
from scavenger.domain.vm_settings import KubernetesSettings
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.policy.elastic_jobs import (
    JobSeen,
    KeepAvailable,
    LeaderSeen,
    RemoveLeader,
    StartLeader,
    Told,
    decide,
)

log = logging.getLogger(__name__)

LEADER_ACCOUNT = "scavenger-leader"
"""Service account of leaders that name none."""
LEADER_COMMAND = ("python3", "-P", "-m", "scavenger.server.on_leader")
COMPONENT = "scavenger-operator"
_CODE_FOLDER = "/run/scavenger-code"
_FIRST_S, _LAST_S = 1.0, 30.0
_THREADS = 8

Place = tuple[str, str]
"""Namespace and name of an ElasticJob."""


@dataclass(frozen=True)
class Installation:
    """What all jobs of an operator share.

    Attributes:
        settings: Of their pods, with prices: `[kubernetes]` of the settings file.
        leader_account: Service account of leaders.
        pools: Of ElasticJobs, by name: `[pool.NAME]` of the settings file.
        unproven: What the operator's environment agrees to try for the first time, which leaders then have in theirs.
    """

    settings: KubernetesSettings = field(default_factory=KubernetesSettings)
    leader_account: str = LEADER_ACCOUNT
    pools: Mapping[str, PoolSettings] = field(default_factory=dict)
    unproven: str = ""

    def __post_init__(self) -> None:
        for name, pool in self.pools.items():
            if pool.infra is not None:
                raise ConfigurationError(
                    f"pool.{name}.infra: ElasticJobs have pods; say nodes and vm, or slots"
                )
            if pool.nodes is None and pool.slots is None:
                raise ConfigurationError(f"pool.{name}: one of slots and nodes must be given")
            if pool.vm is not None:
                PodShape.parse(pool.vm)

    @functools.cached_property
    def infra(self) -> Json:
        """As defaults for `spec.job.infra`."""
        return self.settings.model_dump(mode="json", exclude_unset=True, exclude={"namespace"})

    def in_pool(self, name: str, document: Json) -> Json:
        """The job file of a job of a pool: its pods are on the pool's nodes, each as large as a slot.

        Raises:
            ValueError: There is no such pool.
        """
        if (pool := self.pools.get(name)) is None:
            raise ValueError(
                f"spec.pool: there is no pool {name}: [pool.{name}] in the operator's settings makes it"
            )
        if pool.nodes is None:
            return document
        infra, disk = document["infra"], (document.get("resources") or {}).get("disk")
        labels = {**infra.get("node_labels", {}), **pool.nodes}
        resources = {"vm": pool.vm} | ({} if disk is None else {"disk": disk})
        return {
            **document,
            "infra": {**infra, **({"node_labels": labels} if labels else {})},
            "resources": resources,
            "spot": "never",
        }

    def check_sizes(self, pool: str | None, job: JobSpec) -> None:
        """Check the sizes of pods that a job names.

        Raises:
            ValueError: They have GPUs, and nobody has agreed to try that; or several each, in a pool without a size.
            ConfigurationError: One is none.
        """
        named = () if job.resources is None else job.resources.vms
        with_gpus = {name: shape.gpus for name in named if (shape := PodShape.parse(name)).gpus}
        sized = pool is not None and self.pools[pool].nodes is not None
        for name, gpus in with_gpus.items():
            key = "spec.pool" if sized else "spec.job.resources"
            if self.unproven != GPU_VMS:
                raise ValueError(
                    f"{key}: {name} has GPUs, and training on rented GPUs was never tried for real; set "
                    f"{UNPROVEN_VARIABLE}={GPU_VMS} for the operator to be the first, or take a size without"
                )
            if pool is not None and not sized and gpus > 1:
                raise ValueError(
                    f"{key}: {name} has {gpus} GPUs, and a slot of pool {pool} is a pod of any size with one worker; "
                    f"take a size with one GPU, or name nodes and vm for [pool.{pool}]"
                )


def read_job(job: Json, installation: Installation) -> tuple[ElasticJobSpec, Json]:
    """The specification of an ElasticJob, and its job file.

    Raises:
        ValueError, ConfigurationError: It is none; one line with the key and what to write.
    """
    meta = job["metadata"]
    spec = read_spec(job["spec"])
    job_of({"version": 1, "name": meta["name"], **spec.job, "infra": "kubernetes"})
    document = job_document(meta["name"], spec, namespace=meta["namespace"], defaults=installation.infra)
    if spec.pool is not None:
        document = installation.in_pool(spec.pool, document)
    installation.check_sizes(spec.pool, job_of(document))
    return spec, document


def leader_of(job: Json, installation: Installation) -> Json:
    """The body of the leader's pod; equal ElasticJobs give an equal one.

    Raises:
        ValueError, ConfigurationError: The specification is none, or no image is named.
    """
    meta = job["metadata"]
    spec, document = read_job(job, installation)
    owner = owner_of(job)
    code, mounted = spec.code.path or _CODE_FOLDER, tuple[Mounted, ...]()
    if spec.code.config_map is not None:
        mounted = (Mounted(_CODE_FOLDER, "config map", spec.code.config_map),)
    if spec.code.claim is not None:
        mounted = (Mounted(_CODE_FOLDER, "claim", spec.code.claim),)
    secret = spec.store.secret
    leader = LeaderPod(
        name=leader_name(meta["uid"]),
        command=LEADER_COMMAND,
        image=spec.image or "",
        service_account=spec.leader.service_account or installation.leader_account,
        labels={JOB_LABEL: meta["name"], ROLE_LABEL: LEADER},
        owner={**owner, "controller": True},
        variables={
            JOB_VARIABLE: f"{meta['namespace']}/{meta['name']}/{meta['uid']}",
            DOCUMENT_VARIABLE: json.dumps(document, sort_keys=True),
            CODE_VARIABLE: code,
            POD_OWNER: msgspec.json.encode(owner).decode(),
            **({UNPROVEN_VARIABLE: installation.unproven} if installation.unproven else {}),
        },
        secrets={} if secret is None else {STORE_VARIABLE: (secret, "url")},
        mounted=mounted,
        claim=spec.store.claim or "",
        shape=PodShape(spec.leader.cpus, spec.leader.memory),
    )
    settings = replace(PodSettings.of(installation.settings), namespace=meta["namespace"])
    return leader_pod(leader, settings)


@dataclass(frozen=True, slots=True)
class Looked:
    """How long a look at a job has taken.

    Attributes:
        waited_s: From when it became due until it began.
        took_s: From then on.
    """

    waited_s: float
    took_s: float


class Operator:
    """Keeps the ElasticJobs of a cluster, or of a namespace, as they should be.

    Args:
        cluster: The API server.
        installation: What all jobs share.
        acts: Whether this operator may act now.
        clock: Monotonic seconds.
        looked: Told how long each look at a job has taken.
    """

    def __init__(
        self,
        cluster: Cluster,
        installation: Installation,
        *,
        acts: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        looked: Callable[[Looked], None] = lambda _: None,
    ) -> None:
        self._cluster, self._installation, self._acts = cluster, installation, acts
        self._clock, self._looked = clock, looked
        self._jobs: dict[Place, Json] = {}
        self._leaders: dict[Place, Json] = {}
        self._available: dict[str, int] = {}
        self._faults: dict[str, tuple[int, str, bool]] = {}
        self._failures: dict[Place, int] = {}
        self._lock = threading.Lock()
        self._due: dict[Place, float] = {}
        self._under_way: set[Place] = set()
        self._queue: queue.SimpleQueue[Place | None] = queue.SimpleQueue()
        self._behind = Behind()

    # ---- what is known --------------------------------------------------------------------------------------

    def note_job(self, job: Json, *, deleted: bool = False) -> None:
        """Take in the present version of an ElasticJob, or that it is gone."""
        meta = job["metadata"]
        place = (str(meta["namespace"]), str(meta["name"]))
        with self._lock:
            if deleted:
                self._jobs.pop(place, None)
                self._available.pop(meta["uid"], None)
                self._faults.pop(meta["uid"], None)
                return
            self._jobs[place] = job
        self.enqueue(place)

    def note_leader(self, pod: Json, *, deleted: bool = False) -> None:
        """Take in the present version of a leader's pod, or that it is gone."""
        meta = pod["metadata"]
        place = (str(meta["namespace"]), str((meta.get("labels") or {}).get(JOB_LABEL)))
        with self._lock:
            if deleted:
                known = self._leaders.get(place)
                if known is not None and known["metadata"]["uid"] == meta["uid"]:
                    del self._leaders[place]
            else:
                self._leaders[place] = pod
        self.enqueue(place)

    def jobs(self) -> list[Json]:
        """All ElasticJobs, as they are known."""
        with self._lock:
            return list(self._jobs.values())

    def patch_status(self, job: Json, changes: Json) -> None:
        """Change keys of the `status` of this version of a job, and have it looked at.

        Raises:
            ScavengerError: There is a newer version, or the API server cannot be used.
        """
        place = (job["metadata"]["namespace"], job["metadata"]["name"])
        changes = {"metadata": {"resourceVersion": job["metadata"]["resourceVersion"]}, "status": changes}
        self._take_answer(place, job, self._cluster.patch_job(*place, changes, status=True))
        self.enqueue(place)

    def list_again(self) -> None:
        """Read all that there is, in place of what is known: an event may have been lost.

        Raises:
            ScavengerError: The API server cannot be used.
        """
        jobs, _ = self._cluster.jobs()
        pods, _ = self._cluster.leaders()
        with self._lock:
            self._jobs = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in jobs}
            self._leaders = {
                (one["metadata"]["namespace"], one["metadata"]["labels"][JOB_LABEL]): one for one in pods
            }
            places = list(self._jobs)
        for place in places:
            self.enqueue(place)

    # ---- the queue ------------------------------------------------------------------------------------------

    def enqueue(self, place: Place) -> None:
        """Have a job looked at; once, however often this is called before."""
        with self._lock:
            if place in self._due:
                return
            self._due[place] = self._clock()
            if place in self._under_way:
                return  # who looks at it has it looked at again
        self._queue.put(place)

    def start(self) -> None:
        """Begin to look at jobs."""
        self._behind.start()
        for _ in range(_THREADS):
            threading.Thread(target=self._work, name="operator", daemon=True).start()

    def close(self) -> None:
        """Look at no more jobs."""
        for _ in range(_THREADS):
            self._queue.put(None)
        self._behind.close()

    def _work(self) -> None:
        while (place := self._queue.get()) is not None:
            with self._lock:
                due_s = self._due.pop(place)
                self._under_way.add(place)
            if self._acts():
                self._try(place, due_s)
            with self._lock:
                self._under_way.discard(place)
                again = place in self._due
            if again:
                self._queue.put(place)

    def _try(self, place: Place, due_s: float) -> None:
        begun_s = self._clock()
        try:
            self.look(place)
            self._failures.pop(place, None)
            self._looked(Looked(begun_s - due_s, self._clock() - begun_s))
        except ScavengerError as error:
            self._again(place, str(error))
        except Exception:
            log.exception("internal fault")
            self._again(place, "internal fault")

    def _again(self, place: Place, why: str) -> None:
        count = self._failures[place] = self._failures.get(place, 0) + 1
        pause_s = min(_LAST_S, _FIRST_S * 2 ** (count - 1))
        log.warning("%s/%s: %s; again in %g s", *place, why, pause_s)
        timer = threading.Timer(pause_s, self.enqueue, (place,))
        timer.daemon = True
        timer.start()

    # ---- one look -------------------------------------------------------------------------------------------

    def look(self, place: Place) -> None:
        """Bring one job nearer to what it should be.

        Raises:
            ScavengerError: Something could not be done; it is done by the next look.
        """
        with self._lock:
            job, pod = self._jobs.get(place), self._leaders.get(place)
        if job is None:
            return
        meta = job["metadata"]
        if pod is not None and pod["metadata"]["name"] != leader_name(meta["uid"]):
            pod = None  # of an earlier ElasticJob of this name, with which it ends
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        decision = decide(self._seen(job), _leader_seen(pod), self._available.get(meta["uid"]), now=now)
        trouble: ScavengerError | None = None
        created = False
        for action in decision.actions:
            try:
                created |= self._do(action, job, place)
            except ScavengerError as error:
                trouble = error
        if created:
            return  # the watch tells of the pod at once, and of it `status` does
        status, told = dict(decision.status), list(decision.told)
        if trouble is not None and not trouble.retryable:
            told.append(Told("NotAllowed", str(trouble), warning=True))
            status["message"] = str(trouble)
            if job.get("status", {}).get("message") == status["message"]:
                del status["message"]
        for one in told:
            self._tell(job, one)
        if status:
            self._take_answer(place, job, self._cluster.patch_job(*place, {"status": status}, status=True))
        if trouble is not None:
            raise trouble

    def _take_answer(self, place: Place, before: Json, answer: Json | None) -> None:
        """Go on with what was written, unless something newer is known by now; the watch tells of it later."""
        with self._lock:
            if answer is not None and self._jobs.get(place) is before:
                self._jobs[place] = answer

    def _do(self, action: StartLeader | RemoveLeader | KeepAvailable, job: Json, place: Place) -> bool:
        """Carry out an action; returns whether a pod was created."""
        uid = job["metadata"]["uid"]
        match action:
            case StartLeader():
                return self._cluster.create_pod(leader_of(job, self._installation))
            case RemoveLeader(pod_uid):
                self._cluster.delete_pod(place[0], leader_name(uid), pod_uid)
            case KeepAvailable(pods):
                self._behind.put(("budget", uid), lambda: self._keep_available(job, place, pods))
        return False

    def _keep_available(self, job: Json, place: Place, pods: int) -> None:
        uid, labels = job["metadata"]["uid"], {JOB_LABEL: place[1], ROLE_LABEL: WORKER}
        first = uid not in self._available
        try:
            self._cluster.keep_available(place[0], leader_name(uid), labels, owner_of(job), pods, first=first)
        except ScavengerError as error:
            if not error.retryable:
                self._tell(job, Told("NotAllowed", str(error), warning=True))
            self._again(place, str(error))
        else:
            self._available[uid] = pods

    def _tell(self, job: Json, told: Told) -> None:
        meta = job["metadata"]
        key = (meta["uid"], meta.get("generation"), told)
        self._behind.put(
            key,
            lambda: self._cluster.tell(job, told.reason, told.message, warning=told.warning, by=COMPONENT),
        )

    def _seen(self, job: Json) -> JobSeen:
        meta = job["metadata"]
        generation = int(meta.get("generation") or 0)
        known = self._faults.get(meta["uid"])
        if known is None or known[0] != generation:
            fault, kept = "", False
            try:
                leader_of(job, self._installation)
                kept = read_spec(job["spec"]).is_kept
            except (ValueError, ConfigurationError) as error:
                fault = str(error)
            known = self._faults[meta["uid"]] = (generation, fault, kept)
        return JobSeen(
            generation=generation,
            fault=known[1],
            suspend=job["spec"].get("suspend") is True,
            pool=str(job["spec"].get("pool") or ""),
            kept=known[2],
            deleting=bool(meta.get("deletionTimestamp")),
            status=job.get("status") or {},
        )


def _leader_seen(pod: Mapping[str, Any] | None) -> LeaderSeen | None:
    if pod is None:
        return None
    meta = pod["metadata"]
    phase: Any = (pod.get("status") or {}).get("phase") or "Pending"
    why = "" if phase == "Running" and not meta.get("deletionTimestamp") else leader_why(dict(pod))
    return LeaderSeen(meta["uid"], phase, bool(meta.get("deletionTimestamp")), why)
