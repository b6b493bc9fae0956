"""Runs the migrations in the transaction that `scavenger.store.migrate` hands over."""

from __future__ import annotations

from alembic import context

from scavenger.store.columns import Base
from scavenger.store.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
