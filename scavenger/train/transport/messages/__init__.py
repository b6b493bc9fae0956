"""Messages between the processes of a job: msgpack structs, validated on arrival.

There are two channels, both ZeroMQ with CURVE: *control* (all processes through the supervisor's hub, mostly to the
coordinator) and *data* (workers and aggregators to aggregators). The socket identifies the sender. Between processes
of one host, messages carry no payloads; those are in the shared-memory block
(`scavenger.train.transport.shared_memory`). Between hosts, payloads have streams of their own
(`scavenger.train.transport.payload_streams`).
"""

from __future__ import annotations

from scavenger.train.transport.codec import Codec
from scavenger.train.transport.messages.coordination import (
    Brief,
    CoordinationMessage,
    Expel,
    Launched,
    ProcessEnded,
    ReleaseSpares,
    ResizeMembers,
    Rewind,
    Roster,
    ShardLost,
    Working,
)
from scavenger.train.transport.messages.data import (
    ApplyPart,
    AskBuckets,
    AskView,
    BucketsCopied,
    BucketsSent,
    Chunk,
    ChunkQuery,
    Contributed,
    CopyBuckets,
    DataMessage,
    Evaluation,
    ExpectPieces,
    Finalise,
    Finalised,
    Go,
    GradientBucket,
    Join,
    Joined,
    KeepBest,
    Lacking,
    MapTaken,
    Order,
    PartApplied,
    PartSaved,
    Pull,
    PullBuckets,
    SavePart,
    Seed,
    Summarise,
    Summary,
    SumsFormed,
    TakeMap,
    TakeView,
)
from scavenger.train.transport.messages.reports import (
    AggregatorReady,
    BatchReport,
    Beat,
    CallbacksRun,
    CheckpointFailed,
    CheckpointReady,
    CheckpointWritten,
    Done,
    EpochReport,
    Failed,
    Hello,
    Initialised,
    MapChanged,
    MemoryExceeded,
    Migrated,
    Present,
    Ready,
    ReportMessage,
    SamplesQuarantined,
    Saved,
    SavedPart,
    Seeded,
    SequencerState,
    StepReport,
    Unsaved,
    ViewInstalled,
)
from scavenger.train.transport.messages.requests import (
    Admit,
    Announcement,
    Finish,
    Forget,
    Initialise,
    MoveBuckets,
    Prepare,
    Quit,
    Reconnect,
    Recorded,
    RequestMessage,
    RollCall,
    RunCallbacks,
    Save,
    VerdictGiven,
)
from scavenger.train.transport.messages.values import (
    AggregatorAddress,
    CheckpointPlan,
    LogSettings,
    Manifest,
    ProcessConfiguration,
    RestorePoint,
    SlotSpec,
    TensorSpec,
)

ControlMessage = CoordinationMessage | ReportMessage | RequestMessage
Message = ControlMessage | DataMessage

_codec: Codec[Message] = Codec(Message)
encode, decode = _codec.encode, _codec.decode
