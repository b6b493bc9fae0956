"""Words between leader and agent arrive once and in order, whatever the connection loses, repeats or holds up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scavenger.train.engines.vm.channel import HEARTBEAT_S, RESEND_S, Channel
from scavenger.train.engines.vm.messages import AgentMessage, Packet, Warned


@given(st.data())
def test_whatever_is_lost_doubled_or_late_words_arrive_once_and_in_order(data: st.DataObject) -> None:
    ends = (Channel(), Channel())
    ways: tuple[list[Packet], list[Packet]] = ([], [])  # towards each end
    said: tuple[list[AgentMessage], list[AgentMessage]] = ([], [])
    got: tuple[list[AgentMessage], list[AgentMessage]] = ([], [])
    now = 0.0

    def turn(who: int, *, fair: bool) -> None:
        ways[1 - who].extend(ends[who].due(now))
        fate = "arrive" if fair else data.draw(st.sampled_from(["arrive", "lose", "double", "hold"]))
        if fate == "hold":
            return
        for packet in ways[who] * (2 if fate == "double" else 1):
            word = None if fate == "lose" else ends[who].take(packet, now)
            if word is not None:
                got[who].append(word)
        ways[who].clear()

    for number in range(data.draw(st.integers(1, 25))):
        who = data.draw(st.integers(0, 1))
        if data.draw(st.booleans()):
            ends[who].put(Warned(str(number)))
            said[who].append(Warned(str(number)))
        now += data.draw(st.sampled_from([0.0, 0.5, RESEND_S]))
        turn(data.draw(st.integers(0, 1)), fair=False)
    for _ in range(4):
        now += RESEND_S
        for who in (0, 1, 0):
            turn(who, fair=True)

    assert (got[1], got[0]) == said
    assert ends[0].backlog == ends[1].backlog == 0


def test_an_end_with_nothing_to_say_says_so_every_second_and_no_sooner() -> None:
    channel = Channel()

    said = [channel.due(at / 10 * HEARTBEAT_S) for at in range(31)]

    assert [len(packets) for packets in said] == [int(at % 10 == 0) for at in range(31)]


def test_what_is_unheard_is_not_said_again_at_once() -> None:
    channel = Channel()
    channel.put(Warned("once"))

    said = [packet for at in (0.0, 0.1, RESEND_S - 0.1) for packet in channel.due(at) if packet.number]

    assert len(said) == 1
    assert [packet.number for packet in channel.due(RESEND_S)] == [1]


def test_an_acknowledgement_of_what_was_never_said_is_none() -> None:
    channel = Channel()
    channel.put(Warned("once"))
    channel.due(0.0)

    channel.take(Packet(0, 7), 0.1)

    assert channel.backlog == 1
