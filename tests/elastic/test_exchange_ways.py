"""Which way the mean of a step is formed: by a group that all members have, the faster one, the leader in doubt."""

from __future__ import annotations

import pytest

from scavenger.elastic.exchange_ways import TRIES, ExchangeWays, Group
from scavenger.errors import ConfigurationError

ON_GPUS = {"w0": "cuda a", "w1": "cuda b", "w2": "cuda c"}


def ways_of(wanted: str, devices: dict[str, str]) -> ExchangeWays:
    ways = ExchangeWays(wanted)  # type: ignore[arg-type]
    for worker, device in devices.items():
        ways.pushed(worker, device, 0, "")
    return ways


def with_group(wanted: str, devices: dict[str, str]) -> tuple[ExchangeWays, Group]:
    ways = ways_of(wanted, devices)
    group = ways.to_make(tuple(devices))
    assert group is not None
    for worker in group.members:
        assert ways.by_group() == 0, "not all of them have it"
        ways.pushed(worker, devices[worker], group.number, "")
    return ways, group


@pytest.mark.parametrize(
    ("wanted", "devices", "makes"),
    [
        ("auto", ON_GPUS, True),
        ("auto", ON_GPUS | {"w2": "cuda a"}, False),  # two share one
        ("auto", dict.fromkeys(ON_GPUS, "cpu"), False),
        ("auto", ON_GPUS | {"w2": "cpu"}, False),
        ("auto", ON_GPUS | {"w2": ""}, False),
        ("auto", {"w0": "cuda a"}, False),  # there is nothing to average
        ("leader", ON_GPUS, False),
        ("process_group", ON_GPUS, True),
        ("process_group", dict.fromkeys(ON_GPUS, "cpu"), True),
        ("process_group", ON_GPUS | {"w2": "cpu"}, False),
    ],
)
def test_a_group_is_made_where_each_has_a_gpu_or_one_is_wanted(
    wanted: str, devices: dict[str, str], makes: bool
) -> None:
    assert (ways_of(wanted, devices).to_make(tuple(devices)) is not None) == makes


def test_a_group_is_used_once_all_have_it_and_not_by_other_members() -> None:
    ways, group = with_group("process_group", ON_GPUS)

    assert ways.said() == []
    assert [ways.to_make(group.members), ways.by_group()] == [None, group.number]
    assert ways.said() == ["gradients are averaged by process groups"]
    other = ways.to_make(("w0", "w1"))
    assert other == Group(group.number + 1, ("w0", "w1"))
    ways.pushed("w0", "cuda a", group.number, "")  # it has not yet heard of the new one
    ways.pushed("w1", "cuda b", other.number, "")
    assert ways.by_group() == 0
    ways.pushed("w0", "cuda a", other.number, "")
    assert [ways.by_group(), ways.said()] == [other.number, []]


@pytest.mark.parametrize("group_s", [0.5, 2.0])
def test_the_faster_way_is_kept_for_as_many_members_and_said_once(group_s: float) -> None:
    ways, group = with_group("auto", ON_GPUS)
    turns = []
    while not (said := ways.said()):
        assert len(turns) <= 2 * TRIES, "it does not end"
        by_group = ways.by_group() > 0
        turns.append(by_group)
        first = turns.count(by_group) == 1  # each way's first step is slow
        ways.stepped(by_group=by_group, exchange_s=100.0 if first else group_s if by_group else 1.0)

    faster = group_s < 1.0
    assert turns.count(True) >= TRIES <= turns.count(False)
    assert len(said) == 1
    assert f"by {'a process group' if faster else 'the leader'}, 2.00 times as fast as by" in said[0]
    assert [ways.by_group() for _ in range(3)] == [group.number * faster] * 3
    ways.to_make(("w0", "w1"))
    again = ways.to_make(group.members)
    assert (again is not None) == faster
    if again is not None:
        for worker in again.members:
            ways.pushed(worker, ON_GPUS[worker], again.number, "")
        assert [ways.by_group() for _ in range(3)] == [again.number] * 3, "it is not tried again"


def test_a_group_that_fails_is_made_anew_if_a_member_was_lost_and_else_never_again() -> None:
    ways, group = with_group("process_group", ON_GPUS)
    ways.failed("Connection closed by peer")
    assert ways.by_group() == 0
    other = ways.to_make(("w0", "w1"))
    assert other is not None
    assert ways.said() == []
    ways.pushed("w1", "cuda b", other.number, "no memory")

    assert ways.to_make(("w0", "w1")) is None
    assert ways.said() == [
        "gradients are averaged by the leader, as a process group has failed: w1 could not make it: no memory"
    ]
    assert [ways.to_make(group.members), ways.by_group(), ways.said()] == [None, 0, []]


def test_training_code_that_has_no_groups_is_refused_only_if_one_is_wanted() -> None:
    ways_of("auto", {"w0": ""})
    with pytest.raises(
        ConfigurationError, match="is for PyTorch loops and scripts whose model is on one GPU"
    ):
        ways_of("process_group", {"w0": ""})
