"""What all tables of the store are made of: their base, and the types and constraints of their columns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    Float,
    Integer,
    MetaData,
    Text,
    TypeDecorator,
    text,
)
from sqlalchemy.orm import DeclarativeBase

WholeNumber = BigInteger().with_variant(Integer(), "sqlite")
"""64-bit integer. SQLite's integers always have 64 bits, and only INTEGER columns auto-increment."""


class UtcDateTime(TypeDecorator[datetime]):
    """An aware `datetime` in UTC; SQLite, which has no time zones, stores the naive UTC time."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time without a zone: {value}")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class FreeText(TypeDecorator[str]):
    """Text that may contain what databases refuse: undecodable bytes of a path, NUL."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def among(values: tuple[str, ...]) -> str:
    """Values as SQL lists them."""
    return "({})".format(", ".join(f"'{value}'" for value in values))


def one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    """The constraint that a column has one of some values."""
    return CheckConstraint(f"{column} IN {among(values)}", name=column)


def positive(*columns: str) -> list[CheckConstraint]:
    """Constraints that columns are above 0."""
    return [CheckConstraint(f"{column} > 0", name=column) for column in columns]


def not_negative(*columns: str) -> list[CheckConstraint]:
    """Constraints that columns are at least 0."""
    return [CheckConstraint(f"{column} >= 0", name=column) for column in columns]


OPEN = text("ended_at IS NULL")


class Base(DeclarativeBase):
    """Base class of the tables. Constraints have systematic names, so that a migration can refer to them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - read once by SQLAlchemy, which fixes its type
        str: FreeText,
        int: WholeNumber,
        float: Float(53),
        datetime: UtcDateTime,
        dict[str, Any]: JSON(none_as_null=True),
    }
