"""What workers and aggregators run: `python -m scavenger.train.process`, bootstrap on standard input."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback

import msgspec
import zmq

from scavenger.train import messages as m
from scavenger.train.wire import Dealer, new_keys

__all__ = ["main"]


def _bootstrap() -> m.Bootstrap:
    """Read the first line of standard input, and end with the process at its other end.

    That one holds the pipe open as long as it lives. The kernel's own signal on a parent's death would not
    do: it comes when the *thread* that started the process ends.
    """
    pipe = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # the training code finds an empty standard input
    line = pipe.readline()

    def watch() -> None:
        while pipe.read(1):
            pass
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="scavenger-parent", daemon=True).start()
    return msgspec.json.decode(line, type=m.Bootstrap)


def _limit_threads(threads: int) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(threads)
    os.environ["TF_NUM_INTEROP_THREADS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["KERAS_BACKEND"] = "tensorflow"


def main() -> int:
    """Run one role until it is told to quit; returns the exit status."""
    boot = _bootstrap()
    # a watchdog's SIGUSR1 shows where the training code hangs
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _limit_threads(boot.threads)
    context = zmq.Context()
    keys = (boot.public_key.encode(), boot.secret_key.encode())
    control = Dealer(context, boot.name, boot.coordinator, boot.server_key.encode(), keys)
    status = 0
    try:
        if boot.role == "aggregator":
            from scavenger.train.aggregator import Aggregator

            Aggregator(context, control, keys, boot.memory_fd).run()
        else:
            from scavenger.train.worker import Worker

            Worker(context, boot, control, new_keys()).run()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever user code raises is told
        traceback.print_exc()
        kind, message = "internal", f"{type(error).__name__}: {error}"
        if boot.role == "worker":
            from scavenger.train.worker import describe_failure

            kind, message = describe_failure(error, boot.job_dir)
        control.send(m.Failed(kind, message))
        status = 1
    control.close()
    context.term()
    return status


if __name__ == "__main__":
    sys.exit(main())
