"""Addresses of databases: taken apart as both clients understand them, and what is refused."""

from __future__ import annotations

import pytest

from headrace.clients.postgres import DatabaseAddress, address, database_of
from headrace.errors import ConfigError
from headrace.flow.target import Database, Target


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("jdbc:postgresql://db/shop", DatabaseAddress("db", 5432, "shop", {})),
        ("jdbc:postgresql://[::1]:6000/a%20b", DatabaseAddress("::1", 6000, "a b", {})),
        (
            "jdbc:postgresql://db:1/shop?sslmode=verify-full&sslrootcert=/etc/ca.pem",
            DatabaseAddress("db", 1, "shop", {"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem"}),
        ),
    ],
)
def test_an_address_is_taken_apart(url: str, expected: DatabaseAddress):
    assert address(Database(url, "u")) == expected


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("jdbc:mysql://db/shop", "Postgres is the only database"),
        ("postgresql://db/shop", "Postgres is the only database"),
        ("jdbc:postgresql://db", "a host and a database"),
        ("jdbc:postgresql:shop", "a host and a database"),
        ("jdbc:postgresql://a:1,b:2/shop", "one host"),
        ("jdbc:postgresql://u:hunter2@db/shop", "login"),
        ("jdbc:postgresql://db/shop?user=u&password=hunter2", "'user'"),
        ("jdbc:postgresql://db/shop?stringtype=unspecified", "'stringtype'"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_being_printed(url: str, says: str):
    with pytest.raises(ConfigError, match=says) as refused:
        address(Database(url, "u"))
    assert refused.value.code == "HR-120"
    assert "hunter2" not in str(refused.value)


def test_an_unknown_database_is_refused_with_the_nearest_one():
    target = Target("dev", "/lake", "/cp", databases={"shop": Database("jdbc:postgresql://db/shop", "u")})
    with pytest.raises(ConfigError, match="Did you mean 'shop'") as refused:
        database_of(target, "shpo")
    assert refused.value.code == "HR-115"
    assert database_of(target, "shop").url.endswith("shop")
