"""Laws of pages: together they are the list, each entry once, also while entries are added."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_world import World
from starlette.testclient import TestClient

from scavenger.api.paging import CursorError, encode, job_place, number_place
from scavenger.store import Store


class Clock:
    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Clock]:
    """Jobs of which several were created at the same moment."""
    clock, folder = Clock(), tmp_path_factory.mktemp("many")
    store = Store.open(f"sqlite:///{folder}/store.db", clock=clock)
    with store.together():
        for number in range(40):
            clock.at += timedelta(microseconds=number % 3 == 0)
            store.create_job(f"job-{number}", spec={}, job_file=folder / "job.yaml")
    return store, clock


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limits=st.lists(st.integers(1, 30), min_size=1, max_size=50), newcomer=st.booleans())
def test_pages_are_the_list(many: tuple[Store, Clock], limits: list[int], newcomer: bool) -> None:
    store, clock = many
    whole = [job.id for job in store.jobs(1000)]
    found: list[str] = []
    cursor = None
    for number in range(len(whole) + 1):
        limit = limits[number % len(limits)]
        page = store.jobs(limit, after=job_place(cursor))
        found += [job.id for job in page]
        if not page:
            break
        cursor = encode(page[-1].created_at.isoformat(), page[-1].id)
        if newcomer and number == 0:
            clock.at += timedelta(seconds=1)
            store.create_job("newcomer", spec={}, job_file=Path("job.yaml"))  # on no later page
    assert found == whole


def test_the_pages_of_routes_lead_on_to_the_end(client: TestClient, store: Store, world: World) -> None:
    for path, rows, count in (
        ("/v1/jobs", "jobs", 2),
        ("/v1/queue", "submissions", 2),
        ("/v1/costs", "jobs", 2),
        (f"/v1/jobs/{world.jobs['ann']}/events", "events", 5),
        (f"/v1/jobs/{world.jobs['ann']}/indicators", "batches", 1),
    ):
        found, cursor = [], None
        while True:
            params = {"limit": 1} | ({"cursor": cursor} if cursor else {})
            page = client.get(path, params=params, headers=world.headers("root")).json()
            found += page[rows]
            cursor = page["next"]
            if cursor is None:
                break
        assert len(found) == count
        whole = client.get(path, headers=world.headers("root")).json()
        assert (found, whole["next"]) == (whole[rows], None)


@given(at=st.datetimes(timezones=st.just(UTC)), job_id=st.text(), number=st.integers(0, 2**63 - 1))
def test_a_cursor_is_read_back(at: datetime, job_id: str, number: int) -> None:
    assert job_place(encode(at.isoformat(), job_id)) == (at, job_id)
    assert number_place(encode(number)) == number


@given(st.text(max_size=40))
def test_any_other_text_is_refused(text: str) -> None:
    for read in (job_place, number_place):
        with suppress(CursorError):
            assert read(text) is not None


def test_pages_of_a_user_have_only_that_users_jobs(store: Store, world: World) -> None:
    assert [job.id for job in store.jobs(user="ann")] == [world.jobs["ann"]]
    assert store.jobs(user="nobody") == ()
