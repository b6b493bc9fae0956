"""Laws of the values of operations: what cannot be asked cannot be made, and JSON loses nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.domain import operation as op

counts = st.integers(1, 10_000)
ids = st.lists(st.from_regex(r"\A[a-z][0-9]{1,4}\Z"), min_size=1, max_size=4, unique=True).map(tuple)
operations = st.one_of(
    st.builds(op.ScaleTo, counts),
    st.builds(op.ScaleOut, counts),
    st.builds(op.ScaleIn, ids),
    st.builds(op.ScaleAggregators, counts),
    st.builds(op.Migrate, st.none() | ids),
    st.builds(
        lambda least, more, steps: op.ProfileRange(least, least + more, steps),
        counts,
        counts,
        st.integers(3, 99),
    ),
    st.builds(op.StopJob, st.booleans()),
    st.builds(op.TakeShare, st.integers(0, 99), counts, st.sampled_from(("", "urgent goes first"))),
)


@given(operations)
def test_an_operation_survives_the_way_through_json(operation: op.Operation) -> None:
    document = json.loads(json.dumps(op.operation_document(operation)))

    assert op.operation_from_document(document) == operation
    assert op.describe(operation)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: op.ScaleTo(0), "workers must be a whole number of at least 1, not 0"),
        (lambda: op.ScaleTo(True), "not True"),
        (lambda: op.ScaleTo(1.5), "not 1.5"),  # type: ignore[arg-type]
        (lambda: op.ScaleOut(-1), "at least 1, not -1"),
        (lambda: op.ScaleAggregators(0), "aggregators must be a whole number of at least 1, not 0"),
        (lambda: op.ScaleIn(()), "must be named"),
        (lambda: op.ScaleIn(("w1", "w1")), "names a worker twice"),
        (lambda: op.ScaleIn(("w1; rm -rf /",)), "is no worker's id"),
        (lambda: op.Migrate(("\x1b[2J",)), "is no worker's id"),
        (lambda: op.ProfileRange(4, 2), "most workers must be a whole number of at least 4, not 2"),
        (lambda: op.ProfileRange(1, 2, steps=2), "steps must be"),
        (lambda: op.StopJob("yes"), "save must be true or false"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_asked_cannot_be_made(make, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"kind": "rm"},
        {"kind": []},
        {"kind": "scale_to"},
        {"kind": "scale_to", "workers": "4"},
        {"kind": "scale_to", "workers": 4, "colour": "red"},
        {"kind": "scale_in", "remove": "w1"},
        {"kind": "stop", "save": None},
    ],
    ids=str,
)
def test_a_document_that_is_no_operation_is_refused_in_one_line(document) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are those of the values
        op.operation_from_document(document)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("reason", ["", "pruned: 0.31 after 4 epochs", "zu teuer – später", "予算"])
def test_a_stop_may_have_a_reason(reason: str) -> None:
    assert op.operation_from_document({"kind": "stop", "save": True, "reason": reason}) == op.StopJob(
        True, reason
    )


@pytest.mark.parametrize("reason", ["two\nlines", "\x1b[2J", "\x9b2J", "\u2028", "\u202egnp", "x" * 201, 3])
def test_a_reason_does_not_rule_the_terminal_that_shows_it(reason: object) -> None:
    with pytest.raises(ValueError, match="a reason is one line"):
        op.operation_from_document({"kind": "stop", "save": True, "reason": reason})
