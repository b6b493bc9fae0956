"""Which silent VMs have failed, and whether the leader's own network is the likelier cause."""

from __future__ import annotations

from collections.abc import Collection

from scavenger.policy.provisioning.silence import SOUND, SilenceLimits, is_none_heard, judge_silence
from scavenger.train.engines.vm.values import LEADER_SILENT_S, AgentSession

LOST_S = 15.0
"""Silence after which the processes of a VM count as lost, unless all VMs are silent."""
LATELY_S = 3.0
"""Silence after which a VM gets no new process and `renew` does not wait for it; agents send four times a second."""
UNHEARD_S = 0.75
"""Silence of all agents from which on that of processes proves nothing. Agents send four times a second, and a process
may be silent for twice as long as this while others wait for it. What TCP has lost as the link broke comes up to 0.8 s
after the link is back, so breaks of less than a second count, too."""
KEEP_S = LEADER_SILENT_S + LOST_S
"""Silence after which processes count as lost even in an outage: the VM's agent has ended them by then."""
_PAUSE_S = 1.0
"""Longest time between two polls; after a longer pause of this process, silence is not held against VMs."""


class SilenceWatch:
    """Judges the silence of VMs.

    Args:
        lost_s: Silence after which the processes of a VM count as lost.
        now: Monotonic seconds.

    Attributes:
        limits: How long VMs may be silent.
        unheard: Whether all VMs with processes are silent, too briefly to tell whether the network is broken.
    """

    def __init__(self, lost_s: float, now: float) -> None:
        self.limits = SilenceLimits(min(LATELY_S, 0.75 * lost_s), lost_s, max(KEEP_S, lost_s))
        self._network = SOUND
        self._turned_at = now
        self.unheard = False

    @property
    def in_doubt(self) -> bool:
        """Whether all VMs are silent, or were until recently, so that the network is the likely cause."""
        return not self._network.is_sound

    def started(self, now: float) -> None:
        """Begin to listen."""
        self._turned_at = now

    def allow_for_pause(self, sessions: Collection[AgentSession], now: float) -> None:
        """Do not hold the time against VMs in which this process did not listen."""
        pause = now - self._turned_at
        self._turned_at = now
        if pause > _PAUSE_S:
            for session in sessions:
                session.link.heard_at += pause

    def judge(self, sessions: Collection[AgentSession], now: float) -> tuple[str, list[AgentSession]]:
        """Judge all VMs.

        Returns:
            A message for users about the network, or an empty one, and the VMs whose processes are lost.
        """
        silent_s, lost = dict[str, float](), list[AgentSession]()
        for session in sessions:
            seconds = now - session.link.heard_at
            if session.ending or session.shut_out or session.preemption is not None:
                if seconds >= self.limits.lost_s:
                    lost.append(session)  # an agent that was about to end is expected to be silent
            elif session.link.route and (session.launches or seconds < self.limits.doubt_s):
                # others have no process, and may have been returned to the cloud
                silent_s[session.spec.intent] = seconds
        used = {session.spec.intent for session in sessions if session.launches} & silent_s.keys()
        self.unheard = is_none_heard({vm for vm in used if silent_s[vm] >= UNHEARD_S}, used)
        before = self._network
        self._network, judged = judge_silence(before, silent_s, self.limits, now)
        alarm = ""
        if self._network.is_broken and before.is_sound:
            silent = sum(seconds >= self.limits.doubt_s for seconds in silent_s.values())
            alarm = (
                f"not hearing the VMs ({silent} of {len(silent_s)} are silent): training goes on there, and nothing is "
                f"given up for {self.limits.keep_s:.0f} s, unless the cloud says that they are gone"
            )
        elif before.broken_since_s is not None and before.is_broken and not self._network.is_broken:
            alarm = f"hearing the VMs again, after {now - before.broken_since_s:.0f} s"
        by_intent = {session.spec.intent: session for session in sessions}
        return alarm, [*(by_intent[intent] for intent in judged), *lost]


def silent_for(session: AgentSession, now: float) -> str:
    """Describe the loss of a process by the silence of its VM."""
    return (
        f"was lost: its VM ({session.link.address}) has been silent for {now - session.link.heard_at:.0f} s"
    )
