"""Names, labels and machine types of Google Cloud."""

from __future__ import annotations

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nested import built

from scavenger.cloud.gcp.names import (
    CustomType,
    custom_type,
    instance_name,
    labels_of,
    owner_filter,
    request_id,
    tags_of,
)
from scavenger.domain.vm import VmRequest
from scavenger.errors import ConfigurationError

NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
VALUE = re.compile(r"[a-z0-9_-]{0,63}")
TOKENS = st.uuids(allow_nil=False).map(str)


def request_with(**changes: object) -> VmRequest:
    values: dict[str, object] = {
        "token": str(uuid.UUID(int=7)),
        "owner": "o",
        "job_id": "j",
        "slot": 0,
        "generation": 0,
        "vm": "e2-standard-4",
        "zone": "z",
        "spot": False,
        "run_max_s": 60.0,
    }
    return built(VmRequest, **values | changes)  # type: ignore[arg-type]


@given(TOKENS, TOKENS)
def test_names_are_allowed_and_tell_tokens_apart(first: str, second: str) -> None:
    assert NAME.fullmatch(instance_name(first))
    assert (instance_name(first) == instance_name(second)) == (first == second)


@given(TOKENS, st.integers(0, 50), st.integers(0, 50))
def test_each_attempt_of_a_token_has_one_request_id(token: str, first: int, second: int) -> None:
    assert request_id(token, 0) == token
    assert str(uuid.UUID(request_id(token, first))) == request_id(token, first)
    assert (request_id(token, first) == request_id(token, second)) == (first == second)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        str(uuid.UUID(int=0)),
        str(uuid.UUID(int=2**127)).upper().replace("8", "A"),
        uuid.UUID(int=2**126 + 7).hex,
    ],
)
def test_a_token_that_google_would_not_take_is_refused(token: str) -> None:
    with pytest.raises(ConfigurationError, match="UUID"):
        instance_name(token)


@given(
    owner=st.text(max_size=12),
    job_id=st.text(max_size=12),
    slot=st.integers(0, 10**6),
    generation=st.integers(0, 10**6),
    token=TOKENS,
)
def test_what_labels_say_is_what_was_written(
    owner: str, job_id: str, slot: int, generation: int, token: str
) -> None:
    request = request_with(owner=owner, job_id=job_id, slot=slot, generation=generation, token=token)
    try:
        labels = labels_of(request)
    except ConfigurationError:
        assert max(len(owner), len(job_id)) > 7  # no character takes more than 8 of a label's 63
        return

    assert all(KEY.fullmatch(key) and VALUE.fullmatch(value) for key, value in labels.items())
    tags = tags_of(labels)
    assert (tags.owner, tags.job_id, tags.token) == (owner, job_id, token)
    assert (tags.slot, tags.generation) == (slot, generation)
    assert owner_filter(owner).endswith(f'= "{labels["scavenger-owner"]}"')


@given(st.text("aB_ -é", max_size=5), st.text("aB_ -é", max_size=5))
def test_different_owners_never_have_one_label(first: str, second: str) -> None:
    assert (owner_filter(first) == owner_filter(second)) == (first == second)


@given(
    st.text(st.characters(codec="utf-8"), max_size=40),
    st.dictionaries(st.text(max_size=9), st.text(), max_size=4),
)
def test_labels_of_others_are_read_without_an_error(text: str, others: dict[str, str]) -> None:
    keys = ("owner", "token", "job", "slot", "generation")
    tags = tags_of(others | {f"scavenger-{key}": text for key in keys})

    assert tags.slot == tags.generation
    assert tags.slot >= -1


@given(st.lists(st.tuples(st.text(max_size=70), st.text(max_size=80)), max_size=4))
def test_labels_of_a_request_are_made_allowed_or_refused(labels: list[tuple[str, str]]) -> None:
    try:
        made = labels_of(request_with(labels=tuple(labels)))
    except ConfigurationError:
        assert labels
        return

    assert len(made) == 6 + len(labels)
    assert all(KEY.fullmatch(key) and VALUE.fullmatch(value) for key, value in made.items())


@pytest.mark.parametrize(
    "labels",
    [
        (("1st", "x"),),
        (("", "x"),),
        (("scavenger-owner", "me"),),
        (("Team", "a"), ("team", "b")),
        tuple((f"k{number}", "v") for number in range(60)),
    ],
)
def test_labels_that_cannot_be_had_are_refused(labels: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(ConfigurationError, match="label"):
        labels_of(request_with(labels=labels))


def test_a_long_owner_is_refused_rather_than_cut() -> None:
    labels_of(request_with(owner="a" * 63))
    with pytest.raises(ConfigurationError, match="64 characters"):
        labels_of(request_with(owner="a" * 64))


@given(
    family=st.sampled_from(["n1", "n2", "n2d", "e2"]),
    cpus=st.integers(1, 16).map(lambda half: 2 * half),
    quarters_per_cpu=st.integers(4, 26),
)
def test_a_custom_type_is_read_as_it_is_written(family: str, cpus: int, quarters_per_cpu: int) -> None:
    kind = CustomType(family, cpus, cpus * quarters_per_cpu * 256)

    assert custom_type(kind.name()) == kind
    assert kind.name().startswith("custom-" if family == "n1" else f"{family}-custom-")


@pytest.mark.parametrize("name", ["e2-standard-4", "n1-standard-1", "a2-highgpu-1g", "custom", "e2-custom-4"])
def test_a_predefined_type_is_no_custom_one(name: str) -> None:
    assert custom_type(name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("e2-custom-3-4096", "even"),
        ("e2-custom-4-4100", "256 MiB"),
        ("e2-custom-4-33024", "0.5 to 8 GiB"),
        ("n4-custom-4-4096", "2 to 8 GiB"),
        ("custom-4-2048", "0.9 to 6.5 GiB"),
    ],
)
def test_a_custom_type_that_cannot_be_had_is_refused(name: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        custom_type(name)


def test_extended_memory_lifts_the_upper_bound_alone() -> None:
    assert custom_type("n2-custom-4-65536-ext") == CustomType("n2", 4, 65_536, extended=True)
    with pytest.raises(ConfigurationError):
        custom_type("n2-custom-4-1024-ext")
