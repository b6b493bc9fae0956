"""All messages of the control channel: between the supervisor, the coordinator, workers and aggregators."""

from __future__ import annotations

from scavenger.train.transport.messages.coordination import (
    Brief,
    Ended,
    Expel,
    Launched,
    Release,
    Resize,
    Rewind,
    RollBack,
    Roster,
)
from scavenger.train.transport.messages.reports import (
    AggregatorReady,
    Beat,
    CheckpointFailed,
    CheckpointReady,
    CheckpointWritten,
    Done,
    EpochReport,
    Failed,
    Hello,
    Inform,
    Initialised,
    Present,
    Quarantined,
    Ready,
    Saved,
    SavedPart,
    Seeded,
    StepReport,
    Unsaved,
    ViewInstalled,
)
from scavenger.train.transport.messages.requests import (
    Announcement,
    Finish,
    Forget,
    Initialise,
    Prepare,
    Quit,
    Reconnect,
    Recorded,
    RollCall,
    Save,
    VerdictGiven,
)

__all__ = ["ControlMessage"]

ControlMessage = (
    Hello
    | Ready
    | Present
    | Beat
    | Failed
    | Saved
    | SavedPart
    | AggregatorReady
    | Seeded
    | Initialised
    | StepReport
    | EpochReport
    | ViewInstalled
    | Inform
    | Quarantined
    | Done
    | CheckpointWritten
    | CheckpointFailed
    | CheckpointReady
    | Recorded
    | Unsaved
    | Brief
    | RollBack
    | Rewind
    | Launched
    | Ended
    | Resize
    | Release
    | Roster
    | Expel
    | RollCall
    | Prepare
    | Reconnect
    | Initialise
    | Announcement
    | VerdictGiven
    | Finish
    | Save
    | Forget
    | Quit
)
