"""Claims on the pods of a worker group: before a KubeRay that is played, whatever dies, and whoever is late."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from scavenger.cloud.kubernetes.ray_claims import (
    COMES_S,
    GONE_MAX,
    Claim,
    Claims,
    GroupSeen,
    PodSeen,
    begun,
    claimed,
    left,
    settled,
    wanted,
)


@dataclass
class KubeRay:
    """A group, and what its controller does: it names what it deletes without being asked to."""

    replicas: int
    least: int = 0
    most: int = 4
    named: tuple[str, ...] = ()
    pods: dict[str, PodSeen] = field(default_factory=dict)
    now: float = 0.0
    chosen: list[str] = field(default_factory=list)
    made: int = 0
    reconciled_at: float = 0.0

    @property
    def seen(self) -> GroupSeen:
        return GroupSeen(self.replicas, self.least, self.most)

    def reconcile(self) -> None:
        self.reconciled_at = self.now
        for pod in [*self.pods.values()]:
            if pod.ended or pod.name in self.named:
                del self.pods[pod.name]
        due = min(max(self.replicas, self.least), self.most)
        while len(self.pods) < due:
            self.made += 1
            self.pods[f"pod-{self.made}"] = PodSeen(f"pod-{self.made}", self.now)
        for name in [*self.pods][: len(self.pods) - due]:
            self.chosen.append(name)
            del self.pods[name]

    def write(self, record: Claims) -> Claims:
        due = wanted(record)
        self.replicas, self.named = due.replicas, due.named
        self.most = self.most if due.most is None else due.most
        return msgspec.structs.replace(record, wrote=due.replicas)


def claim(now: float) -> Claim:
    return Claim("me", "job", 0, 0, "2cpu-4gib", now)


@given(st.randoms(use_true_random=False), st.integers(0, 3))
def test_no_pod_is_ended_but_those_that_are_given_back_and_the_group_is_then_as_it_was(
    random: Random, others: int
) -> None:
    kuberay = KubeRay(others)
    kuberay.reconcile()
    record, tokens, claims_made = begun(kuberay.seen), list[str](), 0
    for _ in range(40):
        kuberay.now += 1.0
        late = kuberay.now - kuberay.reconciled_at > COMES_S / 3  # KubeRay is slow, but there
        what = random.choice(("claim", "leave", "reconcile", "reconcile", "lose", "look"))
        match "reconcile" if late else what:
            case "claim":
                claims_made += 1
                tokens.append(f"token-{claims_made}")
                record = settled(record, kuberay.seen, kuberay.pods.values(), kuberay.now)
                record = kuberay.write(claimed(record, tokens[-1], claim(kuberay.now)))
            case "leave" if tokens:
                token = tokens.pop(random.randrange(len(tokens)))
                record = settled(record, kuberay.seen, kuberay.pods.values(), kuberay.now)
                record = kuberay.write(left(record, token, kuberay.now))
            case "reconcile":
                kuberay.reconcile()
            case "lose" if kuberay.pods:
                name = random.choice([*kuberay.pods])
                kuberay.pods[name] = PodSeen(name, kuberay.pods[name].created_at, ended=True)
            case _:
                record = kuberay.write(settled(record, kuberay.seen, kuberay.pods.values(), kuberay.now))
        held = [one.pod for one in record.claims.values() if one.state == "held" and one.pod]
        assert len(set(held)) == len(held), "a pod has one claim"
        assert not set(kuberay.chosen), "KubeRay never had to choose"
        assert kuberay.replicas >= others + sum(one.state == "held" for one in record.claims.values())

    record = settled(record, kuberay.seen, kuberay.pods.values(), kuberay.now)
    for token in tokens:
        record = left(record, token, kuberay.now)
    record = kuberay.write(record)
    for _ in range(6):
        kuberay.reconcile()
        kuberay.now += 1.0
        record = kuberay.write(settled(record, kuberay.seen, kuberay.pods.values(), kuberay.now))

    assert not record.living
    assert (kuberay.replicas, kuberay.most, kuberay.named) == (others, 4, ())
    assert not kuberay.chosen


def test_a_claim_holds_the_newest_pod_and_is_given_back_by_its_name() -> None:
    kuberay = KubeRay(1)
    kuberay.reconcile()
    record = kuberay.write(claimed(begun(kuberay.seen), "a", claim(1.0)))
    assert kuberay.replicas == 2
    kuberay.now = 2.0
    kuberay.reconcile()
    record = kuberay.write(settled(record, kuberay.seen, kuberay.pods.values(), 3.0))
    assert record.claims["a"].pod == "pod-2"

    record = kuberay.write(left(record, "a", 4.0))

    assert (kuberay.replicas, kuberay.named) == (1, ("pod-2",))
    assert record.claims["a"].state == "leaving"
    assert wanted(settled(record, kuberay.seen, kuberay.pods.values(), 5.0)).named == ("pod-2",), (
        "until it is gone"
    )
    kuberay.reconcile()
    record = settled(record, kuberay.seen, kuberay.pods.values(), 6.0)
    assert (record.claims["a"].state, record.claims["a"].ended_at) == ("gone", 6.0)


def test_limits_of_the_group_give_way_and_come_back() -> None:
    kuberay = KubeRay(1, least=1, most=1)
    record = begun(kuberay.seen)
    for token in "abc":
        record = kuberay.write(claimed(record, token, claim(0.0)))
    assert (kuberay.replicas, kuberay.most) == (4, 4)
    for token in "abc":
        record = kuberay.write(left(record, token, 1.0))
    for now in (2.0, COMES_S + 3.0):
        record = kuberay.write(settled(record, kuberay.seen, (), now))
    assert (kuberay.replicas, kuberay.most) == (1, 1)


def test_what_somebody_else_writes_is_theirs() -> None:
    kuberay = KubeRay(2)
    record = kuberay.write(claimed(begun(kuberay.seen), "a", claim(0.0)))
    kuberay.replicas += 2
    record = kuberay.write(settled(record, kuberay.seen, (), 1.0))
    record = kuberay.write(settled(record, kuberay.seen, (), 2.0))
    assert (record.others, kuberay.replicas) == (4, 5)


def test_where_no_pod_comes_nothing_is_expected_for_ever() -> None:
    kuberay = KubeRay(0)
    record = kuberay.write(claimed(begun(kuberay.seen), "a", claim(0.0)))
    record = kuberay.write(left(record, "a", 1.0))
    assert kuberay.replicas == 1, "its pod may be on its way"
    record = kuberay.write(settled(record, kuberay.seen, (), 1.0 + COMES_S))
    assert kuberay.replicas == 1
    record = kuberay.write(settled(record, kuberay.seen, (), 1.1 + COMES_S))
    assert (kuberay.replicas, record.living) == (0, False)


def test_a_token_that_is_gone_is_remembered_and_the_record_stays_small() -> None:
    record = begun(GroupSeen(0))
    for number in range(3 * GONE_MAX):
        token = f"{number:08}-0000-0000-0000-000000000000"
        record = left(claimed(record, token, claim(number)), token, number)
        record = settled(record, GroupSeen(0), (), number + COMES_S + 1)
    assert len(record.claims) <= GONE_MAX + COMES_S + 2
    assert len(msgspec.json.encode(record)) < 64 << 10
    assert msgspec.json.decode(msgspec.json.encode(record), type=Claims) == record
