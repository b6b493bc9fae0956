"""Shares of a node's price: they sum to it, follow use, and never grow because another job joins."""

from __future__ import annotations

import pytest
from hypothesis import given
from scheduler_cases import GB, SMALL, assigned, job, job_lists, rules

from scavenger.scheduler.pool import Bucket, JobLoad, Node, NodeType, Pool, Rules
from scavenger.scheduler.shares import node_shares, pool_shares


@given(job_lists(), rules)
def test_the_shares_sum_to_the_price(loads: list[JobLoad], rules: Rules) -> None:
    pool = assigned(Pool((SMALL,), rules), *loads).with_node(Node("spare", SMALL))
    shares = pool_shares(pool)

    assert sum(shares.values()) == pytest.approx(pool.price_usd_per_hour)
    assert min(shares.values()) >= 0.0
    for node in pool.nodes.values():
        assert sum(node_shares(node).values()) == pytest.approx(1.0 if node.tenants else 0.0)


def test_a_job_alone_bears_its_node() -> None:
    pool = assigned(Pool((SMALL,)), job("a", 1.0, 0.01))

    assert pool_shares(pool) == {"a": pytest.approx(0.05)}


def test_processor_time_counts_by_the_steps_in_it() -> None:
    pool = assigned(Pool((SMALL,)), job("J2", 12.0, 3.0), job("J1", 6.0, 2.0))

    assert node_shares(pool.nodes["node-0"]) == {"J1": pytest.approx(4 / 7), "J2": pytest.approx(3 / 7)}


def test_what_a_job_has_most_of_counts() -> None:
    memory = JobLoad("memory", 1.0, (Bucket(0.1, memory_bytes=4 * GB),))
    traffic = JobLoad("traffic", 1.0, (Bucket(0.1, traffic_bytes=GB // 4),))
    pool = assigned(Pool((SMALL,)), memory, traffic)

    assert node_shares(pool.nodes["node-0"]) == {
        "memory": pytest.approx(2 / 3),
        "traffic": pytest.approx(1 / 3),
    }


@given(job_lists())
def test_nobody_bears_more_of_a_node_because_another_job_joins_it(loads: list[JobLoad]) -> None:
    pool = Pool((SMALL,))
    for load in loads:
        before = {name: node_shares(node) for name, node in pool.nodes.items()}
        pool = assigned(pool, load)
        for name, shares in before.items():
            after = node_shares(pool.nodes[name])
            for tenant, share in shares.items():
                assert after[tenant] <= share + 1e-9


def test_empty_nodes_are_borne_by_all() -> None:
    pool = assigned(Pool((SMALL,)), job("a", 1.0, 0.9), job("b", 1.0, 0.9)).with_node(Node("spare", SMALL))

    assert pool_shares(pool) == {"a": pytest.approx(0.075), "b": pytest.approx(0.075)}
    assert pool_shares(Pool((SMALL,))) == {}


def test_nodes_without_a_price_cost_nobody_anything() -> None:
    free = NodeType("free", 1.0, GB, 1e9)

    assert pool_shares(assigned(Pool((free,)), job("a", 1.0, 0.5))) == {"a": 0.0}
