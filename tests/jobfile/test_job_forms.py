"""The written forms of the job file's values, and what a job derives from them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from scavenger.domain.forms import parse_duration, parse_engine, parse_money, shown, worker_group_of
from scavenger.domain.job import Amount, EntryPoint, GoalSpec, Infra, JobSpec
from scavenger.domain.ranges import BatchRange

REQUIRED: dict[str, Any] = {"version": 1, "name": "digits", "train": "train:job", "goal": {"max_epochs": 3}}


def job(**values: Any) -> JobSpec:
    return JobSpec.model_validate(REQUIRED | values)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("8h", 28800),
        ("10m", 600),
        ("90s", 90),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("1d", 86400),
    ],
)
def test_durations_mean_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@given(st.tuples(*(st.integers(0, 59) for _ in range(3))).filter(any))
def test_parts_of_a_duration_add_up(parts: tuple[int, int, int]) -> None:
    text = "".join(f"{n}{unit}" for n, unit in zip(parts, "hms", strict=True) if n)

    assert parse_duration(text) == parts[0] * 3600 + parts[1] * 60 + parts[2]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "h",
        "8",
        "8 h",
        "8H",
        "30m1h",
        "1h1h",
        "-8h",
        "8h ",
        "8h\n",
        "8w",
        "1e3s",
        True,
        None,
        [],
        0,
        -1,
        math.nan,
        math.inf,
        4e7,
        "0s",
    ],
)
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        parse_duration(value)


@pytest.mark.parametrize(("value", "dollars"), [("$20", 20), ("$0.50", 0.5), (20, 20), (0, 0), (0.25, 0.25)])
def test_money_means_dollars(value: object, dollars: float) -> None:
    assert parse_money(value) == dollars


@pytest.mark.parametrize(
    "value", ["20", "20$", "$-1", "$", "€20", "$1,000", "$1e3", "$20\n", -1, math.nan, 1e10, True]
)
def test_what_is_no_money_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        parse_money(value)


@given(st.integers(1, 2**24), st.integers(1, 2**24), st.none() | st.integers(200, 2**24))
def test_batch_sizes_rise_from_min_to_max(one: int, other: int, step: int | None) -> None:
    low, high = sorted((one, other))

    sizes = BatchRange(min=low, max=high, step=step).sizes()

    assert (sizes[0], sizes[-1]) == (low, high)
    gaps = [b - a for a, b in pairwise(sizes)]
    assert all(gap > 0 for gap in gaps)
    if step is None:
        assert all(b == 2 * a for a, b in pairwise(sizes[:-1]))
        assert all(b <= 2 * a for a, b in pairwise(sizes))
    else:
        assert all(gap == step for gap in gaps[:-1])
        assert all(gap <= step for gap in gaps)


@pytest.mark.parametrize(
    ("written", "counts"),
    [("1..4", (1, 2, 3, 4)), (3, (3,)), ([8, 1, 2], (1, 2, 8)), ("2..2", (2,))],
)
def test_cluster_sizes_are_sorted_whatever_their_form(written: object, counts: tuple[int, ...]) -> None:
    assert job(search={"workers": written}).worker_counts == counts


def test_only_cluster_sizes_that_elastic_allows_are_searched() -> None:
    bounded = job(search={"workers": "1..8"}, elastic={"min": 2, "max": 3})

    assert bounded.worker_counts == (2, 3)
    assert bounded.elastic_range == (2, 3)


def test_configurations_with_fewer_samples_than_workers_are_not_counted() -> None:
    assert job(search={"workers": [1, 4, 8], "batch_size": [2, 4, 8]}).configuration_count == 3 + 2 + 1


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("val_loss", "min"),
        ("mean_squared_error", "min"),
        ("val_mae", "min"),
        ("perplexity", "min"),
        ("val_accuracy", "max"),
        ("auc", "max"),
        ("val_false_negatives", "min"),
        ("val_hinge", "min"),
        ("val_brier", "min"),
        (None, "max"),
    ],
)
def test_a_metric_falls_when_it_is_named_like_a_loss(metric: str | None, direction: str) -> None:
    assert GoalSpec(metric=metric, max_epochs=1).direction == direction
    assert GoalSpec(metric=metric, max_epochs=1, mode="max").direction == "max"
    assert GoalSpec(metric=metric, max_epochs=1, mode="min").direction == "min"


def test_a_loss_or_a_score_of_its_own_scale_may_have_any_finite_target() -> None:
    for metric in ("val_loss", "bleu"):
        assert GoalSpec(metric=metric, target=27.3, max_epochs=1).target == 27.3


@pytest.mark.parametrize(
    ("text", "infra"),
    [
        ("local", Infra("local", "")),
        ("gcp/northamerica-northeast1-b", Infra("gcp", "northamerica-northeast1-b")),
        ("aws/us-gov-west-1a", Infra("aws", "us-gov-west-1a")),
        ("kubernetes", Infra("kubernetes", "")),
        (
            "kubernetes/arn:aws:eks:us-east-1:1:cluster/a",
            Infra("kubernetes", "arn:aws:eks:us-east-1:1:cluster/a"),
        ),
    ],
)
def test_infra_is_a_provider_and_a_place_and_writes_itself_back(text: str, infra: Infra) -> None:
    assert Infra.parse(text) == infra
    assert str(infra) == text


@pytest.mark.parametrize(
    "text", ["local/", "local/x", "gcp/", "aws", "aws/us-east-1\n", "gcp/../x", "", "kubernetes/"]
)
def test_a_provider_without_a_fitting_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must"):
        Infra.parse(text)


def test_an_entry_point_is_a_module_and_an_object() -> None:
    assert EntryPoint.parse("a.b:c") == EntryPoint("a.b", "c")
    for text in ("a", "a:", ":a", "a:b:c", "a b:c", "1a:b", "a..b:c", "a:b.c", "import:x", "a:b\n", 3):
        with pytest.raises(ValueError, match=r"must be module:object"):
            EntryPoint.parse(text)


def test_a_utility_is_worth_by_time_or_an_expression() -> None:
    def curve(**form: Any) -> Any:
        return job(objective={"utility": form}).utility

    assert curve(linear={"worth": "$50", "until": "8h"}).at(4 * 3600.0) == 25.0
    assert curve(concave={"worth": "$50", "until": "8h"}).at(4 * 3600.0) == 37.5
    steps = curve(step=[{"worth": "$50", "until": "4h"}, {"worth": "$20", "until": "8h"}])
    assert [steps.at(hours * 3600.0) for hours in (0, 4, 6, 8, 9)] == [50.0, 50.0, 35.0, 20.0, 0.0]
    assert steps.at(9 * 3600.0, latest_s=10 * 3600.0) == 10.0
    assert job(objective={"utility": "-time_s"}).utility is None
    assert job().utility is None


def test_a_straggler_is_told_by_the_rule_that_is_named_or_the_papers() -> None:
    def told(straggler: Any) -> Any:
        return job(elastic={"straggler": straggler}).elastic.replacing

    assert told("none") is None
    assert (told("replace").rule, told("replace").limit) == ("ewma", 0.8)
    assert (told({"rule": "edl"}).limit, told({"rule": "edl", "threshold": 1.5}).limit) == (1.2, 1.5)
    for rule, threshold in (("ewma", 1.0), ("edl", 1.0), ("ewma", 1.2), ("edl", 0.8)):
        with pytest.raises(ValidationError, match="of the median"):
            told({"rule": rule, "threshold": threshold})


def test_an_amount_admits_itself_and_more_only_where_it_says_so() -> None:
    assert Amount(4).admits(4)
    assert not Amount(4).admits(8)
    assert Amount(4, or_more=True).admits(8)
    assert not Amount(4, or_more=True).admits(2)


def test_true_is_no_number_and_text_is_no_number() -> None:
    for values in ({"seed": True}, {"seed": "3"}, {"version": True}, {"profile": {"steps": 20.0}}):
        with pytest.raises(ValidationError):
            job(**values)


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        job().seed = 3  # type: ignore[misc]


def test_accelerators_are_part_of_a_size_and_one_where_no_number_is_given() -> None:
    asked = [job(resources={"accelerators": text}).resources for text in ("T4", "T4:4")]

    assert [one and str(one.accelerators) for one in asked] == ["T4:1", "T4:4"]
    with pytest.raises(ValidationError, match="exactly one of"):
        job(resources={"accelerators": "T4", "vm": "g4dn.xlarge"})


@examples(24)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "infra": st.sampled_from(["local", "gcp/us-central1", "kubernetes/minikube"]),
            "resources": st.sampled_from(
                [{"vm": "a"}, {"any_of": ["a", {"vm": "b"}]}, {"cpus": "4+"}, {"cpus": 4, "memory": "3.75+"}]
            ),
            "search": st.fixed_dictionaries(
                {"workers": st.sampled_from(["1..4", 2, [1, 4]])},
                optional={"batch_size": st.sampled_from([{"min": 64, "max": 300}, [8, 16], 32])},
            ),
            "objective": st.sampled_from(
                [
                    "time",
                    {"utility": "-cost_usd"},
                    {"utility": {"linear": {"worth": "$50", "until": "8h"}}},
                    {"utility": {"concave": {"worth": 50, "until": "8h", "power": 3}}},
                    {"utility": {"step": [{"worth": "$50", "until": "4h"}, {"worth": 20, "until": "8h"}]}},
                ]
            ),
            "elastic": st.sampled_from(
                [
                    {"policy": "throughput", "efficiency": 0.2, "batch": "weak", "batch_max": 512},
                    {"straggler": "replace"},
                    {"straggler": {"rule": "edl", "threshold": 1.5}, "failures": {"window": "5m"}},
                ]
            ),
            "constraints": st.fixed_dictionaries(
                {},
                optional={"deadline": st.sampled_from(["8h", 0.1]), "budget": st.sampled_from(["$20", 0.5])},
            ),
            "checkpoint": st.just({"path": "./c", "every": "10m"}),
            "limits": st.just({"start": "5m"}),
            "seed": st.integers(0, 2**32 - 1),
        },
    )
)
def test_a_job_written_out_reads_back_the_same(values: dict[str, Any]) -> None:
    spec = job(**values)

    assert JobSpec.model_validate(spec.written()) == spec
    assert JobSpec.model_validate(spec.model_dump()) == spec
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


@given(st.text() | st.integers() | st.floats() | st.none() | st.booleans() | st.lists(st.none()))
def test_any_value_is_shown_on_one_short_harmless_line(value: object) -> None:
    assert shown(value).isprintable()
    assert len(shown(value)) <= 60 * 10


@pytest.mark.parametrize(
    "text",
    [
        *("process", "ray", "ray/auto", "ray/local", "ray/10.0.0.1:6379", "ray/head.internal:6379"),
        *("ray/train-1", "ray/train-1/workers", "ray/auto/local"),
    ],
)
def test_an_engine_is_this_machine_or_a_ray_cluster(text: str) -> None:
    assert parse_engine(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "Ray", "ray/", "ray/Head", "ray/a/b/c", "ray/a/", "ray/:1", "ray/a b:1", "rayy", "local", 3, None],
)
def test_any_other_engine_is_refused_with_what_there_is(text: object) -> None:
    with pytest.raises(
        PydanticCustomError, match="must be process, ray, ray/HOST:PORT or ray/RAYCLUSTER, not"
    ):
        parse_engine(text)


@pytest.mark.parametrize(
    ("engine", "group"),
    [
        *((other, None) for other in ("process", "ray", "ray/auto", "ray/local", "ray/head:6379")),
        ("ray/train", ("train", "")),
        ("ray/train/workers", ("train", "workers")),
        ("ray/local/workers", ("local", "workers")),
    ],
)
def test_a_worker_group_of_a_raycluster_is_told_from_an_address(
    engine: str, group: tuple[str, str] | None
) -> None:
    assert worker_group_of(engine) == group
