"""Needs of jobs, and what kinds of training code and places lack: one table, and one comparison of the two.

The page docs/what-runs-where.md is made from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from scavenger.domain.forms import worker_group_of
from scavenger.domain.job import JobSpec
from scavenger.domain.script import Script
from scavenger.errors import NotSupportedError


class Kind(StrEnum):
    """What trains."""

    KERAS = "KerasJob"
    LOOP = "LoopJob"
    COMMAND = "command"

    @property
    def has_aggregators(self) -> bool:
        """Whether aggregators hold the weights; else its workers do."""
        return self is Kind.KERAS

    @property
    def meets_at_leader(self) -> bool:
        """Whether workers exchange gradients with the process that leads the job."""
        return self is Kind.LOOP


class Where(StrEnum):
    """Where the workers of a job are, or its aggregators."""

    HERE = "this machine"
    RAY = "Ray cluster"
    VMS = "VMs"
    PODS = "pods"
    RAY_PODS = "pods of KubeRay"
    POOL = "pool of aggregators"


Part = Kind | Where


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a job asks for and that not every part provides.

    Attributes:
        asked: Whether a job of this kind asks for it.
        lacked: By the parts that do not provide it: the refusal, with fields of the job.
    """

    name: str
    key: str
    asked: Callable[[JobSpec, Kind], bool]
    lacked: Mapping[Part, str]


_ENGINE = "engine: {job.engine}"
_PROCESSES = "elastic.processes: {job.elastic.processes}"
_SCALING = "elastic.lr_scaling: {job.elastic.lr_scaling}"

NEEDS = (
    Need(
        "`LoopJob`",
        "engine",
        lambda job, kind: kind is Kind.LOOP,
        dict.fromkeys(
            (Where.RAY, Where.RAY_PODS),
            f"{_ENGINE}: a LoopJob runs on this machine or on VMs; leave engine out",
        ),
    ),
    Need(
        "`run:`",
        "engine",
        lambda job, kind: kind is Kind.COMMAND,
        dict.fromkeys(
            (Where.RAY, Where.RAY_PODS),
            f"{_ENGINE}: a command runs on this machine or on VMs; leave engine out",
        ),
    ),
    Need(
        "`engine: ray`",
        "engine",
        lambda job, kind: job.engine != "process" and worker_group_of(job.engine) is None,
        {
            Where.VMS: f"{_ENGINE} runs on existing nodes; with infra: {{job.infra}} Scavenger starts its own VMs; "
            "leave engine out",
            Where.PODS: f"{_ENGINE}: with infra: {{job.infra}}, name the RayCluster whose pods are sized, as ray/NAME; "
            "or leave infra out, for the nodes that a Ray cluster has",
        },
    ),
    Need(
        "`engine: ray/RAYCLUSTER`",
        "engine",
        lambda job, kind: worker_group_of(job.engine) is not None,
        dict.fromkeys(
            (Where.RAY, Where.VMS),
            f"{_ENGINE}: a RayCluster of KubeRay needs infra: kubernetes; a Ray cluster by its address is "
            "ray/HOST:PORT",
        ),
    ),
    Need(
        "`data:`",
        "data",
        lambda job, kind: job.data is not None,
        {
            Kind.LOOP: "data: is for a KerasJob; the function of a LoopJob reads its data itself, from a path in "
            "params, say",
            Kind.COMMAND: "data: is for a KerasJob; a command reads its data itself",
        },
    ),
    Need(
        "`elastic.lr_scaling` without `{lr_scale}`",
        "elastic.lr_scaling",
        lambda job, kind: (
            job.elastic.lr_scaling != "none" and (job.run is None or "lr_scale" not in job.run.names)
        ),
        {Kind.COMMAND: f"{_SCALING}: a command sets its learning rate itself; give it {{{{lr_scale}}}}"},
    ),
    Need(
        "`elastic.aggregators` above 1",
        "elastic.aggregators",
        lambda job, kind: job.elastic.aggregators > 1,
        {
            Kind.LOOP: "elastic.aggregators: {job.elastic.aggregators}: a LoopJob has no aggregators; leave it out",
            Kind.COMMAND: "elastic.aggregators: {job.elastic.aggregators}: a command has no aggregators; leave it out",
        },
    ),
    Need(
        "`elastic.aggregator_vms` above 1, or `workers`",
        "elastic.aggregator_vms",
        lambda job, kind: job.elastic.known_aggregator_vms > 1 or job.elastic.beside_workers,
        {
            **dict.fromkeys(
                (Where.HERE, Where.RAY),
                "elastic.aggregator_vms is for VMs of a cloud; on this machine, set aggregators alone",
            ),
            Where.RAY_PODS: f"elastic.aggregator_vms: with {_ENGINE}, aggregators are where the job is led; leave it "
            "out",
            Where.POOL: "elastic.aggregator_vms: shared aggregators are on nodes of the pool, and none is rented; "
            "leave it out, or write aggregation: own",
        },
    ),
    Need(
        "`elastic.exchange: process_group`",
        "elastic.exchange",
        lambda job, kind: job.elastic.exchange == "process_group",
        {
            Kind.KERAS: "elastic.exchange: process_group is for loops and scripts of PyTorch, and gradients of a "
            "KerasJob go to its aggregators; leave it out",
            Kind.COMMAND: "elastic.exchange: process_group: a command makes its groups itself; leave it out",
            **dict.fromkeys(
                (Where.VMS, Where.PODS),
                "elastic.exchange: process_group is for workers on this machine: between machines, groups would "
                "neither encrypt gradients nor know whose they are; leave it out",
            ),
        },
    ),
    Need(
        "`elastic.processes` above 1",
        "elastic.processes",
        lambda job, kind: job.elastic.processes > 1,
        {
            Kind.KERAS: f"{_PROCESSES} is for scripts of PyTorch whose model fully_shard divides, and each worker of a "
            "KerasJob is one process; leave it out",
            Kind.COMMAND: f"{_PROCESSES}: a command starts its processes itself, as torchrun does; leave it out",
            Where.PODS: f"{_PROCESSES} is for workers on this machine or on VMs, and a pod has a worker on each GPU; "
            "leave it out",
        },
    ),
    Need(
        "`elastic.processes` above 1 without a script",
        "elastic.processes",
        lambda job, kind: job.elastic.processes > 1 and not isinstance(job.train, Script),
        {
            Kind.LOOP: f"{_PROCESSES} is for scripts of PyTorch whose model fully_shard divides, and processes of a "
            "LoopJob would do the same; leave it out",
        },
    ),
    Need(
        "`aggregation: shared`",
        "aggregation",
        lambda job, kind: job.aggregation == "shared",
        {
            Kind.LOOP: "aggregation: shared: a LoopJob has no aggregators, since its workers hold the weights; write "
            "own",
            Kind.COMMAND: "aggregation: shared: a command has no aggregators, since its processes hold the weights; "
            "write own",
            **dict.fromkeys(
                (Where.RAY, Where.RAY_PODS),
                "aggregation: shared is for jobs whose workers are on this machine or on VMs, not with "
                f"{_ENGINE}; write own",
            ),
            Where.PODS: "aggregation: shared is for jobs on this machine or on VMs of a cloud, not on Kubernetes; "
            "write own",
        },
    ),
    Need(
        "`leader: vm`",
        "leader",
        lambda job, kind: job.leader == "vm",
        {
            **dict.fromkeys(
                (Where.HERE, Where.RAY),
                "leader: vm is for jobs on a cloud's VMs and on pods; with infra: {job.infra}, write here",
            ),
            Where.RAY_PODS: f"leader: vm: with {_ENGINE}, a node of the Ray cluster leads the job; leave it out",
            Where.POOL: "leader: vm cannot reach the pool of aggregators, whose manager is on this machine; write "
            "here, or aggregation: own",
        },
    ),
    Need(
        "`spot: auto` or `always`",
        "spot",
        lambda job, kind: job.spot != "never",
        {
            **dict.fromkeys(
                (Where.HERE, Where.RAY), "spot: {job.spot} needs a cloud that has spot VMs; use never"
            ),
            Where.RAY_PODS: f"spot: with {_ENGINE}, the worker group says on which nodes pods are; leave it out",
        },
    ),
    Need(
        "`resources.disk`",
        "resources",
        lambda job, kind: job.resources is not None and job.resources.disk is not None,
        dict.fromkeys(
            (Where.HERE, Where.RAY), "resources.disk: this machine's disk is what it is; leave it out"
        ),
    ),
    Need(
        "`resources.accelerators`",
        "resources",
        lambda job, kind: job.resources is not None and job.resources.accelerators is not None,
        {
            Where.RAY: "resources: accelerators: {job.resources.accelerators} cannot be had with "
            f"{_ENGINE}; use process"
        },
    ),
    Need(
        "`objective: {utility: EXPRESSION}`",
        "objective",
        lambda job, kind: not isinstance(job.objective, str) and job.utility is None,
        dict.fromkeys(
            Kind,
            "objective: a utility as an expression is not evaluated by this version; give its worth by time, as "
            "{{utility: {{linear: {{worth: $50, until: 8h}}}}}}",
        ),
    ),
)


def where_workers_are(job: JobSpec) -> Where:
    """Where the workers of a job are."""
    machines = job.infra.capabilities
    if machines.pods:
        return Where.PODS if worker_group_of(job.engine) is None else Where.RAY_PODS
    if machines.rents:
        return Where.VMS
    return Where.HERE if job.engine == "process" else Where.RAY


def parts_of(job: JobSpec, kind: Kind) -> tuple[Part, ...]:
    """What a job of this kind consists of, each of which may lack what it needs."""
    workers = where_workers_are(job)
    return (kind, workers, Where.POOL) if job.aggregation == "shared" else (kind, workers)


def lacks(job: JobSpec, kind: Kind) -> Iterator[tuple[Need, str]]:
    """Compare what a job needs with what its parts lack; yields each need that is not met, with the refusal."""
    parts = parts_of(job, kind)
    for need in NEEDS:
        if need.asked(job, kind):
            yield from ((need, need.lacked[part].format(job=job)) for part in parts if part in need.lacked)


def check_needs(job: JobSpec, kind: Kind) -> None:
    """Check that the parts of a job have all that it needs; nothing in a job file is ignored silently.

    Raises:
        NotSupportedError: If one lacks something; the message names the key and what to write instead.
    """
    for need, refusal in lacks(job, kind):
        raise NotSupportedError(refusal, key=need.key)
