"""Serves a pool in the background: `python -m scavenger.train.pool FOLDER IDLE_S`."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Leave whoever started this, then serve."""
    if os.fork():
        os._exit(0)
    os.chdir("/")
    from scavenger.errors import ScavengerError
    from scavenger.train.pool.serving import serve

    try:
        serve(Path(sys.argv[1]), idle_s=float(sys.argv[2]))
    except ScavengerError as error:  # as if two jobs have started a manager at the same moment
        print(error, file=sys.stderr)


if __name__ == "__main__":
    main()
