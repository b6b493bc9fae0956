"""While the leader hears nobody, nobody's silence counts, nor before their connections have had time to come back."""

from __future__ import annotations

from scavenger.elastic.outage import MEND_MAX_S, NetworkOutage

ALL = ("aggregator-0", "w0", "w1")


def test_silence_counts_until_the_hosts_are_in_doubt_and_again_once_all_are_heard() -> None:
    outage = NetworkOutage()
    assert not outage.look(0.0, in_doubt=False, processes=ALL)
    assert outage.look(10.0, in_doubt=True, processes=ALL)
    outage.heard("w0")  # of before the cut
    assert outage.look(35.0, in_doubt=False, processes=ALL)

    for name in ALL:
        assert outage.look(40.0, in_doubt=False, processes=ALL)
        outage.heard(name)
    assert not outage.look(40.0, in_doubt=False, processes=ALL)


def test_a_process_that_does_not_come_back_is_waited_for_as_long_as_the_cut_and_a_little() -> None:
    outage = NetworkOutage()
    outage.look(0.0, in_doubt=True, processes=ALL)
    outage.look(120.0, in_doubt=False, processes=ALL)

    assert outage.look(245.0, in_doubt=False, processes=ALL)
    assert not outage.look(120.0 + MEND_MAX_S, in_doubt=False, processes=ALL)
    assert not outage.look(260.0, in_doubt=False, processes=ALL)


def test_nobody_waits_for_a_process_that_has_ended() -> None:
    outage = NetworkOutage()
    outage.look(0.0, in_doubt=True, processes=ALL)
    outage.look(20.0, in_doubt=False, processes=ALL)
    outage.heard("aggregator-0")

    assert not outage.look(21.0, in_doubt=False, processes=("aggregator-0",))


def test_a_second_cut_while_the_first_mends_has_everybody_waited_for_again() -> None:
    outage = NetworkOutage()
    outage.look(0.0, in_doubt=True, processes=ALL)
    outage.look(20.0, in_doubt=False, processes=ALL)
    for name in ALL[:2]:
        outage.heard(name)
    outage.look(25.0, in_doubt=True, processes=ALL)
    outage.look(30.0, in_doubt=False, processes=ALL)
    outage.heard("w1")

    assert outage.look(31.0, in_doubt=False, processes=ALL)
