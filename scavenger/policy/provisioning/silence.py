"""Whether silent VMs have failed, or the coordinator's own network has: silences in, a verdict out.

While the leader hears a single VM, its own network works, and VMs that are silent have failed, however many they are.
Where it hears none of them, be that one or a hundred, it is likelier this side that hears nothing, and what runs on
them goes on without it. So a broken network is distinguished from failed VMs, and nothing is given up for it. That a VM
has ended is the cloud's to say:

============================================  ======================  ==========================================
network, as of the last look                  seen                    verdict
============================================  ======================  ==========================================
sound                                         all silent `doubt_s`    broken from now on
sound                                         some silent `lost_s`    those are lost
broken                                        all still silent        nothing is lost
broken                                        one is heard            mending from now on
mending                                       all silent `doubt_s`    broken, since it broke first
mending for less than `mend_s`                some still silent       nothing is lost: connections come back one by one
mending for `mend_s`, or all are heard        -                       sound
any                                           silent `keep_s`         lost: what ran there has ended itself by then
============================================  ======================  ==========================================
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """Limits on the silence of VMs.

    Attributes:
        doubt_s: Silence of all VMs after which the network is in doubt.
        lost_s: Silence after which a VM is lost while the network is sound.
        keep_s: Silence after which a VM is lost whatever the network does.
        mend_s: How long the VMs that are still silent may take, once one is heard again.
    """

    doubt_s: float = 3.0
    lost_s: float = 15.0
    keep_s: float = 255.0
    mend_s: float = 20.0

    def __post_init__(self) -> None:
        if not 0.0 < self.doubt_s <= self.lost_s <= self.keep_s:
            raise ValueError(f"silences must grow: {self.doubt_s}, {self.lost_s}, {self.keep_s} s")


@dataclass(frozen=True, slots=True)
class Network:
    """State of the local network, inferred from the silence of VMs.

    Attributes:
        broken_since_s: When a VM was last heard, monotonic; None while it is sound.
        mending_since_s: When a VM was heard again; None unless it is mending.
    """

    broken_since_s: float | None = None
    mending_since_s: float | None = None

    @property
    def is_sound(self) -> bool:
        """Whether the network works, so that the silence of a VM is evidence of its failure."""
        return self.broken_since_s is None

    @property
    def is_broken(self) -> bool:
        """Whether the network is broken, since all VMs are silent."""
        return not self.is_sound and self.mending_since_s is None


SOUND = Network()


def is_none_heard(silent: Collection[object], vms: Collection[object]) -> bool:
    """Whether all VMs are silent, so that the local network may be the cause; also if there is only one VM."""
    return bool(vms) and len(silent) == len(vms)


def judge_silence(
    network: Network, silent_s: Mapping[str, float], limits: SilenceLimits, now_s: float
) -> tuple[Network, frozenset[str]]:
    """Judge the silence of VMs; see the table of the module.

    Args:
        network: State at the last look.
        silent_s: Time since the last message of each VM that has joined, by its intent.
        now_s: Monotonic time, seconds.

    Returns:
        The present state of the network, and the VMs that are lost.
    """
    doubtful = {vm for vm, seconds in silent_s.items() if seconds >= limits.doubt_s}
    kept_too_long = frozenset(vm for vm, seconds in silent_s.items() if seconds >= limits.keep_s)
    if is_none_heard(doubtful, silent_s):
        since_s = network.broken_since_s
        if since_s is None:
            since_s = now_s - min(silent_s[vm] for vm in doubtful)
        return Network(since_s), kept_too_long
    if not network.is_sound:
        mending_s = now_s if network.mending_since_s is None else network.mending_since_s
        if doubtful and now_s - mending_s < limits.mend_s:
            return Network(network.broken_since_s, mending_s), kept_too_long
    return SOUND, frozenset(vm for vm in doubtful if silent_s[vm] >= limits.lost_s)
