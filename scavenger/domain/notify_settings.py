"""Receivers of notifications, the tables `[notify.NAME]` of the settings file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from scavenger.domain.forms import FrozenModel, fault
from scavenger.domain.notification import NotificationKind


class Webhook(FrozenModel):
    """A receiver of notifications, a table `[notify.NAME]` of the settings file.

    Attributes that end in `_from` name a variable of the environment, since what it holds is a secret.
    """

    url: str = Field(default="", description="Address that notifications are posted to.")
    url_from: str = Field(
        default="",
        description="Variable of the environment with the address, if that is a secret, as Slack's is.",
    )
    secret_from: str = Field(
        default="",
        description="Variable of the environment with the secret that notifications are signed with.",
    )
    format: Literal["json", "slack"] = Field(
        default="json", description="`slack` for the incoming webhooks of Slack, Mattermost and the like."
    )
    events: list[NotificationKind] = Field(
        default_factory=list, description="What is told; everything by default."
    )
    private: bool = Field(
        default=False,
        description="Whether the address may be in a private network or on this machine, where also http is allowed.",
    )

    @model_validator(mode="after")
    def _has_one_address(self) -> Webhook:
        if bool(self.url) == bool(self.url_from):
            raise fault("must have either url or url_from")
        if self.url and not self.url.startswith(("https://", "http://" if self.private else "https://")):
            raise fault("must begin with https://; http:// needs private = true", "url")
        return self

    def wants(self, kind: NotificationKind) -> bool:
        """Whether this is told."""
        return kind == "ping" or not self.events or kind in self.events
