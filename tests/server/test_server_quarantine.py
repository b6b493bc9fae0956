"""VMs that a restored store does not know: who sees them, and who decides, by REST and in the dashboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from uuid import uuid4

import pytest
from fake import FakeProvider, install
from nested import built
from server_world import World
from starlette.testclient import TestClient
from test_dashboard_routes import FORM, login

from scavenger.control.provisioning import clean_up
from scavenger.domain.vm import VmRequest
from scavenger.server.app import create_app
from scavenger.store import Store


class Restored:
    """A server over a restored store, and a cloud with two VMs that it does not know."""

    def __init__(self, store: Store, client: TestClient, cloud: FakeProvider, vms: tuple[str, ...]) -> None:
        self.store, self.client, self.cloud, self.vms = store, client, cloud, vms
        self.keys = tuple(f"fake/fake-1/{vm}" for vm in vms)

    def alive(self) -> set[str]:
        return {fact.instance_id for fact in self.cloud.truth() if fact.alive}


@pytest.fixture
def restored(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Restored]:
    cloud = FakeProvider(stop_s=0.0)
    install(monkeypatch, cloud)
    monkeypatch.setattr(clean_up, "POLL_S", 0.0)
    store.backup(tmp_path / "b")
    url = f"sqlite:///{tmp_path}/restored.db"
    Store.restore(url, tmp_path / "b", keep_tokens=True)
    with Store.open(url) as again:
        tags = {"owner": again.installation(), "job_id": "c75918c9-fb0c", "slot": 0, "generation": 0}
        request = {**tags, "vm": "small", "zone": "fake-1a", "spot": False, "run_max_s": 60.0}
        vms = tuple(
            cloud.launch(built(VmRequest, token=str(uuid4()), **request)).instance_id for _ in range(2)
        )
        client = TestClient(
            create_app(again), base_url="http://127.0.0.1:8765", raise_server_exceptions=False
        )
        yield Restored(again, client, cloud, vms)


def test_they_are_shown_ended_and_kept_by_an_admin(restored: Restored, world: World) -> None:
    root, eve, ann = (world.headers(user) for user in ("root", "eve", "ann"))
    first, second = restored.keys
    with restored.client as client:
        assert client.get("/v1/quarantine", headers=root).json()["vms"] == []  # nobody has looked
        swept = client.get("/v1/leftovers?region=fake/fake-1", headers=root).json()
        assert [one["quarantined"] for one in swept["leftovers"]] == [True, True]
        shown = client.get("/v1/quarantine", headers=eve).json()
        assert [(one["key"], one["kept_by"]) for one in shown["vms"]] == [(first, None), (second, None)]
        assert shown["restore"]["looked_at"]
        assert client.get("/v1/quarantine", headers=ann).status_code == 403
        for what in ("keep", "end"):
            refused = client.post(f"/v1/quarantine/{what}", headers=eve, json={"vm": first})
            assert refused.status_code == 403
        kept = client.post("/v1/quarantine/keep", headers=root, json={"vm": first}).json()
        assert kept["vms"][0]["kept_by"] == "root"
        ended = client.post("/v1/quarantine/end", headers=root, json={"vm": second})
        assert (ended.json()["left"], restored.alive()) == ([], {restored.vms[0]})
        assert client.get("/v1/leftovers?region=fake/fake-1", headers=root).json()["leftovers"] == []
        shown = client.get("/v1/quarantine", headers=root).json()
        assert [(one["key"], one["kept_by"]) for one in shown["vms"]] == [(first, "root")]
        assert client.post("/v1/quarantine/end", headers=root, json={"vm": first}).status_code == 200
        assert restored.alive() == set()
        assert client.post("/v1/quarantine/end", headers=root, json={"vm": first}).status_code == 404


def test_the_page_of_vms_asks_before_it_ends_or_keeps_one(restored: Restored, world: World) -> None:
    with restored.client as client:
        client.get("/v1/leftovers?region=fake/fake-1", headers=world.headers("root"))
        login(client, world, "ann")
        assert "quarantine" not in client.get("/vms").text
        login(client, world, "eve")
        seen = client.get("/vms").text
        assert "In quarantine" in seen
        assert "/vms/confirm" not in seen
        assert client.post("/vms/operate", content="what=end", headers=FORM).status_code == 403
        login(client, world, "root")
        asked = [
            unescape(path) for path in re.findall(r'href="(/vms/confirm[^"]+)"', client.get("/vms").text)
        ]
        assert len(asked) == 4
        for path in (asked[0], asked[3]):  # end the first, keep the second
            page = client.get(path).text
            fields = dict(re.findall(r'name="(\w+)" value="([^"]+)"', page))
            sent = client.post("/vms/operate", data=fields, headers=FORM, follow_redirects=False)
            assert sent.headers["location"] == "/vms"
        assert restored.alive() == {restored.vms[1]}
        page = client.get("/vms").text
        assert "stays, says root" in page
        assert restored.vms[0] not in page
        assert client.post("/vms/operate", content="what=drop", headers=FORM).status_code == 409
