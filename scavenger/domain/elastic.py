"""The job file's `elastic` section: how the running job may change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from scavenger.domain.fingerprint import AGGREGATORS_MAX
from scavenger.domain.forms import Duration, FrozenModel, did_you_mean, fault, shown
from scavenger.domain.ranges import BATCH_MAX, WORKERS_MAX

ScalingPolicy = Literal["model", "throughput", "utility", "fixed"]
BatchScaling = Literal["strong", "weak"]
LrScaling = Literal["none", "linear", "sqrt", "adascale"]
GradientExchange = Literal["auto", "leader", "process_group"]

INTERVAL_MAX = 10**6
"""Upper bound on the steps between two changes of size: no job runs for longer."""
COUNT_MAX = 10**4
PROCESSES_MAX = 64
"""Upper bound on the processes of a worker: no machine has more GPUs."""
AggregatorPlacement = Literal["auto", "workers"]
_STRAGGLER_WORDS = ("none", "replace")
_THRESHOLDS = {"ewma": 0.8, "edl": 1.2}


class StragglerSpec(FrozenModel):
    """Which workers count as stragglers, and how many may be replaced at once."""

    rule: Literal["ewma", "edl"] = Field(
        default="ewma",
        description="ewma: its smoothed share of the median throughput is below the threshold; edl: ten steps "
        "in a row, its time was more than the threshold times the median.",
    )
    threshold: float | None = Field(
        default=None,
        gt=0,
        le=100,
        description="Of ewma below 1 (0.8 without it), of edl above 1 (1.2 without it).",
    )
    at_once: float = Field(
        default=0.25,
        gt=0,
        le=1,
        description="Largest share of the workers that goes at once; one may always go.",
    )

    @model_validator(mode="after")
    def _check(self) -> StragglerSpec:
        if self.threshold is not None and (self.threshold < 1.0) != (self.rule == "ewma"):
            words = "below 1, a share of" if self.rule == "ewma" else "above 1, a multiple of"
            raise fault(
                f"must be {words} the median for rule {self.rule}, not {self.threshold:g}", "threshold"
            )
        if self.threshold == 1.0:
            raise fault("must be above 1, a multiple of the median for rule edl, not 1", "threshold")
        return self

    @property
    def limit(self) -> float:
        """The threshold: the user's, or the default of the rule."""
        return _THRESHOLDS[self.rule] if self.threshold is None else self.threshold


def _parse_straggler(value: object) -> str | StragglerSpec:
    if isinstance(value, Mapping | StragglerSpec):
        return StragglerSpec.model_validate(value)
    if isinstance(value, str) and value in _STRAGGLER_WORDS:
        return value
    hint = did_you_mean(value, _STRAGGLER_WORDS) if isinstance(value, str) else ""
    raise fault(f"must be none, replace or {{rule: ewma}}, not {shown(value)}{hint}")


def _write_straggler(value: str | StragglerSpec) -> object:
    return value if isinstance(value, str) else value.model_dump(mode="json", exclude_unset=True)


def _parse_vms(value: object) -> int | AggregatorPlacement:
    if value == "auto":
        return "auto"
    if value == "workers":
        return "workers"
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= AGGREGATORS_MAX:
        return value
    raise fault(f"must be auto, workers or a whole number from 1 to {AGGREGATORS_MAX}, not {shown(value)}")


class FailuresSpec(FrozenModel):
    """How worker failures are handled; preemptions and evictions do not count as failures."""

    per_host: int = Field(
        default=3, ge=1, le=COUNT_MAX, description="Failures on one host within the window that rule it out."
    )
    window: Duration = Field(default=600.0, description="How far back failures count.")
    cooldown: Duration = Field(
        default=1800.0, description="How long a host stays ruled out; at least the window."
    )
    give_up: int = Field(
        default=5,
        ge=1,
        le=COUNT_MAX,
        description="Workers that may die within the window before their first step, or one after the other soon after "
        "their start, until the job gives up.",
    )

    @model_validator(mode="after")
    def _check(self) -> FailuresSpec:
        if self.cooldown < self.window:
            # a host would come back only to be ruled out again for the same failures
            raise fault(
                f"must be at least the window ({self.window:g} s), not {self.cooldown:g} s", "cooldown"
            )
        return self


class ElasticSpec(FrozenModel):
    """How the running job may change."""

    min: int | None = Field(
        default=None,
        ge=1,
        le=WORKERS_MAX,
        description="Fewest workers at any time; else the search's fewest.",
    )
    max: int | None = Field(
        default=None, ge=1, le=WORKERS_MAX, description="Most workers at any time; else the search's most."
    )
    policy: ScalingPolicy = Field(
        default="model",
        description="Who decides the number of workers: the model that was fitted (model), the measured gain "
        "of each added worker (throughput), its worth against its cost (utility), or none of them (fixed).",
    )
    efficiency: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="What an added worker must bring, as a share of what the present ones bring each.",
    )
    every_steps: int = Field(
        default=10, ge=1, le=INTERVAL_MAX, description="Steps measured at each size before the next decision."
    )
    add: int = Field(default=1, ge=1, le=WORKERS_MAX, description="Workers added at once.")
    batch: BatchScaling = Field(
        default="strong",
        description="When the workers change, what stays: the global batch (strong), or the local one up to "
        "batch_max (weak).",
    )
    batch_max: int | None = Field(
        default=None,
        ge=1,
        le=BATCH_MAX,
        description="Largest global batch that batch: weak grows to; else the search's largest.",
    )
    straggler: Annotated[
        str | StragglerSpec,
        PlainValidator(_parse_straggler),
        PlainSerializer(_write_straggler),
        WithJsonSchema({"anyOf": [{"enum": list(_STRAGGLER_WORDS)}, StragglerSpec.model_json_schema()]}),
    ] = Field(default="none", description="What to do about a worker that is slower than its peers.")
    lr_scaling: LrScaling = Field(
        default="none", description="How the learning rate follows a change of the batch size."
    )
    schedule: Literal["samples", "steps"] = Field(
        default="samples",
        description="What a schedule of the learning rate counts where the batch differs from the job's own: samples, "
        "so that it goes as far in an epoch as at that batch, or steps, as in Keras.",
    )
    aggregators: int = Field(
        default=1,
        ge=1,
        le=AGGREGATORS_MAX,
        description="Processes that share the master copy of the weights, by size.",
    )
    aggregator_vms: Annotated[
        int | AggregatorPlacement,
        PlainValidator(_parse_vms),
        WithJsonSchema(
            {
                "anyOf": [
                    {"enum": ["auto", "workers"]},
                    {"type": "integer", "minimum": 1, "maximum": AGGREGATORS_MAX},
                ]
            }
        ),
    ] = Field(
        default="auto",
        description="VMs that the aggregators are spread over, each at the price of an aggregator VM; only on a cloud. "
        "workers: one VM, and an aggregator beside the workers of each of their VMs, so that no link carries more than "
        "about the model. auto: what earlier runs of the job show to be worth its price, else 1.",
    )
    gradients: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="What workers send of their gradients. bfloat16: those of large tensors rounded, in half as many "
        "bytes, and what is rounded off is added to the next gradient; weights stay as they are.",
    )
    exchange: GradientExchange = Field(
        default="auto",
        description="Who averages the gradients of a PyTorch loop or script. leader: the process that leads the job. "
        "process_group: workers of one machine among themselves, by torch.distributed, over NCCL on GPUs and gloo on "
        "processors. auto: the faster of both, as measured, where each worker has a GPU of its own; else the leader.",
    )
    processes: int = Field(
        default=1,
        ge=1,
        le=PROCESSES_MAX,
        description="Processes of each worker of a PyTorch script, among which the script divides its model by "
        "fully_shard, each on a GPU of its own if there are GPUs.",
    )
    move_buckets: bool | None = Field(
        default=None,
        description="Whether parts of the model leave an aggregator that steps wait for longer than for the others; "
        "by default where there are several aggregator VMs.",
    )
    failures: FailuresSpec = Field(default=FailuresSpec(), description="What follows when workers die.")

    @model_validator(mode="after")
    def _check(self) -> ElasticSpec:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise fault(f"must be at least min ({self.min}), not {self.max}", "max")
        if self.batch_max is not None and self.batch != "weak":
            raise fault("is for batch: weak alone; with strong the global batch never changes", "batch_max")
        if self.known_aggregator_vms > self.aggregators:
            raise fault(
                f"must be at most aggregators ({self.aggregators}), not {self.aggregator_vms}: each has one or more",
                "aggregator_vms",
            )
        return self

    @property
    def moves_buckets(self) -> bool:
        """Whether buckets move between aggregators by what steps wait for them."""
        return self.known_aggregator_vms > 1 if self.move_buckets is None else self.move_buckets

    @property
    def known_aggregator_vms(self) -> int:
        """Number of aggregator VMs; 1 as long as it is to be chosen."""
        return self.aggregator_vms if isinstance(self.aggregator_vms, int) else 1

    @property
    def beside_workers(self) -> bool:
        """Whether aggregators are beside the workers, too, and follow them."""
        return self.aggregator_vms == "workers"

    @property
    def replacing(self) -> StragglerSpec | None:
        """The rule that detects stragglers; None if stragglers are kept."""
        if isinstance(self.straggler, StragglerSpec):
            return self.straggler
        return StragglerSpec() if self.straggler == "replace" else None
