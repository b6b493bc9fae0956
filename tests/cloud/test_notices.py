"""A VM hears of its end in time, once, and says so when it cannot hear."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from aws_imds import Imds
from gce_metadata import GceMetadata
from hypothesis import given
from hypothesis import strategies as st

from scavenger.cloud.metadata import Reply, http_transport
from scavenger.cloud.notices import NOTICE_DELAY_MAX_S, watch
from scavenger.domain.vm import Notice
from scavenger.errors import CloudUnavailableError, ConfigurationError, NotSupportedError

pytestmark = pytest.mark.slow

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class Vm:
    """Time on a VM, that moves by pauses alone, and what its cloud has told it by then."""

    def __init__(self, interrupted_s: float | None = None, rebalance_s: float | None = None) -> None:
        self.now_s = 0.0
        self.interrupted_s, self.rebalance_s = interrupted_s, rebalance_s

    def clock(self) -> float:
        return self.now_s

    def now(self) -> datetime:
        return BEGAN + timedelta(seconds=self.now_s)

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now_s += seconds

    def interrupted_at(self) -> datetime | None:
        due = self.interrupted_s is not None and self.now_s >= self.interrupted_s
        return BEGAN + timedelta(seconds=(self.interrupted_s or 0) + 120) if due else None

    def rebalance_at(self) -> datetime | None:
        due = self.rebalance_s is not None and self.now_s >= self.rebalance_s
        return BEGAN + timedelta(seconds=self.rebalance_s or 0) if due else None

    def heard(self, imds: Imds, *, until_s: float) -> list[tuple[float, Notice]]:
        notices = watch(
            "aws",
            stopped=lambda: self.now_s > until_s,
            transport=http_transport("127.0.0.1", imds.port),
            clock=self.clock,
            now=self.now,
            sleep=self.sleep,
        )
        return [(self.now_s, notice) for notice in notices]


@pytest.fixture
def vm() -> Vm:
    return Vm()


@pytest.fixture
def imds(vm: Vm) -> Iterator[Imds]:
    with closing(Imds(vm.now, vm.interrupted_at, vm.rebalance_at)) as service:
        yield service


@pytest.fixture
def gce() -> Iterator[GceMetadata]:
    with closing(GceMetadata()) as service:
        yield service


def test_ec2_tells_rebalance_and_interruption_once_each_and_in_time(vm: Vm, imds: Imds) -> None:
    vm.rebalance_s, vm.interrupted_s = 31.0, 64.5

    heard = vm.heard(imds, until_s=180.0)

    assert [notice for _, notice in heard] == [
        Notice("rebalance"),
        Notice("preemption", BEGAN + timedelta(seconds=184)),
    ]
    assert 31.0 <= heard[0][0] <= 31.0 + NOTICE_DELAY_MAX_S
    assert 64.5 <= heard[1][0] <= 64.5 + NOTICE_DELAY_MAX_S


def test_ec2_is_asked_with_one_token_for_hours_and_never_without(vm: Vm, imds: Imds) -> None:
    assert vm.heard(imds, until_s=120.0) == []

    assert imds.requests[0] == "PUT /latest/api/token"
    assert sum(request.startswith("PUT") for request in imds.requests) == 1
    assert len(imds.requests) > 2 * 120.0 / NOTICE_DELAY_MAX_S


def test_a_token_that_ec2_has_forgotten_is_fetched_again(vm: Vm, imds: Imds) -> None:
    vm.interrupted_s = 30.0
    sleep = vm.sleep

    def forgetful(seconds: float) -> None:
        imds.forget_tokens()
        sleep(seconds)

    vm.sleep = forgetful  # type: ignore[method-assign]

    heard = vm.heard(imds, until_s=60.0)

    assert [notice.kind for _, notice in heard] == ["preemption"]
    assert heard[0][0] <= 30.0 + NOTICE_DELAY_MAX_S


def test_a_service_that_fails_for_a_while_is_asked_on(vm: Vm, imds: Imds) -> None:
    vm.interrupted_s = 0.0
    imds.down = True
    sleep = vm.sleep

    def repaired(seconds: float) -> None:
        sleep(seconds)
        imds.down = vm.now_s < 20.0

    vm.sleep = repaired  # type: ignore[method-assign]

    heard = vm.heard(imds, until_s=60.0)

    assert [notice.kind for _, notice in heard] == ["preemption"]
    assert 20.0 <= heard[0][0] <= 20.0 + NOTICE_DELAY_MAX_S


@pytest.mark.parametrize("provider", ["aws", "gcp"])
def test_a_watch_that_cannot_hear_says_so(provider: str, vm: Vm) -> None:
    def nobody(method: str, path: str, headers: Mapping[str, str], answer_max_s: float) -> Reply:
        raise ConnectionRefusedError("nobody there")

    notices = watch(
        provider, stopped=lambda: False, transport=nobody, clock=vm.clock, now=vm.now, sleep=vm.sleep
    )

    with pytest.raises(CloudUnavailableError, match="nobody there"):
        next(notices)
    assert vm.now_s < 120.0


def test_a_watch_whose_service_answers_now_and_then_goes_on(vm: Vm) -> None:
    failures = 0

    def shaky(method: str, path: str, headers: Mapping[str, str], answer_max_s: float) -> Reply:
        nonlocal failures
        if vm.now_s % 45.0 >= 4.0:
            failures += 1
            raise TimeoutError("no answer")
        return Reply(200, {}, "token") if method == "PUT" else Reply(404, {}, "")

    heard = watch("aws", stopped=lambda: vm.now_s > 600.0, transport=shaky, clock=vm.clock, sleep=vm.sleep)

    assert list(heard) == []
    assert failures > 100


def test_a_cloud_without_notices_is_refused_at_once() -> None:
    with pytest.raises(NotSupportedError, match="'local'"):
        watch("local", stopped=lambda: False)


@given(st.floats(0, 500), st.floats(0, 0.4))
def test_a_notice_is_heard_within_the_bound_whenever_it_comes(at_s: float, answer_s: float) -> None:
    vm = Vm(interrupted_s=at_s)

    def service(method: str, path: str, headers: Mapping[str, str], answer_max_s: float) -> Reply:
        assert answer_s <= answer_max_s
        told = vm.interrupted_at()
        vm.now_s += answer_s
        if path == "/latest/api/token":
            return Reply(200, {}, "token")
        if path.endswith("instance-action") and told:
            return Reply(200, {}, f'{{"action": "terminate", "time": "{told.isoformat()}"}}')
        return Reply(404, {}, "")

    notices = watch(
        "aws",
        stopped=lambda: vm.now_s > 600,
        transport=service,
        clock=vm.clock,
        now=vm.now,
        sleep=vm.sleep,
    )
    notice = next(notices)

    assert notice.kind == "preemption"
    assert vm.now_s - at_s <= NOTICE_DELAY_MAX_S


@given(
    st.one_of(st.text(), st.sampled_from(['{"action": "stop"}', "[]", "3", '{"time": 3}', '{"time": "x"}']))
)
def test_an_interruption_that_cannot_be_read_is_one_all_the_same(page: str) -> None:
    def service(method: str, path: str, headers: Mapping[str, str], answer_max_s: float) -> Reply:
        return Reply(404 if path.endswith("rebalance") else 200, {}, page)

    notice = next(watch("aws", stopped=lambda: False, transport=service, sleep=lambda seconds: None))

    assert notice == Notice("preemption", None)


def test_gce_is_heard_the_moment_that_it_tells(gce: GceMetadata) -> None:
    heard: list[Notice] = []
    done = threading.Event()
    began = datetime.now(UTC)

    def listen() -> None:
        notices = watch(
            "gcp",
            stopped=lambda: bool(heard),
            transport=http_transport("127.0.0.1", gce.port),
            sleep=lambda seconds: time.sleep(min(seconds, 0.01)),
        )
        heard.extend(notices)
        done.set()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    gce.wait_for_held()
    assert not heard
    gce.expire()
    gce.wait_for_held()
    assert not heard
    gce.preempt()
    gce.expire()

    # The listener hears, then looks once more before it asks whether to stop.
    for _ in range(500):
        if done.wait(0.01):
            break
        gce.expire()
    assert done.is_set()
    assert [notice.kind for notice in heard] == ["preemption"]
    at = heard[0].at
    assert at is not None
    assert began + timedelta(seconds=30) <= at <= datetime.now(UTC) + timedelta(seconds=30)


def test_gce_that_tells_at_once_is_not_missed_nor_told_twice(gce: GceMetadata, vm: Vm) -> None:
    gce.preempt()
    looks = iter([False, False, False, True])

    def expiring(seconds: float) -> None:
        vm.sleep(seconds)
        threading.Timer(0.05, gce.expire).start()

    notices = list(
        watch(
            "gcp",
            stopped=lambda: next(looks),
            transport=http_transport("127.0.0.1", gce.port),
            clock=vm.clock,
            now=vm.now,
            sleep=expiring,
        )
    )

    assert notices == [Notice("preemption", BEGAN + timedelta(seconds=30))]
    assert len(gce.requests) == 3
    assert gce.timeouts_s == [20, 20]


def test_a_stranger_at_gces_address_is_not_believed(vm: Vm) -> None:
    def stranger(method: str, path: str, headers: Mapping[str, str], answer_max_s: float) -> Reply:
        return Reply(200, {"etag": "1"}, "TRUE")

    notices = watch(
        "gcp", stopped=lambda: False, transport=stranger, clock=vm.clock, now=vm.now, sleep=vm.sleep
    )

    with pytest.raises(CloudUnavailableError):
        next(notices)


def test_no_proxy_is_asked(vm: Vm, imds: Imds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    vm.interrupted_s = 0.0

    assert [notice.kind for _, notice in vm.heard(imds, until_s=1.0)] == ["preemption"]


@pytest.mark.parametrize(
    ("provider", "variable", "address"),
    [
        ("aws", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:{}"),
        ("aws", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:{}/"),
        ("gcp", "GCE_METADATA_HOST", "127.0.0.1:{}"),
    ],
)
def test_the_clouds_own_variables_name_another_metadata_service(
    vm: Vm, imds: Imds, gce: GceMetadata, provider: str, variable: str, address: str
) -> None:
    vm.interrupted_s = 0.0
    gce.preempt()
    port = imds.port if provider == "aws" else gce.port

    heard = watch(
        provider,
        stopped=lambda: vm.now_s > 5.0,
        environment={variable: address.format(port)},
        clock=vm.clock,
        now=vm.now,
        sleep=vm.sleep,
    )

    assert next(heard).kind == "preemption"


@pytest.mark.parametrize(
    ("provider", "variable", "address"),
    [
        ("aws", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "https://metadata.example.com"),
        ("aws", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://"),
        ("gcp", "GCE_METADATA_HOST", "metadata:eighty"),
    ],
)
def test_a_variable_that_holds_no_address_is_told_at_once(provider: str, variable: str, address: str) -> None:
    with pytest.raises(ConfigurationError, match=variable):
        watch(provider, stopped=lambda: True, environment={variable: address})
