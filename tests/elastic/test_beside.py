"""Which aggregators share a model beside the workers, and which go elsewhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scavenger.elastic.beside import Beside, HostSeen, beside_workers


def host(name: str, *aggregators: int, workers: bool = True, stays: bool = True) -> HostSeen:
    return HostSeen(name, workers, stays, aggregators)


def test_aggregators_beside_workers_share_the_model_and_a_single_one_shares_it_with_the_first() -> None:
    decided = beside_workers([host("a", 1), host("b", 2)], [3, 4], on_their_way=0)

    assert decided == Beside(frozenset({1, 2}), frozenset())
    assert beside_workers([host("a", 1)], [2], on_their_way=0).sharing == {0, 1}


def test_one_that_begins_again_in_its_place_holds_what_it_held() -> None:
    decided = beside_workers([host("a"), host("b", 2)], [0, 3], on_their_way=1, again=[1])

    assert decided == Beside(frozenset({1, 2}), frozenset())


def test_one_that_waits_at_home_goes_to_a_host_with_workers_and_without_one() -> None:
    hosts = [host("a", 1), host("b"), host("idle", workers=False)]

    assert beside_workers(hosts, [0, 2, 3], on_their_way=0) == Beside(frozenset({0, 1}), frozenset({2}))
    assert beside_workers(hosts, [0, 2, 3], on_their_way=1).leaving == frozenset()


def test_one_without_workers_beside_it_gives_its_share_up_and_goes_where_one_is_lacking() -> None:
    hosts = [host("a", 1, workers=False), host("b")]

    assert beside_workers(hosts, [2], on_their_way=0) == Beside(frozenset({0}), frozenset({1}))


def test_the_second_on_a_host_goes() -> None:
    assert beside_workers([host("a", 1, 2)], [], on_their_way=0) == Beside(frozenset({0, 1}), frozenset({2}))


def test_on_a_host_that_will_be_taken_it_gives_its_share_up_and_is_not_sent_away() -> None:
    assert beside_workers([host("a", 1, stays=False)], [2], on_their_way=0) == Beside(
        frozenset({0}), frozenset()
    )


_HOSTS = st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 2)), max_size=6)


@given(_HOSTS, st.integers(0, 4), st.integers(0, 3))
def test_what_follows_ends_with_one_beside_the_workers_of_each_host_as_long_as_there_are_enough(
    kinds: list[tuple[bool, bool, int]], at_home: int, on_their_way: int
) -> None:
    numbers = iter(range(1, 100))
    hosts = [
        HostSeen(str(i), workers, stays, tuple(next(numbers) for _ in range(count)))
        for i, (workers, stays, count) in enumerate(kinds)
    ]
    home = [0, *(next(numbers) for _ in range(at_home))]
    for _ in range(20):
        decided = beside_workers(hosts, home, on_their_way=on_their_way)
        assert len(decided.sharing) > 1 or decided.sharing == {0}
        assert (0 in decided.sharing) == (len(decided.sharing - {0}) < 2)
        assert 0 not in decided.leaving
        assert not decided.sharing & decided.leaving
        waiting = on_their_way + len(decided.leaving)
        if not waiting:
            break
        home = [index for index in home if index not in decided.leaving]
        hosts = [
            HostSeen(
                h.name, h.has_workers, h.stays, tuple(i for i in h.aggregators if i not in decided.leaving)
            )
            for h in hosts
        ]
        for number, one in enumerate(hosts):
            if waiting and one.lacks_one:
                waiting -= 1
                hosts[number] = HostSeen(one.name, True, True, (next(numbers),))
        home += [next(numbers) for _ in range(waiting)]
        on_their_way = 0
    else:
        raise AssertionError("it never comes to rest")
    served = [h for h in hosts if h.has_workers and h.stays]
    spare = [index for index in home if index]
    assert all(len(h.aggregators) == 1 for h in served) or not spare
    assert not any(h.aggregators and not h.has_workers and h.stays for h in hosts)
