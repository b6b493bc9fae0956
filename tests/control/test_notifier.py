"""Notifications arrive at a real HTTP server: signed, at least once, and without holding anything up."""

from __future__ import annotations

import datetime as dt
import http.server
import json
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate
from standardwebhooks.webhooks import Webhook as Verifier
from waiting import wait_for

from scavenger.control.notifying import requests
from scavenger.control.notifying.notifier import Notifier
from scavenger.control.notifying.requests import NotAllowedError, post
from scavenger.control.notifying.settings import notifying, tell
from scavenger.control.settings import parse_settings
from scavenger.domain.notification import Notification
from scavenger.domain.notify_settings import Webhook
from scavenger.errors import JobFileError
from scavenger.store import Store

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLsw7"
AT = dt.datetime(2026, 11, 23, 8, tzinfo=dt.UTC)
Received = tuple[dict[str, str], bytes]


class Receiver:
    """A web server on loopback that keeps what it gets, and answers as it is told to."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.got: list[Received] = []
        self.answers: list[int] = []
        self.headers: dict[str, str] = {}
        self.hold = threading.Event()
        self.hold.set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append(({key.lower(): value for key, value in self.headers.items()}, body))
                outer.hold.wait(60)
                self.send_response(outer.answers.pop(0) if outer.answers else 204)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def kinds(self) -> list[str]:
        return [json.loads(body)["type"] for _, body in self.got]

    def close(self) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store, which is migrated once."""
    path = tmp_path_factory.mktemp("store") / "scavenger.db"
    Store.open(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def url(tmp_path: Path, template: Path) -> str:
    return f"sqlite:///{shutil.copy(template, tmp_path)}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


@contextmanager
def running(notifier: Notifier) -> Iterator[Notifier]:
    notifier.start()
    try:
        yield notifier
    finally:
        notifier.stop()


def counts(store: Store) -> dict[tuple[str, str], int]:
    return {(one.webhook, one.state): one.count for one in store.notification_counts()}


def job(store: Store, **fields: Any) -> str:
    made = store.create_job("digits", spec={"constraints": {"budget": 5.0}}, job_file="/a/job.yaml").id
    store.update_job(made, state="running", **fields)
    return made


class TestDelivery:
    def test_a_job_is_told_of_with_a_signature_that_any_standard_library_accepts(
        self, store: Store, receiver: Receiver
    ) -> None:
        ended_before = job(store)
        store.finish_job(ended_before, state="failed", report=None, exit_code=1)
        hook = Webhook(url=receiver.url, secret_from="HOOK_SECRET", private=True)
        notifier = Notifier(store, {"team": hook}, look_s=0.05, environ={"HOOK_SECRET": SECRET})
        with running(notifier):
            wait_for(lambda: receiver.kinds() == ["ping"])  # nothing of the job that had ended before
            mine = job(store, cost_usd=4.2)
            wait_for(lambda: receiver.kinds() == ["ping", "job.budget"])
            store.finish_job(mine, state="succeeded", report=None, exit_code=0)
            wait_for(lambda: receiver.kinds() == ["ping", "job.budget", "job.done"])
            wait_for(lambda: counts(store) == {("team", "delivered"): 3})
        for headers, body in receiver.got:
            assert Verifier(SECRET).verify(body, headers) is not None
        assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 3
        told = json.loads(receiver.got[-1][1])
        assert (told["data"]["job"], told["data"]["state"]) == (mine, "succeeded")
        assert told["text"].endswith("for $4.20 of $5.00")

    def test_slack_gets_its_form_without_marks_of_its_own(self, store: Store, receiver: Receiver) -> None:
        hook = Webhook(url_from="HOOK_URL", format="slack", events=["job.failed"], private=True)
        environ = {"HOOK_URL": receiver.url}
        with running(Notifier(store, {"chat": hook}, address="http://x", look_s=0.05, environ=environ)):
            wait_for(lambda: len(receiver.got) == 1)
            store.finish_job(job(store), state="succeeded", report=None, exit_code=0)
            store.finish_job(job(store), state="failed", report=None, exit_code=6, error="<!channel> a & b")
            wait_for(lambda: len(receiver.got) == 2)
        told = json.loads(receiver.got[1][1])
        assert set(told) == {"text", "blocks"}
        assert "&lt;!channel&gt; a &amp; b" in told["text"]
        assert told["blocks"][0] == {"type": "section", "text": {"type": "mrkdwn", "text": told["text"]}}
        assert "|dashboard>" in told["blocks"][1]["elements"][0]["text"]
        assert "webhook-signature" not in receiver.got[1][0]

    def test_what_fails_is_sent_again_with_the_same_id_and_others_do_not_wait_for_it(
        self, url: str, receiver: Receiver
    ) -> None:
        late = dt.timedelta()
        broken = Receiver()
        broken.answers = [500] * 3
        hooks = {name: Webhook(url=one.url, private=True) for name, one in (("a", broken), ("b", receiver))}
        with (
            Store.open(url, clock=lambda: dt.datetime.now(dt.UTC) + late) as store,
            running(Notifier(store, hooks, look_s=0.05)),
        ):
            wait_for(lambda: counts(store) == {("a", "waiting"): 1, ("b", "delivered"): 1})

            def arrived_in_time() -> bool:
                nonlocal late
                late += dt.timedelta(hours=1)
                return ("a", "delivered") in counts(store)

            wait_for(arrived_in_time)
        assert len({headers["webhook-id"] for headers, _ in broken.got}) == 1
        assert len(broken.got) == 4
        broken.close()

    def test_a_redirect_is_not_followed(self, store: Store, receiver: Receiver) -> None:
        other = Receiver()
        receiver.answers, receiver.headers = [307], {"Location": other.url}
        with running(Notifier(store, {"team": Webhook(url=receiver.url, private=True)}, look_s=0.05)):
            wait_for(lambda: counts(store) == {("team", "refused"): 1})
        assert other.got == []
        other.close()

    def test_a_secret_that_is_not_set_makes_notifications_wait(
        self, store: Store, receiver: Receiver
    ) -> None:
        hook = Webhook(url=receiver.url, secret_from="HOOK_SECRET", private=True)
        with running(Notifier(store, {"team": hook}, look_s=0.05, environ={})):
            wait_for(
                lambda: (
                    [one.error for one in store.notification_counts()]
                    == ["the variable HOOK_SECRET is not set"]
                )
            )
        assert receiver.got == []

    def test_a_receiver_that_does_not_answer_holds_up_neither_the_job_nor_its_end(
        self, store: Store, receiver: Receiver
    ) -> None:
        receiver.hold.clear()
        notifier = Notifier(store, {"team": Webhook(url=receiver.url, private=True)}, look_s=0.05)
        notifier.start()
        wait_for(lambda: len(receiver.got) == 1)
        begin = time.monotonic()
        store.finish_job(job(store), state="succeeded", report=None, exit_code=0)
        assert time.monotonic() - begin < 2.0
        begin = time.monotonic()
        notifier.stop(0.3)
        assert time.monotonic() - begin < 5.0
        assert counts(store) == {("team", "waiting"): 2}  # what had happened is in the queue

    def test_what_a_killed_process_was_sending_is_sent_by_the_next(
        self, url: str, receiver: Receiver
    ) -> None:
        receiver.hold.clear()
        code = (
            "import sys, time\n"
            "from scavenger.control.notifying.notifier import Notifier\n"
            "from scavenger.domain.notify_settings import Webhook\n"
            "from scavenger.store import Store\n"
            "store = Store.open(sys.argv[1])\n"
            "Notifier(store, {'team': Webhook(url=sys.argv[2], private=True)}, look_s=0.05).start()\n"
            "time.sleep(60)\n"
        )
        with subprocess.Popen([sys.executable, "-c", code, url, receiver.url]) as sender:
            wait_for(lambda: len(receiver.got) == 1)
            sender.send_signal(signal.SIGKILL)
        receiver.hold.set()
        later = dt.timedelta(minutes=3)  # by then the dead process holds it no longer
        hooks = {"team": Webhook(url=receiver.url, private=True)}
        with (
            Store.open(url, clock=lambda: dt.datetime.now(dt.UTC) + later) as store,
            running(Notifier(store, hooks, look_s=0.05)),
        ):
            wait_for(lambda: counts(store) == {("team", "delivered"): 1})
        [first, second] = [headers["webhook-id"] for headers, _ in receiver.got]
        assert first == second


class TestSettings:
    def test_a_command_tells_of_its_own_job_and_sends_before_it_ends(
        self, store: Store, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "config.toml"
        file.write_text(f'[notify.team]\nurl = "{receiver.url}"\nprivate = true\n')
        monkeypatch.setenv("SCAVENGER_CONFIG", str(file))
        with notifying(store, only_mine=True, within_s=60):
            wait_for(lambda: len(receiver.got) == 1)
            store.finish_job(job(store), state="succeeded", report=None, exit_code=0)
        assert receiver.kinds() == ["ping", "job.done"]
        tell(store, Notification("msg_x", "vms.leftover", AT, "1 VM", {}))
        assert counts(store)["team", "waiting"] == 1

    def test_without_settings_nothing_is_started_and_wrong_ones_fail_nothing(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "config.toml"
        monkeypatch.setenv("SCAVENGER_CONFIG", str(file))
        for text in ("", "[notify"):
            file.write_text(text)
            before = threading.active_count()
            with notifying(store):
                assert threading.active_count() == before
            tell(store, Notification("msg_x", "vms.leftover", AT, "1 VM", {}))
        assert store.notification_counts() == ()

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ('[notify.team]\nurl = "http://chat.example/x"', "must begin with https://"),
            ('[notify.team]\nurl = "file:///etc/passwd"\nprivate = true', "must begin with https://"),
            ("[notify.team]\nprivate = true", "must have either url or url_from"),
            (
                '[notify.team]\nurl = "https://x"\nurll = "y"',
                "unknown key 'urll' in notify.team; did you mean 'url'",
            ),
            ('[notify.team]\nurl = "https://x"\nevents = ["job.fail"]', "notify.team.events"),
        ],
    )
    def test_what_is_wrong_is_refused_with_its_place(self, text: str, words: str) -> None:
        with pytest.raises(JobFileError, match="notify") as refused:
            parse_settings(text, path="config.toml")
        assert words in str(refused.value)


class TestAddresses:
    """No notification reaches a machine inside unless the settings allow it, whatever its name says."""

    @pytest.mark.parametrize(
        "address",
        [
            "127.0.0.1",
            "10.0.0.1",
            "192.168.1.1",
            "172.16.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "::1",
            "fe80::1%1",
            "fd00::1",
            "::ffff:169.254.169.254",
            "224.0.0.1",
            "64:ff9b::a9fe:a9fe",  # NAT64 to 169.254.169.254
            "64:ff9b:1::a9fe:a9fe",
            "2002:7f00:1::1",  # 6to4 of 127.0.0.1
            "::7f00:1",
        ],
    )
    def test_private_addresses_are_refused_before_a_connection(
        self, address: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answer = [(2, 1, 6, "", ("93.184.215.14", 443)), (2, 1, 6, "", (address, 443))]
        monkeypatch.setattr(requests.socket, "getaddrinfo", lambda *_, **__: answer)
        with pytest.raises(NotAllowedError, match="private network"):
            post("https://innocent.example/x", b"{}", {}, private=False)

    @pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "https://127.0.0.1:1/x", "https://[::1]:1/x"])
    def test_this_machine_is_refused_unless_it_is_allowed(self, url: str) -> None:
        with pytest.raises(NotAllowedError):
            post(url, b"{}", {}, private=False)
        assert post(url, b"{}", {}, private=True).status is None  # nobody listens there

    def test_http_is_never_for_other_machines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            requests.socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("10.0.0.1", 80))]
        )
        with pytest.raises(NotAllowedError, match="use https"):
            post("http://chat.internal/x", b"{}", {}, private=True)

    @pytest.mark.parametrize("url", ["ftp://x/y", "https://", "https://user:pw@x/", "https://[", "x"])
    def test_other_addresses_are_refused(self, url: str) -> None:
        with pytest.raises(NotAllowedError):
            post(url, b"{}", {}, private=True)


def test_the_certificate_must_be_that_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, key)
    receiver = Receiver(tls=context)
    url = f"https://localhost:{receiver.port}/hook"
    unknown = post(url, b"{}", {}, private=True)
    assert (unknown.status, "CERTIFICATE_VERIFY_FAILED" in unknown.reason) == (None, True)
    monkeypatch.setenv("SSL_CERT_FILE", str(public))
    assert post(url, b"{}", {}, private=True).status == 204
    assert receiver.got[-1][0]["host"] == f"localhost:{receiver.port}"
    other = post(url.replace("localhost", "127.0.0.2"), b"{}", {}, private=True)
    assert other.status is None
    receiver.close()
