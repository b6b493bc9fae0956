"""A provider of a package outside: what is known of it by its name."""

from __future__ import annotations

from pydantic import Field

from scavenger.providers import Capabilities, CloudSettings, ProviderKind


class AcmeSettings(CloudSettings):
    """Keys of `[acme]` in the settings file, and of `infra` beside `at`."""

    account: str = Field(default="", description="Whose machines they are.")


KIND = ProviderKind(
    "acme",
    "acme_scavenger.cloud:ADAPTER",
    Capabilities(zones=True, spot=False),
    region=r"[a-z]+-[0-9]",
    zone=r"[a-z]",
    examples=("eu-1", "eu-1a"),
    settings=AcmeSettings,
)
