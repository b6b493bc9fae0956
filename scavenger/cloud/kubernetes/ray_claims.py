"""Who has asked for which pod of a worker group of a RayCluster: values in, values out.

KubeRay keeps as many pods in a group as its `replicas` says, and makes another one for each that is lost. It deletes
those that `workersToDelete` names, and if there are still more than `replicas`, any of the others. So a pod can be
asked for by a number alone, and given back by its name.

The record of that is one annotation of the RayCluster, and is written with `replicas`, `maxReplicas` and
`workersToDelete` in one step. What follows from what is seen of the group:

=============================  =======================================================================================
seen                           record
=============================  =======================================================================================
a pod that nobody has          the newest beyond those that the group had before go to claims without one, oldest first
a claim's pod is gone          the claim is gone; KubeRay makes another pod, which is taken by the next claim
... and no claim comes         that pod is named for its end as soon as it is there
a claim leaves, with a pod     `replicas` is one lower, and the pod is named until it is gone
a claim leaves, without one    `replicas` stays until the pod is there, for at most `COMES_S`
another `replicas` than ours   who wrote it has more or fewer pods besides the claimed ones
=============================  =======================================================================================

So `replicas` never gets lower than the pods that are not named, and KubeRay has no choice to make.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

COMES_S = 30.0
"""How long a pod may take to be there, after which one that nobody waits for is not expected any more."""
GONE_MAX = 100
"""Claims that are kept after their end, so that a token starts no second pod."""


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """One pod that was asked for.

    Attributes:
        owner, job, slot, generation: See `VmTags`.
        vm: Its size.
        asked_at: When it was asked for, seconds of the epoch.
        pod: Its name; empty until there is one.
        state: `held`; `leaving`, which it is to be given back; `gone`.
        ended_at: Since when it is leaving or gone.
        reason: Why it is gone, if nobody gave it back.
    """

    owner: str
    job: str
    slot: int
    generation: int
    vm: str
    asked_at: float
    pod: str = ""
    state: Literal["held", "leaving", "gone"] = "held"
    ended_at: float = 0.0
    reason: str = ""


class Claims(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a group.

    Attributes:
        others: Pods that the group has besides the claimed ones.
        most: Its `maxReplicas` without claims; None if it has none.
        wrote: The `replicas` that were written last.
        claims: By token.
        vacant: Since when each pod is expected that nobody waits for, in the place of a claimed one that was lost.
        spare: Names of pods that came so, and are to end.
    """

    others: int = 0
    most: int | None = None
    wrote: int = 0
    claims: dict[str, Claim] = {}
    vacant: tuple[float, ...] = ()
    spare: tuple[str, ...] = ()

    @property
    def living(self) -> bool:
        """Whether pods are claimed, or are still to end."""
        return bool(self.vacant or self.spare) or any(one.state != "gone" for one in self.claims.values())


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """The numbers of a group, as its RayCluster has them; None for those that are not given."""

    replicas: int
    least: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod of a group.

    Attributes:
        created_at: Seconds of the epoch.
        ended: Whether its containers have ended.
        leaves: Whether it is being deleted.
        reason: Why it ends, if that is known.
    """

    name: str
    created_at: float
    ended: bool = False
    leaves: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GroupWanted:
    """What to write of a group: `replicas`, `maxReplicas` and `workersToDelete`."""

    replicas: int
    most: int | None
    named: tuple[str, ...]


def begun(group: GroupSeen) -> Claims:
    """The record of a group in which nothing was claimed yet; its own limits hold for what it has."""
    others = max(group.replicas, group.least or 0)
    others = others if group.most is None else min(others, group.most)
    return Claims(others, group.most, group.replicas)


def wanted(record: Claims) -> GroupWanted:
    """What to write of a group, so that it is as recorded."""
    waiting = sum(
        one.state == "held" or (one.state == "leaving" and not one.pod) for one in record.claims.values()
    )
    replicas = record.others + waiting + len(record.vacant)
    most = None if record.most is None else max(record.most, replicas)
    named = (one.pod for one in record.claims.values() if one.state == "leaving" and one.pod)
    return GroupWanted(replicas, most, tuple(sorted({*named, *record.spare})))


def claimed(record: Claims, token: str, claim: Claim) -> Claims:
    """The record with another claim, which takes a pod that is expected anyway, if there is one."""
    return msgspec.structs.replace(record, claims={**record.claims, token: claim}, vacant=record.vacant[1:])


def left(record: Claims, token: str, now: float) -> Claims:
    """The record in which a claim gives its pod back; the same if it does already, or there is none."""
    claim = record.claims.get(token)
    if claim is None or claim.state != "held":
        return record
    gone = msgspec.structs.replace(claim, state="leaving", ended_at=now)
    return msgspec.structs.replace(record, claims={**record.claims, token: gone})


def settled(record: Claims, group: GroupSeen, pods: Iterable[PodSeen], now: float) -> Claims:
    """The record that follows from what is seen; see the table of the module."""
    there = {pod.name: pod for pod in pods}
    claims, lost = dict(record.claims), 0
    for token, claim in record.claims.items():
        pod = there.get(claim.pod)
        late = not claim.pod and claim.state == "leaving" and now - claim.ended_at > COMES_S
        if claim.state == "gone" or (not late and (not claim.pod or (pod is not None and not pod.ended))):
            continue
        lost += claim.state == "held"
        reason = claim.reason or ("" if pod is None else pod.reason)
        claims[token] = msgspec.structs.replace(
            claim, state="gone", ended_at=now, reason=reason if claim.state == "held" else ""
        )
    vacant = (*(since for since in record.vacant if now - since <= COMES_S), *[now] * lost)
    spare = tuple(name for name in record.spare if name in there)
    others = max(0, record.others + group.replicas - record.wrote)
    taken = {*(one.pod for one in claims.values() if one.pod), *spare}
    free = [pod for pod in there.values() if pod.name not in taken and not (pod.ended or pod.leaves)]
    free.sort(key=lambda pod: (-pod.created_at, pod.name))
    fresh = free[: max(0, len(free) - others)]
    for token, claim in sorted(claims.items(), key=lambda one: (one[1].state != "held", one[1].asked_at)):
        if fresh and claim.state != "gone" and not claim.pod:
            claims[token] = msgspec.structs.replace(claim, pod=fresh.pop().name)
    unwanted = [fresh.pop().name for _ in range(min(len(fresh), len(vacant)))]
    return Claims(
        others,
        record.most,
        group.replicas,
        _recent(claims),
        vacant[len(unwanted) :],
        (*spare, *unwanted),
    )


def _recent(claims: dict[str, Claim]) -> dict[str, Claim]:
    """Without the oldest of those that are gone."""
    gone: Sequence[str] = sorted(
        (token for token, one in claims.items() if one.state == "gone"),
        key=lambda token: claims[token].ended_at,
    )
    dropped = set(gone[: max(0, len(gone) - GONE_MAX)])
    return {token: one for token, one in claims.items() if token not in dropped}
