"""TensorBoard: event files. Its own writer would import TensorFlow where that is installed; its records do not."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import IO, Any

from scavenger.control.tracking.base import TrackedRun


class TensorboardTracker:
    """Event files in a folder of the job's, within one of its study if it has one."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._records: Any = None

    def begin(self, run: TrackedRun) -> None:
        """See `Tracker`; steps that are trained again replace those of the earlier attempt."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        where = run.folder / self._folder / (run.group or "") / f"{run.name}-{run.job_id[:8]}"
        where.mkdir(parents=True, exist_ok=True)
        attempt = sum(1 for _ in where.glob("events.out.tfevents.*"))
        name = (
            f"events.out.tfevents.{int(datetime.now(UTC).timestamp()):010d}.{socket.gethostname()}.{attempt}"
        )
        self._file = (where / name).open("ab")
        self._records = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        if run.step is None:
            rows = "\n".join(f"|{name}|{value}|" for name, value in run.params.items())
            self._text("parameters", f"|parameter|value|\n|-|-|\n{rows}", 0)
        else:
            self._write(step=run.step + 1, session_log=SessionLog(status=SessionLog.START))
        self._file.flush()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        figures = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=Summary(value=figures))

    def event(self, step: int, name: str, text: str) -> None:
        self._text(name, text, step)

    def end(self, *, succeeded: bool, state: str) -> None:
        self._text("state", state, 0)
        if self._file is not None:
            self._file.close()

    def _text(self, name: str, text: str, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        shown = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        value = Summary.Value(tag=f"{name}/text_summary", metadata=shown, tensor=tensor)
        self._write(step=step, summary=Summary(value=[value]))

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(wall_time=datetime.now(UTC).timestamp(), **fields).SerializeToString())
        self._records.flush()
