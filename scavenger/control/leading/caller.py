"""The address under which this machine is seen by VMs: the only one from which they may be logged in to."""

from __future__ import annotations

import ipaddress
import urllib.request
from collections.abc import Mapping

from scavenger.errors import ConfigurationError

CALLER_VARIABLE = "SCAVENGER_CALLER"
"""Environment variable with the networks from which the command reaches a leader's VM, as CIDR, separated by commas."""
_ASKED = "https://checkip.amazonaws.com/"
"""Amazon's own page for this, which answers with the caller's address."""
_ANSWER_S = 10.0


def caller_networks(environment: Mapping[str, str], *, page: str = _ASKED) -> tuple[str, ...]:
    """The networks from which this machine reaches VMs, as CIDR: those that are set, or its address in the internet.

    Args:
        environment: Environment variables.
        page: A page that answers with the caller's address.

    Raises:
        ConfigurationError: What is set is no network, or the address cannot be found out.
    """
    text = environment.get(CALLER_VARIABLE, "")
    if not text:
        try:
            with urllib.request.urlopen(page, timeout=_ANSWER_S) as answer:  # noqa: S310 - a fixed page
                text = answer.read(100).decode().strip()
            return (_network(str(ipaddress.IPv4Address(text))),)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"{page} does not tell this machine's address ({error}), which alone may log in to the leader's VM: "
                f"set {CALLER_VARIABLE} to it, such as 203.0.113.7/32"
            ) from error
    try:
        return tuple(_network(one.strip()) for one in text.split(","))
    except ValueError as error:
        raise ConfigurationError(f"{CALLER_VARIABLE}={text}: {error}") from None


def _network(text: str) -> str:
    network = ipaddress.IPv4Network(text)
    if network.prefixlen == 0:
        raise ValueError("the whole internet may not log in; name the networks of your own machines")
    return str(network)
