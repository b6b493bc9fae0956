"""Admits the agents of VMs at the leader's socket, each with the one-time key of its VM."""

from __future__ import annotations

from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.agent_socket import AgentSocket
from scavenger.train.engines.vm.values import AgentSession, JoiningAgent, MisbehavedError, one_time_keys
from scavenger.version import __version__


class Admission:
    """The keys of a job's VMs; see `scavenger.train.engines.vm.agent_server`.

    Args:
        socket: The leader's socket, at which keys are admitted and revoked.
        boot_key: Secret from which one-time keys are derived.
        verified: Whether an agent is admitted only after `accept`, when its VM's identity has been verified.
    """

    def __init__(self, socket: AgentSocket, boot_key: bytes, *, verified: bool) -> None:
        self._socket, self._boot_key, self._verified = socket, boot_key, verified

    def expect(self, intent: str) -> None:
        """Allow the VM of an intent to join."""
        self._socket.admit(f"join.{intent}", one_time_keys(self._boot_key, intent)[0])

    def answer(self, session: AgentSession, request: m.Join) -> m.Admitted | m.Refused | None:
        """Decide about a request to join, made with the one-time key of a VM.

        Returns:
            The answer; None while the VM's identity is being verified, since the agent repeats its request.

        Raises:
            MisbehavedError: If the key was used before, for another public key.
        """
        link, intent = session.link, session.spec.intent
        if (request.protocol, request.version) != (m.PROTOCOL, __version__):
            return m.Refused(
                f"VM {intent} cannot join: it has Scavenger {request.version} "
                f"(protocol {request.protocol}), and this is {__version__} (protocol {m.PROTOCOL})"
            )
        known = link.key or (link.candidate.public_key if link.candidate else "")
        if known not in ("", request.public_key):
            raise MisbehavedError(
                "has a one-time key that was used a second time, with another public key: another party has read its "
                "user data, or its agent was started again"
            )
        if not link.key:
            candidate = JoiningAgent(intent, request.public_key, request.identity)
            if self._verified:
                link.candidate = candidate
                return None
            self.accept(session, candidate)
        return m.Admitted()

    def accept(self, session: AgentSession, candidate: JoiningAgent) -> None:
        """Admit an agent under the key that it has generated."""
        session.link.key, session.link.candidate = candidate.public_key, None
        self._socket.admit(f"vm.{candidate.intent}", candidate.public_key)

    def revoke(self, intent: str) -> None:
        """Revoke all keys of a VM."""
        for name in ("join", "vm"):
            self._socket.shut(f"{name}.{intent}")
