"""One thing that was checked for the user: what was found, and how to fix it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CheckStatus = Literal["ok", "warn", "fail"]
"""`warn`: jobs run, with a disadvantage that `fix` removes; `fail`: jobs cannot run."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked.

    Attributes:
        name: The thing.
        found: What was found.
        fix: What to do about it; empty if nothing needs to be done.
    """

    name: str
    status: CheckStatus
    found: str
    fix: str = ""
