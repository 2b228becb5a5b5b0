"""Settings read again: what changes live, what is told to need a restart, and that faults change nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from replayd.config import build_tables, read_config
from replayd.reloading import NOBODY, Reloader
from replayd.service import Service
from replayd.settings import settings_of

Reload = Callable[[str], list[str]]

TEXT = """
[server]
lease = "60s"
[log]
level = "info"
[[table]]
name = "t"
max_size = 100
sampler = { type = "prioritized", priority_exponent = 0.5 }
limiter = { type = "sample_to_insert_ratio", samples_per_insert = 2.0, min_size_to_sample = 5, error_buffer = 20.0 }
[[table]]
name = "q"
preset = "queue"
max_size = 4
"""


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "replayd.toml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def service(path: Path) -> Service:
    tables = build_tables(read_config(str(path)))
    return Service(tables, server_id=b"s" * 16, version="0", seed=1, started_at=0.0)


@pytest.fixture
def reload(path: Path, service: Service, caplog: pytest.LogCaptureFixture) -> Reload:
    """`reload(text)`: write the file and read it again; what the log says, each line with its level."""
    reloader = Reloader(lambda: read_config(str(path)), read_config(str(path)), path)

    def reload(text: str) -> list[str]:
        path.write_text(text)
        caplog.clear()
        with caplog.at_level(logging.DEBUG):
            reloader(service, 1.0)
        return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]

    return reload


def settings(service: Service, table: str = "t") -> dict[str, Any]:
    return settings_of(service.tables[table])


def test_what_can_change_live_does_and_is_told(reload: Reload, service: Service) -> None:
    said = reload(
        TEXT.replace("max_size = 100", "max_size = 200\nmax_times_sampled = 3")
        .replace("priority_exponent = 0.5", "priority_exponent = 0.75")
        .replace("samples_per_insert = 2.0", "samples_per_insert = 4.0")
        .replace("max_size = 4", "max_size = 6")
    )
    assert said == []
    now = settings(service)
    assert (now["max_size"], now["max_times_sampled"], now["priority_exponent"]) == (200, 3, 0.75)
    assert (now["samples_per_insert"], now["min_diff"], now["max_diff"]) == (4.0, 0.0, 40.0)
    assert (settings(service, "q")["max_size"], settings(service, "q")["max_diff"]) == (6, 6.0)
    assert any("max_size 100 -> 200" in notice for notice in service.notices)
    assert any("max_size 4 -> 6" in notice for notice in service.notices)
    reload(TEXT.replace("max_size = 100", 'max_size = 200\nmax_bytes = "2MiB"'))
    assert any("max_bytes unlimited -> 2097152" in notice for notice in service.notices)
    assert {peer for peer, _ in service.drain()} == {NOBODY}
    service.validate()


def test_an_unchanged_file_changes_nothing_and_says_so(reload: Reload, service: Service) -> None:
    before = settings(service)
    (said,) = reload(TEXT)
    assert said.startswith("INFO settings are read again: none has changed")
    assert settings(service) == before


def test_what_somebody_has_set_live_stays_where_the_file_has_not_changed(reload: Reload, service: Service) -> None:
    service.tables["t"].resize(50, 7)
    reload(TEXT.replace("max_size = 100", "max_size = 200"))
    assert (settings(service)["max_size"], settings(service)["max_times_sampled"]) == (200, 7)


@pytest.mark.parametrize("text", ["[server", TEXT.replace("max_size = 4", "max_sise = 4\nmax_size = 9"), None])
def test_a_faulty_file_changes_nothing_and_each_fault_is_told(
    reload: Reload, service: Service, text: str | None, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = settings(service), settings(service, "q")
    if text is None:
        reloader = Reloader(lambda: read_config(str(path / "none")), read_config(str(path)), path)
        reloader(service, 1.0)
        said = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
    else:
        said = reload(text)
    assert len(said) == 2
    assert said[0].startswith("ERROR settings stay as they are")
    assert f"`replayd check-config {path}`" in said[0], "without the file it may look at another"
    assert said[1].startswith(f"ERROR   {path}")
    assert (settings(service), settings(service, "q")) == before


def test_foreign_code_that_fails_while_settings_are_read_ends_no_daemon(
    service: Service, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def read() -> Any:
        raise RuntimeError("an extension of somebody")

    Reloader(read, read_config(str(path)), path)(service, 1.0)
    assert "an extension of somebody" in caplog.text


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('lease = "60s"', 'lease = "70s"', "server.lease is 60.0, and 70.0 in what was read again"),
        ("[log]", '[store]\npath = "/x"\n[log]', "[store] is new"),
        ("[log]", 'max_bytes = "1GiB"\n[log]', "server.max_bytes is unlimited, and 1073741824 in what was read again"),
        ("[log]", '[http]\nlisten = "off"\n[log]', "http.listen is '127.0.0.1:7078', and 'off' in what was read again"),
        ('name = "q"', 'name = "r"', "table 'r' is new"),
        ('name = "q"', 'name = "r"', "table 'q' is gone"),
        ("max_size = 100", 'max_size = 100\nremover = "lifo"', "table 't': remover is another"),
        ('{ type = "prioritized", priority_exponent = 0.5 }', '"uniform"', "table 't': sampler is another"),
        ('preset = "queue"', 'preset = "stack"', "table 'q': sampler is another"),
    ],
)
def test_what_needs_a_restart_is_told_each_time(reload: Reload, old: str, new: str, told: str) -> None:
    for _ in range(2):
        assert f"WARNING {told}: that needs a restart" in reload(TEXT.replace(old, new))


def test_what_is_refused_is_told_and_tried_again(reload: Reload, service: Service) -> None:
    service.tables["t"].limiter.min_size_to_sample = 90
    smaller = TEXT.replace("max_size = 100", "max_size = 80")
    for _ in range(2):
        (said,) = reload(smaller)
        assert said.startswith("ERROR table t keeps its settings: table 't': with max_size below min_size_to_sample")
    assert settings(service)["max_size"] == 100
    service.tables["t"].limiter.min_size_to_sample = 5
    assert reload(smaller) == []
    assert settings(service)["max_size"] == 80


def test_tables_that_will_not_fit_any_more_are_warned_of(reload: Reload) -> None:
    said = reload(TEXT.replace("max_size = 100\n", 'max_size = 100\nmax_bytes = "1KiB"\n'))
    assert [line for line in said if line.startswith("WARNING table 't': 100 items") and "1 KiB" in line]


def test_the_level_of_the_log_changes(path: Path, service: Service) -> None:
    logging.getLogger().setLevel(logging.INFO)
    reloader = Reloader(lambda: read_config(str(path)), read_config(str(path)), path)
    path.write_text(TEXT.replace('level = "info"', 'level = "error"'))
    reloader(service, 1.0)
    assert logging.getLogger().level == logging.ERROR
