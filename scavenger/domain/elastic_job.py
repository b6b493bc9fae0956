"""A job as a custom resource of Kubernetes, `ElasticJob`: what its `spec` says, and what its `status` tells.

The job itself is that of a job file, under `spec.job`. Around it stands what a cluster adds: the code, the volume, the
number of workers that others set, and whether the job is to wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from scavenger.domain.forms import FrozenModel, fault
from scavenger.domain.job import JobSpec
from scavenger.domain.pool_settings import PoolName
from scavenger.domain.ranges import WORKERS_MAX

GROUP, VERSION = "scavenger.dev", "v1alpha1"
KIND, SINGULAR, PLURAL, SHORT = "ElasticJob", "elasticjob", "elasticjobs", "ejob"

JOB_LABEL = f"{GROUP}/elasticjob"
"""Label of the pods of an ElasticJob: its name."""
ROLE_LABEL, LEADER, WORKER = "scavenger/role", "leader", "worker"
"""Label of each pod, whatever it belongs to, and two of its values."""
REMOVE, REMOVED = f"{GROUP}/remove", f"{GROUP}/removed"
"""Annotation of a worker's pod that is to be the one that goes; and of its ElasticJob, the pods that were."""

USER_LABEL = f"{GROUP}/user"
"""Label of an ElasticJob in a pool: whose job it is; without it, its namespace counts as its user."""

JOB_VARIABLE, DOCUMENT_VARIABLE, CODE_VARIABLE, STORE_VARIABLE = (
    f"SCAVENGER_ELASTIC_JOB{suffix}" for suffix in ("", "_FILE", "_CODE", "_STORE")
)
"""Environment of a leader: its ElasticJob, as NAMESPACE/NAME/UID; the text of the job file; the folder with the code;
and the URL of its database, empty for a file in its own folder."""

_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
_IMAGE = r"^[A-Za-z0-9_.:/@-]{1,512}$"
_PATH = r"^/[^\x00-\x1f\x7f]{0,4000}$"
_CHECKPOINTS = "checkpoints"

JobState = Literal[
    "Pending",
    "Waiting",
    "Invalid",
    "Starting",
    "Profiling",
    "Running",
    "Paused",
    "Suspended",
    "Succeeded",
    "Stopped",
    "Failed",
]
"""`status.phase`."""


class _Part(FrozenModel):
    model_config = ConfigDict(populate_by_name=True)


class CodeSpec(_Part):
    """The folder with the training code, which is copied into the job's folder: exactly one of the three."""

    path: str | None = Field(default=None, pattern=_PATH, description="A folder of the image.")
    config_map: str | None = Field(
        default=None, alias="configMap", pattern=_NAME, description="A config map with a key for each file."
    )
    claim: str | None = Field(default=None, pattern=_NAME, description="A persistent volume claim.")

    @model_validator(mode="after")
    def _check(self) -> CodeSpec:
        if sum(one is not None for one in (self.path, self.config_map, self.claim)) != 1:
            raise fault("must have exactly one of: path, configMap, claim")
        return self


class StoreSpec(_Part):
    """Where the job's records and its folder, with the checkpoints, are kept."""

    claim: str | None = Field(
        default=None,
        pattern=_NAME,
        description="Persistent volume claim; without it, the folder ends with the leader's pod.",
    )
    secret: str | None = Field(
        default=None,
        pattern=_NAME,
        description="Secret with the key `url`: of a PostgreSQL database for the records, instead of a file.",
    )


class LeaderSpec(_Part):
    """The pod that leads the job."""

    cpus: int = Field(default=1, ge=1, le=256, description="Its processors.")
    memory: float = Field(default=2.0, gt=0, le=4096, description="Its memory, GiB.")
    service_account: str | None = Field(
        default=None,
        alias="serviceAccount",
        pattern=_NAME,
        description="Service account as which it asks for pods; else that of the operator's settings.",
    )


class ElasticJobSpec(_Part):
    """`spec` of an ElasticJob."""

    job: dict[str, Any] = Field(description="The job, as in a job file; version and name may be left out.")
    image: str | None = Field(
        default=None,
        pattern=_IMAGE,
        description="Image of the pods, with Scavenger and what the training code imports.",
    )
    code: CodeSpec = Field(description="The training code.")
    store: StoreSpec = Field(default=StoreSpec(), description="Where records and checkpoints are kept.")
    leader: LeaderSpec = Field(default=LeaderSpec(), description="The pod that leads the job.")
    replicas: int | None = Field(
        default=None,
        ge=1,
        le=WORKERS_MAX,
        description="Workers; without it, Scavenger chooses them and the batch size.",
    )
    pool: PoolName | None = Field(
        default=None, description="Pool of the operator's settings, which alone decides on the workers."
    )
    priority: int = Field(
        default=0, ge=-1000, le=1000, description="In its pool, jobs of higher priority go first."
    )
    suspend: bool = Field(
        default=False, description="Whether the job is to wait, without pods, from its last checkpoint on."
    )

    @model_validator(mode="after")
    def _check(self) -> ElasticJobSpec:
        if self.pool is not None and self.replicas is not None:
            raise fault(
                f"must be left out: pool {self.pool} decides how many workers the job has", "replicas"
            )
        if self.pool is not None and not self.is_kept:
            raise fault("must be given: a job of a pool may be paused, and goes on from it", "store", "claim")
        return self

    @property
    def is_kept(self) -> bool:
        """Whether the job can go on when its leader's pod is another one."""
        return self.store.claim is not None


def _without_null(value: Any) -> Any:
    """As the API server's clients mean it: a key with null is a key that is not there."""
    if isinstance(value, Mapping):
        return {key: _without_null(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_null(one) for one in value]
    return value


def read_spec(spec: Mapping[str, Any]) -> ElasticJobSpec:
    """Read `spec`, without the job in it; see `job_document`.

    Raises:
        ValueError: If it is none; one line with the key and what to write.
    """
    try:
        return ElasticJobSpec.model_validate(_without_null(spec))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        within = first.get("ctx", {}).get("at", ())
        place = ".".join(str(one) for one in ("spec", *first["loc"], *within))
        raise ValueError(f"{place}: {first['msg']}") from error


def job_document(
    name: str, spec: ElasticJobSpec, *, namespace: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """The job file of an ElasticJob, to be validated as one.

    Workers that are set (`spec.replicas`) are the only ones that the search considers, and nobody but who sets them
    changes them. Without `checkpoint`, the job has one: its leader may be replaced.

    Args:
        name: Of the ElasticJob.
        spec: Its specification.
        namespace: Where its pods are.
        defaults: `infra` of the installation, which that of the job replaces key by key.

    Raises:
        ValueError: If the job is to run elsewhere than in the cluster.
    """
    job = dict(spec.job)
    infra = job.get("infra", {})
    if isinstance(infra, str):
        infra = {"at": infra}
    if not isinstance(infra, Mapping) or infra.get("at", "kubernetes") != "kubernetes":
        raise ValueError("spec.job.infra: an ElasticJob runs in its cluster: at is kubernetes, or left out")
    image = {"image": spec.image} if spec.image else {}
    labels = {**defaults.get("labels", {}), **infra.get("labels", {}), JOB_LABEL: name}
    job["infra"] = {
        **defaults,
        **infra,
        **image,
        "at": "kubernetes",
        "namespace": namespace,
        "labels": labels,
    }
    made = {"version": 1, "name": name, "checkpoint": {"path": _CHECKPOINTS}, **job}
    if spec.replicas is None:
        return made
    _, high = JobSpec.model_validate(made).elastic_range
    most = {"min": 1, "max": max(high, spec.replicas)}
    made["elastic"] = {**most, **made.get("elastic", {}), "policy": "fixed"}
    made["search"] = {**made.get("search", {}), "workers": spec.replicas}
    return made


def leader_name(uid: str) -> str:
    """The name of the pod that leads an ElasticJob, and of its other objects: of its uid, so of no other one."""
    return f"scavenger-{uid}"


@dataclass(frozen=True, slots=True)
class GivenShare:
    """`status.share`: what an ElasticJob may have of its pool, as the operator tells its leader.

    Attributes:
        allotment: Number of the allotment by which it was decided.
        slots: Pods of workers; 0: it saves, ends its pods and waits.
        workers: On these, one on each GPU, within what its file says.
        reason: Why so many.
        waits: Why it waits; empty if it has workers.
    """

    pool: str
    allotment: int
    slots: int
    workers: int
    reason: str = ""
    waits: str = ""

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> GivenShare | None:
        """What an ElasticJob was given by the pool that it is in; None if it was given nothing yet."""
        found = (job.get("status") or {}).get("share") or {}
        pool = job["spec"].get("pool")
        if not pool or found.get("pool") != pool:
            return None
        known = {one.name: found[one.name] for one in fields(cls) if found.get(one.name) is not None}
        return cls(**{"slots": known["workers"], **known})  # as earlier operators told it

    @property
    def document(self) -> dict[str, Any]:
        """As the change of `status.share`: what is empty is taken away."""
        return {key: None if value == "" else value for key, value in asdict(self).items()}


def user_of(job: Mapping[str, Any]) -> str:
    """The user for whom the slots of an ElasticJob count in its pool."""
    meta = job["metadata"]
    return str((meta.get("labels") or {}).get(USER_LABEL) or meta["namespace"])


def owner_of(job: Mapping[str, Any]) -> dict[str, str]:
    """The reference to an ElasticJob, by which the cluster deletes what belongs to it when it is deleted."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": str(job["metadata"]["name"]),
        "uid": str(job["metadata"]["uid"]),
    }


def worker_selector(name: str) -> str:
    """Selects the pods of an ElasticJob's workers."""
    return f"{JOB_LABEL}={name},{ROLE_LABEL}={WORKER}"
