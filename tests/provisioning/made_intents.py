"""Intents of VMs as tests write them: what a test says nothing of is as here."""

from __future__ import annotations

from typing import Any

from nested import built

from scavenger.domain.intent import Intent
from scavenger.domain.vm import VmRequest

_ASKED: dict[str, Any] = {
    "token": "t0",
    "owner": "me",
    "job_id": "job",
    "slot": 0,
    "generation": 0,
    "vm": "small",
    "zone": "a",
    "spot": False,
    "run_max_s": 3600.0,
}
_INTENT: dict[str, Any] = {
    "provider": "sim",
    "region": "r",
    "price_usd_per_hour": 0.36,
    "reserved_usd": 0.1,
}


def made_request(**asked: Any) -> VmRequest:
    """The launch of a VM; `asked` are its fields, and those of its tags, template and settings."""
    return built(VmRequest, **_ASKED | asked)


def made_intent(asked: dict[str, Any], /, **more: Any) -> Intent:
    """An intent; `asked` are fields of its request, `more` its own and those of its charges."""
    return built(Intent, request=made_request(**asked), **_INTENT | more)
