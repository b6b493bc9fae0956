"""Entry point of a worker's further processes: `python -m scavenger.train.custom_loop.rank_process`."""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from multiprocessing.connection import Connection

from scavenger import logs
from scavenger.masking import keep_secret, mask
from scavenger.sdk import loop as sdk
from scavenger.train.configuration import read_configuration
from scavenger.train.custom_loop.ranks import OtherRank, RankConfiguration
from scavenger.train.custom_loop.worker import code_of
from scavenger.train.failpoints import load_failpoints
from scavenger.train.failure import describe_failure


def main() -> int:
    """Run the script as one of several processes of a worker; returns the exit status."""
    config = read_configuration(RankConfiguration)
    logs.write_utf8()
    keep_secret(config.of.secrets.values())
    faulthandler.enable()
    logs.set_up(
        f"{config.of.name}.{config.rank}",
        logs.LogChoice(config.of.logs.level, config.of.logs.format),
        job_id=config.of.logs.job_id,
    )
    load_failpoints(f"{config.of.name}.{config.rank}")
    link = OtherRank(config, Connection(config.connection))
    try:
        sdk.connect(link)
        code_of(config.of, rank=config.rank, port=config.port).function()
    except sdk.Left:
        return 0
    except EOFError:  # rank 0 is gone
        return 1
    except (Exception, SystemExit) as error:  # noqa: BLE001 - every exception of user code is reported
        sys.stderr.write(mask(traceback.format_exc()))
        kind, words = describe_failure(error, config.of.job_dir)
        link.failed(kind, mask(words))
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # threads of a group whose other members have ended may still wait
