"""Health, metrics, addresses, and the first token."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_world import World
from starlette.testclient import TestClient

from scavenger.errors import ConfigurationError
from scavenger.policy.notifying import ping
from scavenger.server.app import create_app
from scavenger.server.serving import first_token, serving
from scavenger.server.settings import ServerSettings
from scavenger.store import Store

_ENDINGS = {"total", "seconds", "hour", "ratio", "info"} | {"bucket", "count", "sum", "created"}
"""What names of metrics end in: units, `_total` of counters, `_info`; and counts of things, which have no unit."""
_ENDINGS |= {"jobs", "submissions", "vms", "workers", "notifications"}


def test_a_server_is_ready_if_its_store_and_its_supervisor_are(store: Store) -> None:
    works = [True]
    app = create_app(store, is_ready=lambda: works[0])
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").json() == {"status": "ready"}
        works[0] = False
        assert client.get("/readyz").status_code == 503
        works[0] = True
        assert store.path is not None
        os.rename(store.path, store.path.with_suffix(".away"))
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        assert str(store.path) not in answer.text
        assert client.get("/healthz").status_code == 200
        os.rename(store.path.with_suffix(".away"), store.path)
        assert client.get("/readyz").status_code == 200


def test_metrics_have_units_and_tell_what_is_on_record(
    client: TestClient, world: World, store: Store
) -> None:
    rich = store.create_job("rich", spec={"constraints": {"budget": 5.0}}, job_file="/rich.yaml").id
    store.update_job(rich, state="paused", cost_usd=1.0)
    store.queue_notifications({"team": [ping("team", datetime.now(UTC))]})
    path = f"/v1/jobs/{world.jobs['ann']}/indicators"
    batch = {"steps": [5], "values": {"loss": [1.0], "step_time_s": [0.1]}}
    client.post(path, headers=world.headers("ann"), json=batch)
    answer = client.get("/metrics", headers=world.headers("eve"))
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    job = world.jobs["ann"], "ann-secret"
    assert found["scavenger_jobs", "running"] == 2
    assert found["scavenger_submissions", "running"] == 2
    assert found["scavenger_job_cost_dollars_total", *job] == 0.5
    assert found["scavenger_job_steps_total", *job] == 3
    assert found["scavenger_job_workers", *job] == 1
    assert found["scavenger_job_price_dollars_per_hour", *job] == 0
    assert found["scavenger_job_duration_seconds_total", *job] > 0
    assert found["scavenger_indicators_total",] == 2
    assert found["scavenger_job_budget_spent_ratio", rich, "rich"] == 0.2
    assert ("scavenger_job_budget_spent_ratio", *job) not in found
    assert found["scavenger_notifications", "waiting", "team"] == 1
    assert {name.rpartition("_")[2] for name, *_ in found} <= _ENDINGS
    counted = ("scavenger_http_request_duration_seconds_count", "POST", "/v1/jobs/{job}/indicators", "202")
    assert found[counted] == 1


class TestAddresses:
    @pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "jobs.example", "::"])
    def test_any_but_a_loopback_address_needs_tls(self, host: str) -> None:
        with pytest.raises(ConfigurationError, match="only with TLS"):
            ServerSettings(host)
        secured = ServerSettings(host, certificate=Path("c.pem"), key=Path("k.pem"))
        assert secured.url(1).startswith("https://")
        assert ("0.0.0.0" in secured.hosts, "::" in secured.hosts) == (False, False)

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
    def test_a_loopback_address_does_not(self, host: str) -> None:
        assert ServerSettings(host).url(8765).startswith("http://")

    def test_a_certificate_needs_its_key(self) -> None:
        with pytest.raises(ConfigurationError, match="TLS needs both"):
            ServerSettings(certificate=Path("c.pem"))


def test_the_first_token_is_made_once_for_an_admin(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        token = first_token(store)
        assert token is not None
        caller = store.caller(token)
        assert caller is not None
        assert caller.user.role == "admin"
        assert first_token(store) is None


@pytest.mark.slow
def test_a_real_server_answers_at_its_address_and_ends(store: Store, world: World) -> None:
    with serving(store, ServerSettings(port=0)) as address:
        answer = httpx2.get(f"{address}/v1/info", headers=world.headers("ann"), timeout=60)
        assert (answer.status_code, answer.json()["user"]) == (200, "ann")
        assert "server" not in answer.headers
        port = int(address.rsplit(":", 1)[1])
        with (
            pytest.raises(ConfigurationError, match="cannot listen"),
            serving(store, ServerSettings(port=port)),
        ):
            pass
        assert httpx2.get(f"{address}/v1/info", timeout=60).status_code == 401
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{address}/healthz", timeout=60)
