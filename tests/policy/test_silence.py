"""A VM that falls silent is lost while another is heard; all of them at once are a network of ours that has broken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.policy.provisioning.silence import SOUND, Network, SilenceLimits, judge_silence

LIMITS = SilenceLimits()
LOOK_S = 1.0
silences = st.dictionaries(st.sampled_from("abcdefg"), st.floats(0.0, 400.0), max_size=7)
networks = st.sampled_from([SOUND, Network(0.0), Network(0.0, 290.0), Network(0.0, 200.0)])


class Vms:
    """VMs that are heard every second, but while they are cut off; looked at every second."""

    def __init__(self, *names: str) -> None:
        self.now_s, self.network = 0.0, SOUND
        self._heard_at = dict.fromkeys(names, 0.0)
        self.lost: dict[str, float] = {}

    def pass_time(self, seconds: float, *, cut: str = "") -> None:
        for _ in range(round(seconds / LOOK_S)):
            self.now_s += LOOK_S
            self._heard_at |= {name: self.now_s for name in self._heard_at if name not in cut}
            silent_s = {name: self.now_s - at for name, at in self._heard_at.items()}
            self.network, lost = judge_silence(self.network, silent_s, LIMITS, self.now_s)
            self.lost |= {name: self.now_s for name in lost if name not in self.lost}


@pytest.mark.parametrize("names", ["a", "ab", "abc"])
@pytest.mark.parametrize("seconds", [11.0, 25.0, 120.0, 220.0])
def test_a_network_that_breaks_and_comes_back_costs_nothing(seconds: float, names: str) -> None:
    vms = Vms(*names)
    vms.pass_time(10.0)
    vms.pass_time(seconds, cut=names)
    assert vms.network.is_broken
    vms.pass_time(10.0, cut=names[1:])  # connections come back one by one
    vms.pass_time(10.0, cut=names[2:])
    vms.pass_time(30.0)

    assert vms.lost == {}
    assert vms.network == SOUND


def test_one_vm_that_falls_silent_is_lost_in_time_and_the_network_is_not_to_blame() -> None:
    vms = Vms("a", "b", "c")
    vms.pass_time(20.0, cut="b")

    assert vms.lost == {"b": LIMITS.lost_s}
    assert vms.network == SOUND


@pytest.mark.parametrize("names", ["abc", "abcdefgh"])
def test_all_but_one_that_fall_silent_are_lost_in_time_since_that_one_is_heard(names: str) -> None:
    vms = Vms(*names)
    vms.pass_time(20.0, cut=names[1:])

    assert vms.lost == dict.fromkeys(names[1:], LIMITS.lost_s)
    assert vms.network == SOUND


def test_a_vm_that_does_not_come_back_when_the_others_do_is_lost_then() -> None:
    vms = Vms("a", "b", "c")
    vms.pass_time(60.0, cut="abc")
    vms.pass_time(60.0, cut="b")

    assert list(vms.lost) == ["b"]
    assert vms.lost["b"] <= 60.0 + LIMITS.mend_s + LIMITS.lost_s


def test_what_is_cut_off_for_longer_than_its_processes_live_is_lost() -> None:
    vms = Vms("a", "b")
    vms.pass_time(300.0, cut="ab")

    assert vms.lost == {"a": LIMITS.keep_s, "b": LIMITS.keep_s}


def test_the_only_vm_is_awaited_as_long_as_all_of_several() -> None:
    vms = Vms("a")
    vms.pass_time(230.0, cut="a")
    assert vms.lost == {}
    assert vms.network.is_broken
    vms.pass_time(1.0)
    assert vms.network == SOUND
    vms.pass_time(300.0, cut="a")

    assert vms.lost == {"a": 231.0 + LIMITS.keep_s}


@given(silences, networks)
def test_what_is_heard_is_never_lost_and_vouches_for_the_network(
    silent_s: dict[str, float], network: Network
) -> None:
    after, lost = judge_silence(network, silent_s, LIMITS, 300.0)
    heard = {name for name, seconds in silent_s.items() if seconds < LIMITS.doubt_s}

    assert not heard & lost
    assert not (after.is_broken and heard), "one of them vouches for the network"
    if silent_s and not heard:
        assert after.is_broken
        assert lost == {name for name in silent_s if silent_s[name] >= LIMITS.keep_s}


@given(silences, networks)
def test_nothing_is_lost_that_was_heard_lately_nor_anything_while_nothing_is_heard_that_may_live(
    silent_s: dict[str, float], network: Network
) -> None:
    _, lost = judge_silence(network, silent_s, LIMITS, 300.0)

    assert all(silent_s[name] >= LIMITS.lost_s for name in lost)
    kept_too_long = {name for name in lost if silent_s[name] >= LIMITS.keep_s}
    assert lost == kept_too_long or any(seconds < LIMITS.doubt_s for seconds in silent_s.values())
    assert {name for name, seconds in silent_s.items() if seconds >= LIMITS.keep_s} <= lost


@given(silences)
def test_a_broken_network_is_told_by_the_oldest_word_of_those_that_fell_silent(
    silent_s: dict[str, float],
) -> None:
    network, _ = judge_silence(SOUND, silent_s, LIMITS, 1000.0)
    again, _ = judge_silence(network, silent_s, LIMITS, 1000.0)

    assert again == network


@pytest.mark.parametrize("limits", [(0.0, 1.0, 2.0), (2.0, 1.0, 3.0), (1.0, 3.0, 2.0)])
def test_limits_that_do_not_grow_are_refused(limits: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="must grow"):
        SilenceLimits(*limits)
