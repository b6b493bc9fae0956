"""The validated job file.

Fields carry their unit last in the name where the job file's own word has none; durations are kept in seconds
and money in US dollars, whatever form the file wrote them in.
"""

from __future__ import annotations

import keyword
import math
from bisect import bisect_left
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from scavenger.domain.command import RunSpec, RunText
from scavenger.domain.elastic import ElasticSpec
from scavenger.domain.environment import EnvironmentText, SecretNames
from scavenger.domain.forms import (
    Budget,
    Duration,
    EngineText,
    EntryPoint,
    EntryPointText,
    FrozenModel,
    JobName,
    Money,
    Path,
    TrainingText,
    VmName,
    did_you_mean,
    fault,
    parse_duration,
    parse_money,
    shown,
)
from scavenger.domain.goal import EPOCHS_MAX, GoalSpec
from scavenger.domain.infra import Infra, InfraText
from scavenger.domain.overrides import ObjectiveName, Strategy
from scavenger.domain.ranges import (
    CONFIGURATIONS_MAX,
    AcceleratorsText,
    Amount,
    BatchSizes,
    CpuAmount,
    MemoryAmount,
    VmNames,
    WorkerCounts,
)
from scavenger.domain.script import KERAS_BATCH_SIZE, Script
from scavenger.domain.trackers import TrackersSpec
from scavenger.domain.utility import Utility, UtilityCurve

__all__ = [
    "EPOCHS_MAX",
    "Amount",
    "CheckpointSpec",
    "ConstraintsSpec",
    "ElasticSpec",
    "EntryPoint",
    "GoalSpec",
    "Infra",
    "JobSpec",
    "LimitsSpec",
    "ProfileSpec",
    "ResourcesSpec",
    "RunSpec",
    "Script",
    "SearchSpec",
    "TrackersSpec",
    "Utility",
    "parse_duration",
    "parse_money",
]

STEPS_MAX = 10**6
"""Largest accepted number of steps to profile one configuration."""
SEED_MAX = 2**32 - 1
"""Largest seed that the random generators of NumPy and TensorFlow accept."""

PARAMS_BYTES_MAX = 1 << 16
"""Most that the arguments of a job take, written as text."""

DISK_GIB_MIN, DISK_GIB_MAX = 10, 16_384
"""Smallest and largest boot disk of a VM that both clouds give, GiB."""

_OBJECTIVES: tuple[str, ...] = get_args(ObjectiveName)


def _parse_version(value: object) -> int:
    if value is True or value is False or not isinstance(value, int) or value != 1:
        raise fault(f"must be 1, the format that this Scavenger reads, not {shown(value)}")
    return value


def _parse_objective(value: object) -> str | Utility:
    if isinstance(value, dict | Utility):
        return Utility.model_validate(value)
    if isinstance(value, str) and value in _OBJECTIVES:
        return value
    hint = did_you_mean(value, _OBJECTIVES) if isinstance(value, str) else ""
    raise fault(f"must be time, cost, knee or {{utility: ...}}, not {shown(value)}{hint}")


def _write_objective(objective: str | Utility) -> str | dict[str, Any]:
    return objective if isinstance(objective, str) else objective.model_dump(mode="json")


def _parse_params(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise fault(f"must be names with values, such as {{learning_rate: 0.01}}, not {shown(value)}")
    for name, one in value.items():
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise fault(
                f"must be a name that a Python function can have for an argument, not {shown(name)}",
                str(name),
            )
        if not _is_plain(one):
            raise fault(
                f"must be a number, a text, true or false, or a list or mapping of those, not {shown(one)}",
                name,
            )
    if (size := len(repr(value))) > PARAMS_BYTES_MAX:
        raise fault(f"must be shorter than {PARAMS_BYTES_MAX} bytes, not {size}")
    return value


def _is_plain(value: object) -> bool:
    """Whether a value is the same after it was written as JSON and read again."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or type(value) in (bool, int, str)


Version = Annotated[int, PlainValidator(_parse_version), WithJsonSchema({"const": 1})]
Params = Annotated[dict[str, Any], PlainValidator(_parse_params), WithJsonSchema({"type": "object"})]
Objective = Annotated[
    str | Utility,
    PlainValidator(_parse_objective),
    PlainSerializer(_write_objective),
    WithJsonSchema({"anyOf": [{"enum": list(_OBJECTIVES)}, Utility.model_json_schema()]}),
]


class ResourcesSpec(FrozenModel):
    """The VM that each worker runs on: a VM type, a list of types, or a size; exactly one of the three."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["vm"]},
                {"required": ["any_of"]},
                {"anyOf": [{"required": ["cpus"]}, {"required": ["memory"]}, {"required": ["accelerators"]}]},
            ]
        }
    )

    vm: VmName | None = Field(default=None, description="One VM type, by the provider's name.")
    any_of: VmNames | None = Field(default=None, description="VM types to choose from: names, or {vm: NAME}.")
    cpus: CpuAmount | None = Field(
        default=None, description="Processors of each VM: 4 for exactly, 4+ for at least."
    )
    memory: MemoryAmount | None = Field(
        default=None, description="Memory of each VM in GiB: 16 for exactly, 16+ for at least."
    )
    accelerators: AcceleratorsText | None = Field(
        default=None,
        description="GPUs of each VM, one worker on each: T4, or T4:4 for four.",
        examples=["T4:1"],
    )
    disk: int | None = Field(
        default=None,
        ge=DISK_GIB_MIN,
        le=DISK_GIB_MAX,
        description="Size of each VM's disk in GiB; without it 20, or 100 with GPUs.",
    )

    @model_validator(mode="after")
    def _check(self) -> ResourcesSpec:
        sized = not (self.cpus is None and self.memory is None and self.accelerators is None)
        if (self.vm is not None) + (self.any_of is not None) + sized != 1:
            raise fault("must have exactly one of: vm, any_of, or a size by cpus, memory and accelerators")
        return self

    @property
    def vms(self) -> tuple[str, ...]:
        """The VM types that the user named, in the given order; empty if they are chosen by size."""
        return (self.vm,) if self.vm is not None else self.any_of or ()


class SearchSpec(FrozenModel):
    """Which configurations to consider, and how to profile them."""

    strategy: Strategy = Field(
        default="auto",
        description="What to profile: full (every configuration), partial (a few, each chosen by what those "
        "before it showed), extremes (the corners), none (reuse what an "
        "earlier run of the same job taught), universal (none, with the average of all jobs), auto (none if "
        "it can be, else partial), reuse (as auto, but a model of a job that differs only in its optimizer and goal "
        "will do, too).",
    )
    workers: WorkerCounts = Field(
        default=(1, 2, 3, 4), description="Cluster sizes K: a range 1..4, a number, or a list [1, 2, 4]."
    )
    batch_size: BatchSizes = Field(
        default=(32, 64, 128, 256),
        description="Global batch sizes B, samples per step over all workers: {min, max} (doubling), "
        "{min, max, step}, a number, or a list.",
    )


class ConstraintsSpec(FrozenModel):
    """Limits on the whole run, profiling included."""

    deadline: Duration | None = Field(default=None, description="Longest time, such as 8h or 1h30m.")
    budget: Budget | None = Field(default=None, description="Highest cost in US dollars, such as $20.")


class ProfileSpec(FrozenModel):
    """Limits on profiling; its steps also train the model."""

    steps: int = Field(
        default=20,
        ge=3,
        le=STEPS_MAX,
        description="Undisturbed steps measured at each configuration; 10 where their median is known by then.",
    )
    points: int = Field(
        default=6, ge=1, le=1000, description="Most configurations that a partial search measures."
    )
    max_cost: Money | None = Field(
        default=None, description="Highest cost of profiling; without it, the budget alone."
    )
    max_time: Duration | None = Field(
        default=None, description="Longest time of profiling; without it, the deadline alone."
    )


class CheckpointSpec(FrozenModel):
    """Where and how often the training state is saved."""

    path: str = Field(
        description="A folder, relative to the job file, or a URL.",
        examples=["./checkpoints"],
    )
    every: Duration = Field(default=600.0, description="Time between checkpoints.")
    every_steps: int | None = Field(
        default=None, ge=1, le=STEPS_MAX, description="Steps between checkpoints, whichever comes first."
    )


class LimitsSpec(FrozenModel):
    """When a silent process counts as hung, longest waits for VMs and for the store, and how old prices may be."""

    start: Duration = Field(
        default=180.0, description="Longest time for a worker to start and build the model."
    )
    step: Duration = Field(default=60.0, description="Longest time for one step.")
    evaluation: Duration | None = Field(
        default=None,
        description="Longest time for one evaluation after an epoch; else by the size of the validation data and the "
        "time that steps take.",
    )
    callbacks: Duration = Field(
        default=600.0,
        description="Longest time for one run of the Keras callbacks, when an epoch or a step ends.",
    )
    vms: Duration = Field(
        default=3600.0,
        description="Longest wait for VMs while none is to be had, before the job goes on without them or, if it has "
        "none, ends.",
    )
    store: Duration = Field(
        default=600.0,
        description="Longest time that the store may be out of service before the job ends, with a checkpoint.",
    )
    change: Duration = Field(
        default=120.0,
        description="How long a job of a pool may take for a change of its share before it is named and its runner "
        "asked whether it works.",
    )
    leader: Duration = Field(
        default=3600.0,
        description="How long the leader's VM stays after the end of its job, unless its result is fetched before.",
    )
    price_age: Duration = Field(
        default=90 * 86_400.0,
        description="Age up to which prices of VMs with GPUs are taken without a question: of older ones it is asked "
        "in a terminal, and elsewhere the job is refused.",
    )


class JobSpec(FrozenModel):
    """The job file. `output` and `checkpoint.path` are relative to the folder that the file is in."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["train"]}, {"required": ["run"]}]})

    version: Version = Field(description="Version of this format.", examples=[1])
    name: JobName = Field(description="The job's name.", examples=["digits-cnn"])
    train: TrainingText | None = Field(
        default=None,
        description="The training code in the job file's folder: module:object, or a script that calls fit, "
        "scavenger.torch or scavenger.jax, with its arguments, as train.py --epochs 5; or run.",
        examples=["train:job"],
    )
    run: RunText | None = Field(
        default=None,
        description="Instead of train, a command that trains, in any framework: one process of it on each worker.",
        examples=["torchrun train.py --batch {local_batch_size}"],
    )
    data: EntryPointText | None = Field(
        default=None,
        description="A function, as module:object, that returns the arguments of KerasJob besides the model, as "
        "{'train': (x, y)}; for a train that returns a model alone.",
        examples=["train:data"],
    )
    params: Params = Field(
        default={},
        description="Arguments by name for the function that train names, as hyperparameters; for run, placeholders.",
        examples=[{"learning_rate": 0.01}],
    )
    env: EnvironmentText = Field(
        default={},
        description="Environment variables of the training code: names with values, in which ${NAME} is a variable of "
        "who begins the job, or a list of such names.",
        examples=[{"DATA_VERSION": 2}],
    )
    secrets: SecretNames = Field(
        default=(),
        description="Names of environment variables of the training code whose values are taken from who begins the "
        "job; they are masked in logs, and stored nowhere in clear.",
        examples=[["HF_TOKEN"]],
    )
    infra: InfraText = Field(
        default=Infra(),
        description="Where to run: local, pool/NAME, gcp/REGION[-ZONE], aws/REGION[ZONE], kubernetes[/CONTEXT] or "
        "ssh/GROUP[-RACK]; or a mapping with one of the clouds' under at, and settings of this job's VMs.",
        json_schema_extra={"default": "local"},
    )
    engine: EngineText = Field(
        default="process",
        description="What runs the job's processes: process, on this machine, or ray[/HOST:PORT], on the hosts of a "
        "Ray cluster (without an address, the one that this machine belongs to); with infra: kubernetes, "
        "ray/RAYCLUSTER[/GROUP], on pods of a worker group of KubeRay.",
        examples=["ray"],
    )
    leader: Literal["here", "vm"] | None = Field(
        default=None,
        description="Where the process that leads the job runs: here, with the command, or vm, on a small on-demand VM "
        "of its own; without it, vm if no address is set at which VMs reach this machine, where VMs can lead.",
        examples=["vm"],
    )
    aggregation: Literal["own", "shared"] = Field(
        default="own",
        description="Whose aggregators the job has: own, processes of its own, or shared, in the pool of this machine.",
    )
    resources: ResourcesSpec | None = Field(
        default=None, description="What each worker runs on; without it, the provider's default."
    )
    spot: Literal["never", "auto", "always"] = Field(
        default="never", description="Whether workers may be spot VMs, which the cloud can take back."
    )
    search: SearchSpec = Field(default=SearchSpec(), description="Which configurations to consider.")
    objective: Objective = Field(
        default="knee",
        description="What to choose: the fastest (time), the cheapest (cost), the bend between them (knee), or "
        "what is worth most above its cost ({utility: ...}).",
    )
    constraints: ConstraintsSpec = Field(
        default=ConstraintsSpec(), description="What the whole run must not exceed."
    )
    goal: GoalSpec = Field(description="When training is done.", examples=[{"max_epochs": 60}])
    profile: ProfileSpec = Field(default=ProfileSpec(), description="How much profiling may take.")
    elastic: ElasticSpec = Field(default=ElasticSpec(), description="How the running job may change.")
    checkpoint: CheckpointSpec | None = Field(
        default=None, description="Where and how often the training state is saved."
    )
    trackers: TrackersSpec | None = Field(
        default=None, description="Where the run is also recorded: MLflow, TensorBoard, Weights & Biases."
    )
    seed: int = Field(
        default=0, ge=0, le=SEED_MAX, description="Seed of the data order, the weights and augmentation."
    )
    output: Path = Field(default="./.scavenger", description="Folder for what the job writes.")
    limits: LimitsSpec = Field(default=LimitsSpec(), description="When a silent process counts as hung.")

    @model_validator(mode="before")
    @classmethod
    def _script(cls, given: Any) -> Any:
        """A command that is a script of the folder is one that trains: `run: train.py` is `train: train.py`."""
        run = given.get("run") if isinstance(given, dict) else None
        script = Script.find(run) if isinstance(run, str) else None
        if script is None or "/" in script.path or "train" in given:
            return given
        return {key: value for key, value in given.items() if key != "run"} | {"train": run}

    @model_validator(mode="after")
    def _check(self) -> JobSpec:
        if self.train is None and self.run is None:
            raise fault("is missing; add train: train:job, or run: with a command that trains", "train")
        if self.run is not None:
            if self.train is not None:
                raise fault("is for jobs without train: keep one of the two", "run")
            self.run.check_names(self.params)
        elif "KERAS_BACKEND" in self.env:
            raise fault("is tensorflow for all training code but commands (run)", "env", "KERAS_BACKEND")
        if isinstance(self.train, Script) and (self.params or self.data is not None):
            words = (
                "is for a function of a module: a script has its arguments in train, as train.py --rate 0.01"
            )
            raise fault(words, "params" if self.params else "data")
        if both := [name for name in self.secrets if name in self.env]:
            raise fault("is a secret, too: keep it in one of env and secrets", "env", both[0])
        if "KERAS_BACKEND" in self.secrets:
            raise fault("has KERAS_BACKEND, which is no secret", "secrets")
        if not self.worker_counts:
            asked = self.search.workers
            raise fault(
                f"leaves none of the cluster sizes {asked[0]} to {asked[-1]} of search.workers",
                "elastic",
                "min" if self.elastic_range[0] > asked[-1] else "max",
            )
        if self.elastic.policy == "utility" and self.utility is None:
            raise fault(
                "utility needs what the result is worth, as objective: {utility: {linear: {worth: $50, until: 8h}}}",
                "elastic",
                "policy",
            )
        count = self.configuration_count
        if count == 0:
            raise fault(
                f"must reach {self.worker_counts[0]}, one sample for each worker, not {self.batch_sizes[-1]}",
                "search",
                "batch_size",
            )
        if count > CONFIGURATIONS_MAX:
            raise fault(
                f"spans {count} configurations; at most {CONFIGURATIONS_MAX} can be searched: narrow the "
                "ranges or widen the step",
                "search",
            )
        return self

    @property
    def worker_counts(self) -> tuple[int, ...]:
        """Cluster sizes K to consider, strictly increasing: those of the search that `elastic` allows."""
        low, high = self.elastic_range
        return tuple(k for k in self.search.workers if low <= k <= high)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Global batch sizes B to consider, samples, strictly increasing."""
        return self.search.batch_size

    @property
    def reference_batch_size(self) -> int:
        """The job's own batch, that of `goal.max_epochs`: Keras's default if it is searched, else the smallest."""
        return KERAS_BATCH_SIZE if KERAS_BATCH_SIZE in self.batch_sizes else self.batch_sizes[0]

    @property
    def at_equal_progress(self) -> bool:
        """Whether batch sizes differ in their epochs, by the progress of `goal.max_epochs` at the job's own batch."""
        return self.goal.target is None and not self.goal.epochs_fixed and len(self.batch_sizes) > 1

    @property
    def batch_size_varies(self) -> bool:
        """Whether steps may have another batch size than the job's own, `reference_batch_size`."""
        return len(self.batch_sizes) > 1 or (self.elastic.batch == "weak" and len(self.worker_counts) > 1)

    @property
    def elastic_range(self) -> tuple[int, int]:
        """Smallest and largest number of workers at any time."""
        workers, elastic = self.search.workers, self.elastic
        return (
            workers[0] if elastic.min is None else elastic.min,
            workers[-1] if elastic.max is None else elastic.max,
        )

    @property
    def configuration_count(self) -> int:
        """Configurations (VM type, K, B) with B >= K; a choice by size counts as one VM type."""
        sizes = self.batch_sizes
        pairs = sum(len(sizes) - bisect_left(sizes, k) for k in self.worker_counts)
        return pairs * max(1, len(self.resources.vms) if self.resources is not None else 1)

    @property
    def utility(self) -> UtilityCurve | None:
        """The worth of the result as a function of its time; None if the objective has none."""
        return None if isinstance(self.objective, str) else self.objective.curve

    def written(self) -> dict[str, Any]:
        """The job as a document that validates to the same job again; holds only what was set."""
        return self.model_dump(mode="json", exclude_unset=True)
