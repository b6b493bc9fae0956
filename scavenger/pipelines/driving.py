"""Runs a job to its end within the program that asks for it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from scavenger.errors import ConfigurationError
from scavenger.train.engines.reaper import VARIABLE

if TYPE_CHECKING:
    from scavenger.control.jobs.job_run import JobRun
    from scavenger.domain.report import RunReport

__all__ = ["drive", "refuse_in_workers"]


def refuse_in_workers() -> None:
    """Refuse to run jobs in a process of a job, which would start itself again and again.

    Raises:
        ConfigurationError: If this is one.
    """
    if VARIABLE in os.environ:
        raise ConfigurationError(
            "a worker process ran this while it imported the module of its job; put what runs jobs under "
            'if __name__ == "__main__":, or into a file of its own'
        )


def drive(run: JobRun) -> RunReport:
    """Run a job; in the main thread, Ctrl-C (the stop button of a notebook) stops it in order.

    Raises:
        ScavengerError: If it cannot be started.
        KeyboardInterrupt: If it was stopped so; its processes have ended, and its end is on record.
    """
    if threading.current_thread() is not threading.main_thread():
        return run.run()
    reports: list[RunReport] = []
    errors: list[BaseException] = []
    ended = threading.Event()  # an interrupted `Thread.join` takes a running thread for ended (Python 3.11)

    def body() -> None:
        try:
            reports.append(run.run())
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            errors.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=body, name="scavenger-job")
    thread.start()
    interrupts = 0
    while not ended.is_set():
        try:
            ended.wait()
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts == 1:
                run.request_stop("interrupted")
            else:
                run.kill_now()
    if interrupts:
        raise KeyboardInterrupt
    if errors:
        raise errors[0]
    return reports[0]
