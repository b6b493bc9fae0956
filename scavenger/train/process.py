"""Entry point of a job's processes: `python -m scavenger.train.process`, process configuration on standard input."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import traceback
from typing import Any

import zmq

from scavenger import logs
from scavenger.errors import TrainingCodeError
from scavenger.masking import keep_secret, mask
from scavenger.train.configuration import read_configuration
from scavenger.train.failpoints import load_failpoints
from scavenger.train.failure import describe_failure, describe_limit, masked_frames
from scavenger.train.later_imports import later
from scavenger.train.transport import messages as m
from scavenger.train.transport.sockets import HubConnection

_LINGER_MS = 500

log = logging.getLogger("scavenger.train.process")  # this module is `__main__`


def main() -> int:
    """Run the role in the process configuration until it ends; returns the exit status."""
    config = read_configuration(m.ProcessConfiguration)
    logs.write_utf8()
    if config.role == "tenant":
        from scavenger.train.pool.tenant import serve_tenant

        return serve_tenant(config)
    if config.role == "node":
        from scavenger.train.engines.ray.node import serve_node

        return serve_node(config)
    keep_secret(config.secrets.values())
    # a watchdog's SIGUSR1 shows where the training code hangs
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    chosen = logs.LogChoice(config.logs.level, config.logs.format)
    logs.set_up(config.name, chosen, job_id=config.logs.job_id)
    log.info("%s begins, process %d", config.role, os.getpid())
    load_failpoints(config.name)
    context = zmq.Context()
    keys = (config.public_key.encode(), config.secret_key.encode())
    hub = HubConnection(context, config.name, config.coordinator, config.server_key.encode(), keys)
    status = 0
    try:
        _serve(config, context, hub)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - every exception of user code is reported
        sys.stderr.write(mask(traceback.format_exc()))
        limit = describe_limit(error)
        kind, message = ("limit", limit) if limit else ("internal", f"{type(error).__name__}: {error}")
        if config.role in ("loop", "worker") or isinstance(error, TrainingCodeError):
            kind, message = describe_failure(error, config.job_dir)
        failed = m.Failed(kind, mask(message), masked_frames(error, config.job_dir))
        if config.role == "coordinator":
            hub.send_to("", failed)
        else:
            hub.send(failed)
        status = 1
    log.info("%s ends with status %d", config.role, status)
    hub.close()
    context.destroy(linger=_LINGER_MS)  # also closes sockets that a failure has left open
    return status


def _serve(config: m.ProcessConfiguration, context: Any, hub: HubConnection) -> None:
    """Run the role until it ends."""
    match config.role:
        case "aggregator":
            from scavenger.train.aggregation.aggregator import Aggregator

            Aggregator(context, config, hub).run()
        case "coordinator":
            from scavenger.train.coordinator.coordinator import Coordinator

            Coordinator(config, hub).run()
        case "command":
            from scavenger.train.command.host import serve as serve_command

            serve_command(context, config, hub)
        case "loop":
            from scavenger.train.custom_loop.worker import serve

            serve(context, config, hub)
        case _:
            with later():
                from scavenger.train.worker.worker import Worker

            Worker(context, config, hub).run()


if __name__ == "__main__":
    sys.exit(main())
