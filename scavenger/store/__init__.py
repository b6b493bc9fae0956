"""The store of jobs, measurements and fitted models: SQLite by default, PostgreSQL by URL.

`Store` is imported when it is first used, so that the records can be used without SQLAlchemy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scavenger.store.store import Store

__all__ = ["Store"]


def __getattr__(name: str) -> Any:
    if name == "Store":
        from scavenger.store.store import Store

        return Store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
