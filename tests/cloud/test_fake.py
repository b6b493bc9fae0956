"""The fake is held to the contract of the real ones, and its scripts to their word."""

from __future__ import annotations

import pytest
from fake import FakeProvider, Fault

from scavenger.errors import CloudUnavailableError, StockOutError
from scavenger.testing.provider_conformance import ProviderConformance, World, make_request


class TestFakeProvider(ProviderConformance):
    @pytest.fixture
    def world(self) -> World:
        return FakeProvider()


def test_a_script_is_met_call_by_call() -> None:
    cloud = FakeProvider()
    cloud.script("launch", Fault(StockOutError("none")), None, Fault(CloudUnavailableError("?"), done=True))

    with pytest.raises(StockOutError):
        cloud.launch(make_request(cloud, 1))
    cloud.launch(make_request(cloud, 2))
    with pytest.raises(CloudUnavailableError):
        cloud.launch(make_request(cloud, 3))
    cloud.launch(make_request(cloud, 4))

    tokens = [make_request(cloud, name).tags.token for name in (2, 3, 4)]
    assert [fact.token for fact in cloud.truth()] == tokens
    assert cloud.faults_fired == 2


def test_every_call_is_on_record() -> None:
    cloud = FakeProvider()
    request = make_request(cloud)
    cloud.calls.clear()
    seen = cloud.launch(request)
    cloud.describe(seen.instance_id, seen.zone)
    cloud.list_owned("owner")
    cloud.terminate(seen.instance_id, seen.zone)

    assert cloud.calls == [
        ("launch", request.tags.token),
        ("describe", seen.instance_id),
        ("list_owned", "owner"),
        ("terminate", seen.instance_id),
    ]
