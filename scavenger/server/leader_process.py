"""What the programs of leaders have in common: on a VM, and in a pod."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from scavenger.errors import ConfigurationError, ScavengerError


def exit_status_of(lead: Callable[[], None], sent: Path) -> int:
    """Lead; returns the exit status. What ends it is one line on the standard error.

    Args:
        sent: What the command has sent, for errors in it.
    """
    try:
        lead()
    except (OSError, msgspec.DecodeError) as error:
        print(f"{sent}: {error}", file=sys.stderr)
        return ConfigurationError.exit_code
    except ScavengerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0
