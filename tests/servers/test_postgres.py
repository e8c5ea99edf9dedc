"""The server of the tests does what its docstring promises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import servers.postgres
from servers.postgres import USER, Server


def test_rows_come_back(postgres: Server) -> None:
    table = postgres.table("id bigint, name text")
    postgres.rows(f"INSERT INTO {table} VALUES (%s, %s)", [1, "a"])
    assert postgres.rows(f"SELECT * FROM {table}") == [(1, "a")]


def test_it_wants_a_password(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    import psycopg

    monkeypatch.setenv("PGPASSFILE", os.devnull)
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(postgres.url)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.url, password="another")


def test_a_killed_server_starts_again_with_its_data(postgres: Server) -> None:
    table = postgres.table("id bigint")
    postgres.rows(f"INSERT INTO {table} VALUES (7)")
    url = postgres.url
    postgres.kill()
    assert not postgres.running()
    postgres.start()
    assert postgres.rows(f"SELECT * FROM {table}") == [(7,)]
    assert postgres.url == url


def test_it_does_not_run_as_root(postgres: Server) -> None:
    assert {process.username() for process in postgres._processes()} == {USER if os.geteuid() == 0 else os.environ["USER"]}


def test_without_a_server_tests_skip_but_ci_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(servers.postgres, "HOMES", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="package postgresql"):
        servers.postgres.require()
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="package postgresql"):
        servers.postgres.require()
