"""What workers and aggregators run: `python -m scavenger.train.process`, bootstrap on standard input."""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from scavenger import logs
from scavenger.train.failpoints import load_failpoints
from scavenger.train.failure import describe_failure
from scavenger.train.transport import messages as m
from scavenger.train.transport.sockets import HubConnection, new_keys

__all__ = ["main"]

_LINGER_MS = 500

log = logging.getLogger("scavenger.train.process")  # this module is `__main__`


def _ignore(line: bytes) -> None:
    """Nobody listens to the leader."""


def _bootstrap(hear: Callable[[bytes], None] = _ignore) -> m.ProcessConfiguration:
    """Read the first line of standard input, and end with the process at its other end.

    That one holds the pipe open as long as it lives. The kernel's own signal on a parent's death would not
    do: it comes when the *thread* that started the process ends.

    Args:
        hear: Called, in a thread of its own, with each further line (`Engine.tell`), without its end; what it
            raises is shown and changes nothing. As long as it does not return, the other end is not watched.
    """
    pipe = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # the training code finds an empty standard input
    line = pipe.readline()

    def watch() -> None:
        for told in pipe:
            try:
                hear(told.rstrip(b"\n"))
            except Exception:  # noqa: BLE001 - a life line holds whatever is said on it
                traceback.print_exc()
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="scavenger-parent", daemon=True).start()
    return msgspec.json.decode(line, type=m.ProcessConfiguration)


def main() -> int:
    """Run one role until it is told to quit; returns the exit status."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    boot = _bootstrap(lines.put)
    # a watchdog's SIGUSR1 shows where the training code hangs
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    chosen = logs.Settings(boot.logs.level, boot.logs.format)
    logs.set_up(boot.name, chosen, job_id=boot.logs.job_id)
    log.info("%s begins, process %d", boot.role, os.getpid())
    load_failpoints(boot.name)
    context = zmq.Context()
    if boot.role == "pool":
        return _serve_jobs(context, lines)
    keys = (boot.public_key.encode(), boot.secret_key.encode())
    seat = HubConnection(context, boot.name, boot.coordinator, boot.server_key.encode(), keys)
    status = 0
    try:
        _serve(boot, context, seat)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever user code raises is told
        traceback.print_exc()
        kind, message = "internal", f"{type(error).__name__}: {error}"
        if boot.role in ("loop", "worker"):
            kind, message = describe_failure(error, boot.job_dir)
        if boot.role == "coordinator":
            seat.send_to("", m.Failed(kind, message))
        else:
            seat.send(m.Failed(kind, message))
        status = 1
    log.info("%s ends with status %d", boot.role, status)
    seat.close()
    context.destroy(linger=_LINGER_MS)  # with whatever sockets a failure has left open
    return status


def _serve_jobs(context: Any, lines: queue.SimpleQueue[bytes]) -> int:
    """Serve the parts of jobs that the pool tells of, until the pool ends."""
    from scavenger.train.aggregation.pool import PooledShards

    seats = PooledShards(context)
    while True:
        seats.serve(lines.get())


def _serve(boot: m.ProcessConfiguration, context: Any, seat: HubConnection) -> None:
    """Run the role until it ends."""
    match boot.role:
        case "aggregator":
            from scavenger.train.aggregation.aggregator import Aggregator

            Aggregator(context, boot, seat).run()
        case "coordinator":
            from scavenger.train.coordinator.coordinator import Coordinator

            Coordinator(boot, seat).run()
        case "loop":
            from scavenger.train.custom_loop.worker import serve

            serve(context, boot, seat)
        case _:
            from scavenger.train.worker.worker import Worker

            Worker(context, boot, seat, new_keys()).run()


if __name__ == "__main__":
    sys.exit(main())
