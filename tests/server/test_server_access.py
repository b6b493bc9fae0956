"""Who may: a token on every route, another user's objects are not there, hosts and origins, the audit log."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from datetime import datetime, timedelta
from pkgutil import iter_modules
from typing import Any, ClassVar

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from server_world import World, headers
from starlette.testclient import TestClient

from scavenger.domain.access import TOKEN_PREFIX, token_digest
from scavenger.errors import NotFoundError
from scavenger.masking import MASK, mask
from scavenger.server import routes
from scavenger.server.app import create_app
from scavenger.server.callers import KEPT_S, Callers
from scavenger.server.routes.health import OPEN_PATHS
from scavenger.store import Store, access


def _routes(app: FastAPI) -> list[tuple[str, str]]:
    """Every method and path; parameters have a value."""
    found = []
    for path, item in app.openapi()["paths"].items():
        filled = re.sub(r"\{\w+\}", "1", path)
        found += [(method.upper(), filled) for method in item if path not in OPEN_PATHS]
    return [*found, ("GET", "/openapi.json")]


def test_the_document_has_every_route(app: FastAPI) -> None:
    told = set(app.openapi()["paths"])
    assert {"/v1/jobs", "/v1/jobs/{job}/events/stream", "/metrics", "/healthz"} <= told
    modules = [
        importlib.import_module(f"{routes.__name__}.{one.name}") for one in iter_modules(routes.__path__)
    ]
    made = [route for module in modules for route in module.router.routes]
    shown = {route.path for route in made if isinstance(route, APIRoute) and route.include_in_schema}
    assert len(told) > 40
    assert shown <= told


def test_every_route_needs_a_token(app: FastAPI, client: TestClient) -> None:
    routes = _routes(app)
    assert len(routes) > 30
    for method, path in routes:
        for sent in ({}, {"Authorization": "Bearer scv_wrong"}, {"Authorization": "Basic YTpi"}):
            answer = client.request(method, path, headers=sent, json={})
            assert (method, path, answer.status_code) == (method, path, 401)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["code"] == "unauthorized"
            assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_token_is_stored_as_its_digest_and_masked(store: Store, world: World) -> None:
    token = world.tokens["ann"]
    assert token.startswith(TOKEN_PREFIX)
    assert store.path is not None
    content = b"".join(path.read_bytes() for path in store.path.parent.glob("store.db*"))
    assert token.encode() not in content
    assert token_digest(token).encode() in content
    assert mask(f"got {token} from somebody") == f"got {MASK} from somebody"


def test_a_revoked_token_and_one_of_a_deleted_user_are_worth_nothing(
    client: TestClient, store: Store, world: World
) -> None:
    own = client.get("/v1/tokens", headers=world.headers("ann")).json()["tokens"]
    [mine] = own
    assert client.delete(f"/v1/tokens/{mine['id']}", headers=world.headers("bob")).status_code == 404
    assert client.delete(f"/v1/tokens/{mine['id']}", headers=world.headers("ann")).status_code == 200
    assert client.get("/v1/jobs", headers=world.headers("ann")).status_code == 401
    assert client.delete("/v1/users/bob", headers=world.headers("root")).status_code == 200
    assert client.get("/v1/jobs", headers=world.headers("bob")).status_code == 401


class TestWhatWasMadeWithAToken:
    """Ends with it, and never after it, generation by generation and whoever it is for."""

    @staticmethod
    def made(client: TestClient, token: str, user: str, **body: object) -> dict[str, Any]:
        answer = client.post(f"/v1/users/{user}/tokens", headers=headers(token), json=body)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    @staticmethod
    def session(client: TestClient, token: str) -> str:
        begun = client.get("/login", params={"token": token}, follow_redirects=False)
        assert begun.status_code == 303
        client.cookies.clear()
        return begun.headers["set-cookie"].split(";")[0].split("=", 1)[1]

    def test_ends_when_it_is_revoked(self, client: TestClient, world: World) -> None:
        token = world.tokens["root"]
        given = self.made(client, token, "ann")
        child = self.made(client, token, "root")["text"]
        grandchild = self.made(client, child, "root")["text"]
        sessions = [self.session(client, one) for one in (token, child, given["text"])]
        [number] = [
            one["id"]
            for one in client.get("/v1/tokens", headers=headers(token)).json()["tokens"]
            if one["user"] == "root" and one["parent"] is None
        ]
        assert given["token"]["parent"] == number

        ended = client.delete(f"/v1/tokens/{number}", headers=headers(token)).json()["tokens"]

        assert len(ended) == 7
        for one in (token, child, grandchild, given["text"], *sessions):
            assert client.get("/v1/info", headers=headers(one)).status_code == 401
            assert client.get("/login", params={"token": one}, follow_redirects=False).status_code == 401
        assert client.get("/v1/info", headers=world.headers("ann")).status_code == 200

    def test_lasts_no_longer(self, client: TestClient, store: Store) -> None:
        store.set_user("zoe", "viewer")
        short, text = store.new_token("zoe", "for an hour", lasts=timedelta(hours=1))

        made = self.made(client, text, "zoe")["token"]
        assert datetime.fromisoformat(made["expires_at"]) == short.expires_at
        refused = client.post("/v1/users/zoe/tokens", headers=headers(text), json={"days": 2})
        assert (refused.status_code, "ends with the one" in refused.text) == (409, True)
        session = store.caller(self.session(client, text))
        assert session is not None
        assert session.token.expires_at == short.expires_at

    def test_ends_with_the_user(self, client: TestClient, world: World) -> None:
        client.put("/v1/users/mallory", headers=world.headers("root"), json={"role": "admin"})
        mallorys = self.made(client, world.tokens["root"], "mallory")["text"]
        left_behind = self.made(client, mallorys, "eve")["text"]

        client.delete("/v1/users/mallory", headers=world.headers("root"))

        assert client.get("/v1/info", headers=headers(left_behind)).status_code == 401

    def test_is_not_made_with_a_token_that_is_revoked_meanwhile(self, store: Store) -> None:
        store.set_user("zoe", "viewer")
        token, _ = store.new_token("zoe", "")
        store.revoke_token(token.id)
        with pytest.raises(NotFoundError, match="was revoked"):
            store.new_token("zoe", "", made_with=token)


class TestSessions:
    """Are ended by their user, here or everywhere, and by an admin."""

    ORIGIN: ClassVar = {"Origin": "http://127.0.0.1:8765"}

    def browser(self, app: FastAPI, token: str) -> TestClient:
        opened = TestClient(app, base_url="http://127.0.0.1:8765")
        assert opened.get("/login", params={"token": token}, follow_redirects=False).status_code == 303
        assert opened.get("/v1/info").status_code == 200
        return opened

    def test_log_out_ends_this_one(self, client: TestClient, app: FastAPI, world: World) -> None:
        here, there = (self.browser(app, world.tokens["ann"]) for _ in range(2))
        assert "Log out" in here.get("/session").text
        kept = dict(here.cookies)

        assert here.post("/session/end", data={"which": "this"}).status_code == 403, "without an Origin"
        ended = here.post("/session/end", data={"which": "this"}, headers=self.ORIGIN)

        assert "Logged out" in ended.text
        assert not here.cookies
        here.cookies.update(kept)
        assert here.get("/v1/info").status_code == 401
        assert there.get("/v1/info").status_code == 200
        assert client.get("/v1/info", headers=world.headers("ann")).status_code == 200

    def test_all_of_a_user_end_at_once(self, client: TestClient, app: FastAPI, world: World) -> None:
        one, two, three = (self.browser(app, world.tokens["ann"]) for _ in range(3))
        bobs = self.browser(app, world.tokens["bob"])

        one.post("/session/end", data={"which": "all"}, headers=self.ORIGIN)

        assert [two.get("/v1/info").status_code, three.get("/v1/info").status_code] == [401, 401]
        assert client.delete("/v1/users/bob/sessions", headers=world.headers("ann")).status_code == 403
        assert bobs.get("/v1/info").status_code == 200
        ended = client.delete("/v1/users/bob/sessions", headers=world.headers("root"))
        assert [one["is_session"] for one in ended.json()["tokens"]] == [True]
        assert bobs.get("/v1/info").status_code == 401
        assert client.get("/v1/info", headers=world.headers("bob")).status_code == 200

    def test_each_port_has_a_cookie_of_its_own(self, client: TestClient, world: World) -> None:
        names = set()
        for host in ("127.0.0.1:8765", "127.0.0.1:9000", "127.0.0.1"):
            params = {"token": world.tokens["ann"]}
            begun = client.get("/login", params=params, headers={"Host": host}, follow_redirects=False)
            names.add(begun.headers["set-cookie"].split("=")[0])
        assert names == {"scavenger_session_8765", "scavenger_session_9000", "scavenger_session"}


def test_a_stream_of_events_breaks_off_when_its_token_is_revoked(
    client: TestClient, store: Store, world: World
) -> None:
    job = world.jobs["bob"]
    token, text = store.new_token("bob", "")
    with client.stream("GET", f"/v1/jobs/{job}/events/stream", headers=headers(text)) as answer:
        store.revoke_token(token.id)
        lines = list(answer.iter_lines())  # ends, although the job has not

    assert "event: end" not in lines


class TestAnotherUsersJob:
    def test_is_told_as_one_that_is_not_there(self, app: FastAPI, client: TestClient, world: World) -> None:
        """By id, beginning of the id and name; on every route of a job; in the words of a job that never was."""
        theirs = world.jobs["bob"]
        bodies = {
            "scale": {"workers": 2},
            "indicators": {"steps": [9], "values": {"loss": [1.0]}},
            "model": {"model": {}},
        }
        queries = {"why": {"workers": 2, "global_batch_size": 64}}
        paths = [path for path in app.openapi()["paths"] if path.startswith("/v1/jobs/{job}")]
        assert len(paths) > 12
        for path in paths:
            for method in app.openapi()["paths"][path]:
                for key in (theirs, theirs[:8], "bob-secret"):
                    url = path.replace("{job}", key).replace("{operation}", "1")
                    last = path.rsplit("/", 1)[-1]
                    body, query = bodies.get(last, {}), queries.get(last, {})
                    answer = client.request(
                        method, url, params=query, headers=world.headers("ann"), json=body
                    )
                    assert (method, url, answer.status_code) == (method, url, 404)
                    assert "bob" not in answer.text.replace(repr(key), "")

    def test_is_in_no_list_of_others(self, client: TestClient, world: World) -> None:
        for path in ("/v1/jobs", "/v1/queue", "/v1/costs"):
            assert "bob" not in client.get(path, headers=world.headers("ann")).text
            for user in ("root", "eve"):
                assert "bob" in client.get(path, headers=world.headers(user)).text

    def test_is_seen_by_its_own_user(self, client: TestClient, world: World) -> None:
        for key in (world.jobs["bob"], "bob-secret"):
            shown = client.get(f"/v1/jobs/{key}", headers=world.headers("bob")).json()
            assert shown["job"]["id"] == world.jobs["bob"]
            assert shown["submission"]["user"] == "bob"


def test_a_viewer_changes_nothing_and_only_an_admin_manages(client: TestClient, world: World) -> None:
    job = world.jobs["ann"]
    stop = client.post(f"/v1/jobs/{job}/stop", headers=world.headers("eve"), json={})
    assert (stop.status_code, stop.json()["code"]) == (403, "forbidden")
    for user in ("ann", "eve"):
        assert client.get("/v1/users", headers=world.headers(user)).status_code == 403
        assert client.get("/v1/audit", headers=world.headers(user)).status_code == 403
        made = client.post("/v1/users/root/tokens", headers=world.headers(user), json={})
        assert made.status_code == 403
    assert (
        client.put("/v1/users/root", headers=world.headers("root"), json={"role": "user"}).status_code == 409
    )
    assert client.get("/metrics", headers=world.headers("ann")).status_code == 403


class TestBrowsers:
    @pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.:80", ""])
    def test_a_foreign_host_is_refused(self, client: TestClient, world: World, host: str) -> None:
        answer = client.get("/v1/jobs", headers={**world.headers("root"), "Host": host})
        assert (answer.status_code, answer.json()["code"]) == (403, "host")

    @pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST:1", "[::1]:8765", "[::1]"])
    def test_an_own_host_is_served(self, client: TestClient, world: World, host: str) -> None:
        assert client.get("/v1/jobs", headers={**world.headers("root"), "Host": host}).status_code == 200

    @pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9", "https://[", ""])
    def test_a_page_of_another_origin_is_refused(self, client: TestClient, world: World, origin: str) -> None:
        for method in ("GET", "POST"):
            answer = client.request(method, "/v1/jobs", headers={**world.headers("root"), "Origin": origin})
            assert (answer.status_code, answer.json()["code"]) == (403, "origin")

    def test_where_a_proxy_keeps_authorization_to_itself_the_token_has_a_header_of_its_own(
        self, world: World, client: TestClient
    ) -> None:
        token = world.headers("root")["Authorization"].removeprefix("Bearer ")

        assert client.get("/v1/jobs", headers={"X-Scavenger-Token": token}).status_code == 200
        assert client.get("/v1/jobs", headers={"X-Scavenger-Token": f"{token}x"}).status_code == 401
        # no page of another origin can send it, so that a change needs no Origin
        asked = {"X-Scavenger-Token": token}
        assert client.put("/v1/users/new", json={"role": "viewer"}, headers=asked).status_code in (200, 201)

    def test_a_session_by_cookie_changes_only_with_the_servers_own_origin(
        self, client: TestClient, world: World
    ) -> None:
        begun = client.get("/login", params={"token": world.tokens["ann"]}, follow_redirects=False)
        assert begun.status_code == 303
        cookie = begun.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert world.tokens["ann"] not in begun.headers["set-cookie"]
        assert client.get("/v1/info").json()["user"] == "ann"  # the client keeps the cookie
        path, body = f"/v1/jobs/{world.jobs['ann']}/scale", {"workers": 2}
        assert client.post(path, json=body).status_code == 403
        own = {"Origin": "http://127.0.0.1:8765"}
        assert client.post(path, json=body, headers=own).status_code == 202

    def test_answers_allow_no_frames_and_no_foreign_scripts(self, client: TestClient, world: World) -> None:
        for answer in (client.get("/healthz"), client.get("/v1/jobs", headers=world.headers("ann"))):
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_audit_log_names_who_tried_what(client: TestClient, world: World) -> None:
    job = world.jobs["ann"]
    client.post(f"/v1/jobs/{job}/scale", headers=world.headers("ann"), json={"workers": 2})
    client.post(f"/v1/jobs/{job}/stop", headers=world.headers("bob"), json={})
    client.post(f"/v1/jobs/{job}/stop", json={})
    client.get("/v1/jobs", headers=world.headers("ann"))  # reading is not recorded
    records = client.get("/v1/audit", headers=world.headers("root")).json()["records"]
    told = [(one["user"], one["action"], one["object"], one["status"]) for one in records]
    assert told == [
        ("", "POST /v1/jobs/{job}/stop", f"/v1/jobs/{job}/stop", 401),
        ("bob", "POST /v1/jobs/{job}/stop", f"/v1/jobs/{job}/stop", 404),
        ("ann", "POST /v1/jobs/{job}/scale", f"/v1/jobs/{job}/scale", 202),
    ]


def test_logins_are_in_the_audit_log(client: TestClient, world: World) -> None:
    for token in (world.tokens["ann"], "scv_wrong"):
        client.get("/login", params={"token": token}, follow_redirects=False)
    records = client.get("/v1/audit", headers=world.headers("root")).json()["records"]

    assert [(one["user"], one["action"], one["status"]) for one in records] == [
        ("", "GET /login", 401),
        ("ann", "GET /login", 303),
    ]
    assert not any(token in str(records) for token in (*world.tokens.values(), "scv_wrong"))


def test_nobodys_requests_empty_the_audit_log(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "REFUSED_MAX", 20)
    monkeypatch.setattr(access, "AUDIT_MAX", 40)
    monkeypatch.setattr(access, "_TRIMMED_EVERY", 30)
    with store.together():
        store.add_audit("root", "PUT /v1/users/{user}", "/v1/users/mallory", status=200, client="h")
        store.add_audit("eve", "GET /login", "/login", status=303, client="h")
        for _ in range(120):
            store.add_audit("", "POST /v1/jobs", "/v1/jobs", status=401, client="h")
            store.add_audit("eve", "POST /v1/jobs", "/v1/jobs", status=403, client="h")
            store.add_audit("ann", "POST /v1/jobs", "/v1/jobs", status=201, client="h")

    kept = Counter((one.user, one.status) for one in store.audit(10_000))

    assert kept["root", 200] == kept["eve", 303] == 1
    assert 40 <= kept["ann", 201] <= 40 + 30
    assert 20 <= kept["eve", 403] <= 20 + 30
    assert 20 <= kept["", 401] <= 20 + 30


def test_a_host_that_was_named_is_served(store: Store, world: World) -> None:
    from scavenger.server.settings import ServerSettings

    app = create_app(store, ServerSettings(allowed_hosts=("Jobs.Example",)))
    with TestClient(app, base_url="http://jobs.example:8765") as client:
        assert client.get("/v1/info", headers=world.headers("ann")).status_code == 200


def test_a_token_that_another_process_revoked_is_valid_for_a_moment_at_most(store: Store) -> None:
    store.set_user("zoe", "viewer")
    token, text = store.new_token("zoe", "")
    at = 100.0
    callers = Callers(store, lambda: at)
    assert callers.find(text) == store.caller(text)
    assert callers.find("scv_unknown") is None

    store.revoke_token(token.id)
    assert callers.find(text) is not None
    at += KEPT_S
    assert callers.find(text) is None

    token, text = store.new_token("zoe", "")
    assert callers.find(text) is not None
    store.revoke_token(token.id)
    callers.forget()
    assert callers.find(text) is None
