"""Values inside messages, and the configuration that a process gets at its start."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from scavenger.elastic.order import Blocks, Passes

RowCounts = tuple[tuple[int, int], ...]
"""Which gradients of a slot are sparse (`scavenger.train.transport.rows`): index of the segment in the layout, and its
number of rows in the slot."""


class Tagged(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages: the name of the class, which identifies the kind of message, and the values of its fields.

    All processes of a job run the same version, so fields need no names.
    """


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of values inside messages."""


class LogSettings(Body, frozen=True):
    """The log level and format of a process, and the job's id for its records; see `scavenger.logs`."""

    job_id: str = ""
    level: str = ""
    format: str = "text"


class ProcessConfiguration(Body, frozen=True):
    """The configuration that a process reads from standard input at its start; it has keys, so it is never in argv.

    Attributes:
        role: `worker`, `aggregator`, `coordinator`, `loop` or `command`; `tenant` for a place in a pool, which joins
            its job by these keys and gets the processes to run from it (`scavenger.train.pool.tenant`),
            and `node` for a node of a Ray cluster, which does the same (`scavenger.train.engines.ray.node`).
        name: The process's name.
        coordinator: Address of the hub.
        server_key: The hub's public key.
        public_key: The process's public key.
        secret_key: The process's secret key.
        memory_fd: Inherited descriptor of the job's block; -1 if the process makes its own.
        index: An aggregator's index.
        token: The newest coordinator's token.
        train: The training code, as `module:object`; empty for processes that do not run it.
        job_dir: Directory that the training code is imported from.
        seed: Random seed that the model and data are built with.
        threads: Threads that the process computes with.
        processes: Of a worker of a script, among which the script divides its model.
        data_public_key: Public key of an aggregator's data channel.
        data_secret_key: Secret key of an aggregator's data channel.
        data: The data, as `module:object`, if `train` returns a model alone; else empty.
        params: Arguments by name for the function that `train` names.
        schedule_batch: See `Manifest.schedule_batch`.
        gradients: See `JobSource`.
        memory_bytes: Limit on the private memory of a tenant and of each process that it runs; 0 for none.
        env: Environment variables of the job file, which whoever starts the process sets.
        secrets: Further ones, whose values are never written to its log.
    """

    role: str
    name: str
    coordinator: str
    server_key: str
    public_key: str
    secret_key: str
    memory_fd: int
    index: int = 0
    token: int = 0
    train: str = ""
    job_dir: str = ""
    seed: int = 0
    threads: int = 1
    processes: int = 1
    data_public_key: str = ""
    data_secret_key: str = ""
    logs: LogSettings = LogSettings()
    data: str = ""
    params: dict[str, Any] = {}
    schedule_batch: int = 0
    gradients: str = "float32"
    memory_bytes: int = 0
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}


class TensorSpec(Body, frozen=True):
    """One tensor of the model's state.

    `role` is `trainable` (has a gradient), `mean` (a float that the forward pass updates, averaged over workers
    by samples, such as BatchNorm's statistics), `first` (any other state, taken from the first piece) or `slot`
    (a tensor of the optimizer's state).
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    role: str


class SlotSpec(TensorSpec, frozen=True):
    """One array of an optimizer's state. Its path is only for people, and need not be unique.

    Attributes:
        tensor: Index, among the optimizer's tensors, of the tensor that it belongs to; -1 for none, such as for
            state that depends only on the number of steps.
        number: Index among the arrays of the same tensor.
    """

    tensor: int
    number: int


class Manifest(Body, frozen=True, omit_defaults=True):
    """Description of the user's model and data, which must be equal for every worker of a job.

    Attributes:
        tensors: The tensors of the model's state.
        metrics: Shapes of the metric variables, whose sums over workers and steps yield the metrics.
        optimizer: Keras's serialised optimizer, JSON.
        architecture: See `scavenger.domain.fingerprint.Fingerprint`.
        parameters: Number of parameters.
        dataset_size: Number of training samples of an epoch.
        validation_size: Number of validation samples.
        sample_bytes: Size of a sample, bytes.
        metric_names: Names of metrics that a goal may use.
        constraints: Index of each tensor that has a constraint, with Keras's serialised constraint (JSON).
        iterations: Steps that the optimizer has taken before the job; if any, a worker has its initial state.
        blocks: Blocks of the training data, which determine the order of an epoch; None if there are none.
        epochs_per_pass, shuffle: How epochs go through the data; see `scavenger.elastic.order.Passes`.
        notes: What the user should know of how the data is read.
        callbacks: Classes of the callbacks that run at epoch ends.
        batch_hooks: Whether some of them run at every step, too.
        schedule_batch: Batch size at which the schedule of the learning rate counts one step, samples; 0 if each step
            of the job counts, or the rate has no schedule.
        compared: What tells a command from others, for the user; empty for a Keras model.
        data: Digest of some samples; empty if they are not known, or are read otherwise each time. Workers may differ
            in it.
    """

    tensors: tuple[TensorSpec, ...]
    metrics: tuple[tuple[int, ...], ...]
    optimizer: str
    architecture: str
    parameters: int
    dataset_size: int
    validation_size: int
    sample_bytes: int
    metric_names: tuple[str, ...]
    constraints: tuple[tuple[int, str], ...] = ()
    iterations: int = 0
    blocks: Blocks | None = None
    notes: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    batch_hooks: bool = False
    epochs_per_pass: int = 1
    shuffle: bool = True
    schedule_batch: int = 0
    compared: str = ""
    data: str = ""

    def schedule_step(self, step: int, epoch: int, start: int) -> int:
        """Steps that the schedule of the learning rate has behind it when a step begins.

        Args:
            step: Steps that the job has applied before it.
            epoch, start: The step's epoch and its first sample there.
        """
        if self.schedule_batch:
            step = epoch * -(-self.dataset_size // self.schedule_batch) + start // self.schedule_batch
        return step + self.iterations

    @property
    def passes(self) -> Passes:
        """How epochs go through the data."""
        return Passes(self.epochs_per_pass, self.shuffle)

    @property
    def digest(self) -> str:
        """Hash of the model and its data, 32 hexadecimal digits."""
        described = msgspec.structs.replace(self, callbacks=(), batch_hooks=False, schedule_batch=0)
        return hashlib.sha256(msgspec.msgpack.encode(described)).hexdigest()[:32]


class PayloadOffer(Body, frozen=True):
    """How to open one stream of payloads to an aggregator; see `scavenger.train.transport.payload_streams`.

    Attributes:
        port: The port, at the address by which the worker has reached the aggregator.
        ticket: Identifies the offer; it is sent unencrypted.
        to_aggregator, to_worker: The keys of the two directions.
    """

    port: int
    ticket: bytes
    to_aggregator: bytes
    to_worker: bytes


class RestorePoint(Body, frozen=True):
    """Begin with a checkpoint instead of a worker's initial weights.

    Attributes:
        url: Location of the job's checkpoints.
        folder: The chosen one, whose parts were verified; empty for the newest that passes verification.
    """

    url: str
    folder: str = ""


class CheckpointPlan(Body, frozen=True):
    """Where and how often to write checkpoints: every so many seconds or steps; 0 for no such limit."""

    url: str
    every_s: float
    every_steps: int
