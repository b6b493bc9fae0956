"""The link of the benchmarks: what it carries, how late, and what it loses."""

from __future__ import annotations

import struct

import pytest

from benchmarks.emulated_link import Lane, wire_bytes


def test_a_lane_carries_at_its_rate_and_everything_arrives_as_much_later() -> None:
    lane = Lane(rate=1000.0, delay_s=0.5, queue_bytes=10_000)

    arrivals = [lane.send(0.0, 100) for _ in range(3)]

    assert arrivals == pytest.approx([0.6, 0.7, 0.8])
    assert lane.send(10.0, 100) == pytest.approx(10.6), "it does not save up what it did not carry"


def test_what_finds_the_queue_full_is_lost_and_takes_no_time_of_the_lane() -> None:
    lane = Lane(rate=1000.0, delay_s=0.0, queue_bytes=250)

    arrivals = [lane.send(0.0, 100) for _ in range(4)]

    assert arrivals == [pytest.approx(0.1), pytest.approx(0.2), None, None]
    assert lane.send(0.1, 100) == pytest.approx(0.3)


@pytest.mark.parametrize("named", [52, 52 + 3 * 1448], ids=["as it is sent", "as it is passed on"])
def test_a_packet_takes_what_its_segments_take_on_an_ethernet(named: int) -> None:
    internet, transport, segment = 20, 32, 1448
    headers = bytearray(internet + transport)
    headers[0], headers[internet + 12] = 0x45, (transport // 4) << 4
    whole = struct.pack("=BBHHHH", 1, 1, named, segment, 0, 0) + bytes(headers) + bytes(3 * segment)
    small = struct.pack("=BBHHHH", 0, 0, 0, 0, 0, 0) + bytes(headers)

    assert wire_bytes(whole) == 3 * (len(headers) + segment + 38)
    assert wire_bytes(small) == len(headers) + 38
