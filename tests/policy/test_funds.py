"""What may still be spent of a budget: whatever is begun and ends, it can be paid."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from scavenger.domain.submission import Spending
from scavenger.errors import LimitReachedError
from scavenger.policy.funds import Funds, funds_of

MOST = st.one_of(st.none(), st.integers(0, 8).map(float))


@examples(100)
@given(st.integers(0, 20), st.lists(st.tuples(MOST, st.integers(1, 4), st.floats(0.0, 1.0)), max_size=12))
def test_nothing_is_begun_that_cannot_be_paid(
    budget: int, begun: list[tuple[float | None, int, float]]
) -> None:
    """Each gets a part, and every second one ends with a part of that spent."""
    funds = Funds(float(budget))
    for number, (most, at_once, used) in enumerate(begun):
        try:
            usd = funds.grant(most, at_once=at_once)
        except LimitReachedError:
            assert funds.left_usd == 0.0
            continue
        assert usd is not None
        assert usd <= funds.left_usd
        assert most is None or usd <= most
        assert funds.left_usd > 0.0
        if number % 2:
            funds = replace(funds, spent_usd=funds.spent_usd + usd * used)
        else:
            funds = replace(funds, reserved_usd=funds.reserved_usd + usd, claims=funds.claims + 1)
        assert funds.spent_usd + funds.reserved_usd <= budget + 1e-9


def test_without_a_budget_only_what_something_costs_by_itself_limits_it() -> None:
    assert (Funds(None, 9.0).grant(None), Funds(None, 9.0).grant(2.0)) == (None, 2.0)
    assert Funds(None).pays(None)


def test_a_budget_does_not_pay_for_what_may_cost_anything() -> None:
    funds = Funds(10.0, 6.0, 2.0)
    assert (funds.pays(2.0), funds.pays(2.1), funds.pays(None)) == (True, False, False)
    with pytest.raises(
        LimitReachedError, match=r"budget of \$2\.00 is used up: \$1\.00 are spent, and \$1\.00 are set"
    ):
        Funds(2.0, 1.0, 1.0).grant(1.0)


def test_of_a_month_each_user_has_his_own_and_all_have_one() -> None:
    spending = Spending({"ann": 1.0, "bob": 2.0}, {"ann": 4.0})
    assert funds_of(spending, 10.0, "ann").left_usd == 5.0
    assert funds_of(spending, 10.0, "eve").left_usd == 10.0
    assert funds_of(spending, 10.0).left_usd == 3.0
