"""Messages of the control channel to workers and aggregators, from the coordinator or the supervisor."""

from __future__ import annotations

from typing import Annotated

import msgspec

from scavenger.elastic.initialization import Endpoint
from scavenger.elastic.migration import BucketMap
from scavenger.elastic.steps import Announce
from scavenger.train.transport.messages.values import (
    CheckpointPlan,
    Manifest,
    RestorePoint,
    Tagged,
)


class Recorded(Tagged, frozen=True):
    """The supervisor's answer to `CheckpointReady`: all steps up to `step` are stored."""

    step: int


class RollCall(Tagged, frozen=True):
    """A coordinator takes over the job and asks all processes for their states."""

    token: int


class Prepare(Tagged, frozen=True):
    """To a worker whose manifest fits: prepare to train. If `initial`, its initial weights become the job's."""

    manifest: Manifest
    aggregators: tuple[Endpoint, ...]
    initial: bool


class Reconnect(Tagged, frozen=True):
    """To workers and aggregators: an aggregator was restarted and has another address now."""

    aggregators: tuple[Endpoint, ...]


class Initialise(Tagged, frozen=True):
    """To an aggregator: load your model shard; sent once a worker has described the model and seeded its weights.

    Attributes:
        manifest: The model.
        aggregators: The addresses of all aggregators.
        restore: The checkpoint to begin with; None for initial weights.
        checkpoint: The checkpoint plan; None for none.
        recover: Whether to continue with the state in the block, if its records show one.
        seeder: The worker to ask for the initial weights; empty if they are in the block.
        number: The number of the newest view.
        token: The coordinator's token.
        quarantined: Samples that are left out, besides those that a checkpoint lists.
        map: The newest map of buckets that is known; None for the one that follows from the model alone. What the
            block's records say is newer.
        in_place: Whether every aggregator of the job has memory of its own, so that the optimizer's state may be
            updated in place.
    """

    manifest: Manifest
    aggregators: tuple[Endpoint, ...]
    restore: RestorePoint | None
    checkpoint: CheckpointPlan | None
    recover: bool
    seeder: str
    number: int
    token: int
    quarantined: tuple[int, ...]
    map: BucketMap | None = None
    in_place: bool = False


class MoveBuckets(Tagged, frozen=True):
    """To the sequencer: buckets are wanted elsewhere; repeated until `Migrated` answers.

    Attributes:
        request: Number of the request; a later one replaces those before it.
        holders: The aggregator that is to hold each bucket.
    """

    request: int
    holders: tuple[int, ...]


class Announcement(Tagged, frozen=True):
    """To the sequencer: the next view."""

    view: Announce


class VerdictGiven(Tagged, frozen=True):
    """The answer to an `EpochReport`, or to a `BatchReport`.

    Attributes:
        epoch: The epoch; -1 before the first.
        stop: Whether to stop.
        keep_best: Whether to keep this epoch's weights as the best so far.
        rate_scale: The learning rate that callbacks have set, over the one that the model was compiled with.
        step: The step within the epoch; None at its end.
    """

    epoch: int
    stop: bool
    keep_best: bool
    rate_scale: float = 1.0
    step: int | None = None


class RunCallbacks(Tagged, frozen=True):
    """To a worker: run the callbacks for an epoch or step that has ended, and for the beginning of the next.

    Attributes:
        number: Distinguishes requests; it is repeated with a request that is sent again.
        epoch: The epoch; -1 at the beginning of training.
        step: The last step, whose weights the callbacks see.
        metrics: The epoch's metrics by Keras's names, if it has ended.
        epochs: Number of epochs after which training ends at the latest.
        last: Whether no epoch follows, whatever the callbacks say.
        state: State of the callbacks after the run before, as `CallbacksRun` has it; empty before the first.
        rate_scale: As the run before has set it.
        batch: Number of the step within its epoch, from 0, whose hooks are to be called; None if they were before.
        ends_epoch: Whether the epoch has ended.
        sums: Of a step within its epoch, the sums of the metric variables; see `BatchReport`.
    """

    number: int
    epoch: int
    step: int
    metrics: dict[str, float]
    epochs: int
    last: bool
    state: str
    rate_scale: float
    batch: int | None = None
    ends_epoch: bool = True
    sums: tuple[bytes, ...] = ()

    def repeats(self, before: RunCallbacks) -> bool:
        """Whether this is the same request as another one, whatever their numbers."""
        # encoded, because a metric may be NaN, which does not equal itself
        one, other = (
            msgspec.msgpack.encode(msgspec.structs.replace(each, number=0)) for each in (self, before)
        )
        return one == other


class Finish(Tagged, frozen=True):
    """To the sequencer: stop, and finalise the weights.

    Attributes:
        best: Whether to use the best weights instead of the last ones.
        checkpoint: Whether to write a checkpoint first, so that the job can be resumed.
    """

    best: bool
    checkpoint: bool


class Save(Tagged, frozen=True):
    """To a worker: write the model with the weights of `step` to `path`, or send it if `path` is empty.

    `lr_scale` is the factor on the optimizer's learning rate. If training ends, `callbacks` is their last run, whose
    `on_train_end` follows.
    """

    path: str
    step: int
    lr_scale: float = 1.0
    callbacks: RunCallbacks | None = None


class Forget(Tagged, frozen=True):
    """To aggregators: the worker is gone, and no process will read its gradients any more."""

    worker: str


class Admit(Tagged, frozen=True):
    """To an aggregator: accept these processes on the data channel, by name, each with its public key."""

    keys: dict[str, Annotated[str, msgspec.Meta(min_length=40, max_length=40)]]


class Quit(Tagged, frozen=True):
    """Order for a process to end."""


RequestMessage = (
    Admit
    | Announcement
    | Finish
    | Forget
    | Initialise
    | MoveBuckets
    | Prepare
    | Quit
    | Reconnect
    | Recorded
    | RollCall
    | RunCallbacks
    | Save
    | VerdictGiven
)
