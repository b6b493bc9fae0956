"""The jobs of Microsoft's Philly trace as loads of a shared pool: a stated mapping, since the trace names no models.

- A job of g GPUs has ceil(g / 4) workers, and as many servers of its own: the "2s-2w" and "4s-4w" of AutoPS, whose
  workers are machines with four GPUs that send one gradient [1]_.
- Its model is VGG19, ResNet50 or BERT-base, its batch for each GPU one of those measured in the ElasticFlow data:
  both drawn for each job.
- Its step takes what the model was measured to take on one A100 with this batch [2]_ (VGG19: VGG16's time by the
  ratio of multiplications), times a factor that is drawn for each job: no two jobs have the same step time.
- A third of that is the forward pass. In the rest gradients become whole layer by layer, last layer first, in
  proportion to the multiplications of each layer.
- Tensors are packed into buckets of 4 MiB in that order.
- A bucket takes the processor time that this machine needs to sum as many gradients and to update by Adam, with
  one core, measured at the begin.

References:
    .. [1] Gu et al., "Elastic Model Aggregation with Parameter Service", 2022, section 5.1.
    .. [2] Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", 2023.
    .. [3] Devlin et al., "BERT", 2018, section 3: 12 layers, 768 wide, 30,522 word pieces, 512 positions.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from benchmarks.pools.nodes import Steps, step_time_alone
from benchmarks.pools.trace import TracedJob
from benchmarks.public_steps import DATA, read_step_times
from scavenger.scheduler.pool import BucketLoad, JobLoad, NodeType

_TRACE = DATA / "philly" / "philly_compact.csv.gz"
_GPUS_PER_WORKER = 4
_BUCKET_BYTES = 4 * 2**20
_FLOAT_BYTES = 4
_STATE_COPIES = 7
"""Of a parameter's bytes that an aggregator holds with Adam: weights and two slots before and after a step, a sum."""
_FORWARD_SHARE = 1 / 3
_SCATTER = 0.25
"""Standard deviation of the logarithm of a job's factor on the measured step time."""

NODE = NodeType("4 cores", 4, 64 * 2**30, 12.5e9)
"""An aggregator node, and a server of a job's own: four cores and the 100 Gbit/s of AutoPS's testbed."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A row of the trace."""

    name: str
    at_s: float
    work_s: float
    gpus: int


def read_philly() -> list[Arrival]:
    """All jobs in the order of their arrivals.

    Raises:
        SystemExit: If the trace is not there.
    """
    if not _TRACE.is_file():
        raise SystemExit(f"the trace is not at {_TRACE}: nothing to simulate")
    with gzip.open(_TRACE, "rt") as lines:
        rows = [
            Arrival(row["job_id"], float(row["submit_s"]), float(row["duration_s"]), int(row["num_gpus"]))
            for row in csv.DictReader(lines)
        ]
    return sorted((row for row in rows if row.work_s > 0.0), key=lambda row: (row.at_s, row.name))


def busiest(arrivals: Sequence[Arrival], length_s: float) -> tuple[float, list[Arrival]]:
    """The window in which the jobs would have most servers of their own in the mean, begun at a half day.

    Returns:
        Its begin, and its jobs in the order of their arrivals, cut to the window: those that run when it begins
        arrive then.
    """
    begins = np.arange(0.0, arrivals[-1].at_s, 43_200.0)
    used = np.zeros(len(begins))
    for one in arrivals:
        inside = np.minimum(one.at_s + one.work_s, begins + length_s) - np.maximum(one.at_s, begins)
        used += np.maximum(inside, 0.0) * _workers(one)
    begin_s = float(begins[int(np.argmax(used))])
    cut = [
        replace(one, at_s=max(one.at_s, begin_s), work_s=stop_s - max(one.at_s, begin_s))
        for one in arrivals
        if (stop_s := min(one.at_s + one.work_s, begin_s + length_s)) > max(one.at_s, begin_s)
    ]
    return begin_s, sorted(cut, key=lambda one: (one.at_s, one.name))


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The tensors of a model in the order of its layers.

    Attributes:
        parameters: Of each tensor.
        multiplications: By each tensor in a forward pass of one sample, up to a factor.
    """

    name: str
    parameters: tuple[int, ...]
    multiplications: tuple[float, ...]

    def buckets(self) -> list[tuple[int, float]]:
        """Bytes of each bucket, and the share of the backward pass after which it is whole; last layer first."""
        total = sum(self.multiplications)
        found, held, done = [], 0, 0.0
        for number, work in zip(reversed(self.parameters), reversed(self.multiplications), strict=True):
            done += work / total
            held += number * _FLOAT_BYTES
            while held >= _BUCKET_BYTES:
                found.append((_BUCKET_BYTES, done))
                held -= _BUCKET_BYTES
        return [*found, (held, done)] if held else found


def from_keras(name: str) -> ModelShape:
    """The shapes of a model of `keras.applications`, without its weights."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    model = getattr(keras.applications, name)(weights=None)
    parameters, work = [], []
    for layer in model.layers:
        # a convolution applies its kernel once per pixel of its output
        pixels = math.prod(layer.output.shape[1:-1]) if "conv" in type(layer).__name__.lower() else 1
        for weight in layer.trainable_weights:
            parameters.append(math.prod(weight.shape))
            work.append(float(parameters[-1] * pixels) if len(weight.shape) > 1 else 0.0)
    return ModelShape(name, tuple(parameters), tuple(work))


def bert_base() -> ModelShape:
    """BERT-base by its published dimensions [3]_."""
    width, inner, layers = 768, 4 * 768, 12
    norm = [(width,), (width,)]
    square: list[tuple[int, ...]] = [(width, width), (width,)]
    layer = square * 4 + norm + [(width, inner), (inner,), (inner, width), (width,)] + norm
    embeddings: list[tuple[int, ...]] = [(30_522, width), (512, width), (2, width), *norm]
    rest = [*layer * layers, *square]
    parameters = [math.prod(shape) for shape in (*embeddings, *rest)]
    work = [0.0] * len(embeddings) + [float(math.prod(s)) if len(s) > 1 else 0.0 for s in rest]
    return ModelShape("BERT-base", tuple(parameters), tuple(work))


@dataclass(frozen=True, slots=True)
class Rate:
    """Processor seconds of one core to aggregate a byte of parameters: `update_s + gradients * sum_s`."""

    update_s: float
    sum_s: float

    @classmethod
    def through(cls, times_s: dict[int, float], parameters: int) -> Rate:
        """The line of least squares through the times of a step, by the number of gradients."""
        sum_s, update_s = np.polyfit(list(times_s), np.array(list(times_s.values())), 1)
        size = parameters * _FLOAT_BYTES
        return cls(max(float(update_s), 0.0) / size, max(float(sum_s), 0.0) / size)

    def seconds(self, size_bytes: int, gradients: int) -> float:
        """For a bucket of this size."""
        return size_bytes * (self.update_s + gradients * self.sum_s)


def _measured_steps(models: Sequence[ModelShape]) -> dict[str, tuple[float, ...]]:
    """Step times on one A100, seconds, at each batch size that was measured.

    Raises:
        SystemExit: If the data is not there.
    """
    alone = [row for row in read_step_times() if row.cluster == "azure-a100" and row.workers == 1]
    work = {model.name: sum(model.multiplications) for model in models}
    found = {}
    for model in models:
        source = {"BERT-base": "bert", "VGG19": "vgg16"}.get(model.name, model.name.lower())
        ratio = work["VGG19"] / sum(from_keras("VGG16").multiplications) if model.name == "VGG19" else 1.0
        found[model.name] = tuple(row.step_time_s * ratio for row in alone if row.workload == source)
    return found


class Mapping:
    """Loads of jobs by their arrivals; see the table at the top.

    Args:
        scatter: Whether each job has a factor of its own on the measured step time.
    """

    def __init__(self, models: Sequence[ModelShape], rate: Rate, *, scatter: bool = True) -> None:
        self._models = {model.name: model.buckets() for model in models}
        self._kinds = [(name, s) for name, times in _measured_steps(models).items() for s in times]
        self._rate, self._scatter = rate, _SCATTER if scatter else 0.0
        self._buckets = lru_cache(maxsize=None)(self._buckets_of)

    def job(self, arrival: Arrival) -> TracedJob:
        """The job as a pool sees it; the same for the same name."""
        load, _ = self._load(arrival)
        return TracedJob(load, arrival.at_s, arrival.work_s, _workers(arrival))

    def steps(self, arrival: Arrival) -> Steps:
        """When its workers send which bucket."""
        return Steps(self._load(arrival)[1])

    def _load(self, arrival: Arrival) -> tuple[JobLoad, tuple[float, ...]]:
        generator = np.random.default_rng(list(arrival.name.encode()))
        model, step_s = self._kinds[int(generator.integers(len(self._kinds)))]
        step_s *= float(np.exp(self._scatter * generator.standard_normal()))
        workers = _workers(arrival)
        ready_s = tuple(
            step_s * (_FORWARD_SHARE + (1.0 - _FORWARD_SHARE) * done) for _, done in self._models[model]
        )
        buckets = self._buckets(model, workers)
        alone_s = step_time_alone(buckets, ready_s, workers, int(NODE.cores))
        return JobLoad(arrival.name, alone_s, buckets), ready_s

    def _buckets_of(self, model: str, workers: int) -> tuple[BucketLoad, ...]:
        return tuple(
            BucketLoad(self._rate.seconds(size, workers), _STATE_COPIES * size, workers * size)
            for size, _ in self._models[model]
        )


def _workers(arrival: Arrival) -> int:
    return math.ceil(arrival.gpus / _GPUS_PER_WORKER)
