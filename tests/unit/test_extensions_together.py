"""Extensions of several tables: those they copy to, and that no two share one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from replayd.config import build_tables, read_config
from replayd.config_faults import ConfigError
from replayd.extensions import InsertOnSample, ItemsView, PriorityDiffusion, TableAccess
from replayd.messages import Sample
from tests.unit.writer import StreamWriter, fifo, service


class Counting:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def on_insert(self, access: TableAccess, items: ItemsView) -> None:
        self.told.append(len(items.keys))


class Locked(Counting):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Fresh(Locked):
    """Says how one for another table is made."""

    def __deepcopy__(self, memo: Any) -> Fresh:
        return Fresh()


def test_a_server_does_not_start_with_a_copy_to_a_table_that_is_not_there() -> None:
    tables = fifo("t", extensions=[InsertOnSample("seen")]), fifo("other")
    with pytest.raises(ValueError, match="'t': InsertOnSample copies to table 'seen'.*there are: 't', 'other'"):
        service(*tables)
    assert not any(table.is_bound for table in tables), "they may serve another one"
    service(*tables, fifo("seen"))


def test_a_configuration_with_a_copy_to_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "replayd.toml"
    extension = '{ type = "insert_on_sample", options = { to = "seen" } }'
    path.write_text(f'[[table]]\nname = "replay"\nextensions = [{extension}]\n')
    with pytest.raises(ConfigError, match="'replay': InsertOnSample copies to table 'seen'.*there are: 'replay'"):
        read_config(str(path))
    path.write_text(f'{path.read_text()}[[table]]\nname = "seen"\n')
    service(*build_tables(read_config(str(path))))


@pytest.mark.parametrize("named", ["seen", ("t", 3), 5])
def test_what_names_no_tables_to_copy_to_is_refused(named: Any) -> None:
    extension = PriorityDiffusion()
    extension.copies_to = named  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="copies_to"):
        fifo("t", extensions=[extension])


def test_two_tables_of_a_server_share_no_extension() -> None:
    shared = PriorityDiffusion()
    with pytest.raises(ValueError, match="'a' and 'b' share one PriorityDiffusion"):
        service(fifo("a", extensions=[shared]), fifo("b", extensions=[shared]))


@pytest.mark.parametrize("kind", [Counting, Fresh])
def test_a_replacement_has_extensions_of_its_own(kind: type[Counting]) -> None:
    extension = kind()
    table = fifo("t", extensions=[extension, InsertOnSample("u")])
    other = table.replace(name="u")
    assert [type(each) for each in other.extensions] == [kind, InsertOnSample]
    s, writer = service(table, other), StreamWriter()
    s.handle("peer", "insert", writer.insert([b"a"], [(0, 1)]), 0.0)
    assert extension.told == [1]
    assert other.extensions[0].told == []
    s.handle("peer", "insert", writer.insert([b"b"], [(1, 1)], table="u"), 0.0)
    assert (extension.told, other.extensions[0].told) == ([1], [1])
    s.handle("peer", "sample", Sample(1, "t", 1, 1, 0.0), 0.0)
    assert other.size == 2, "the first one copies where it did"
    s.validate()


def test_an_extension_that_cannot_be_copied_is_named_when_a_table_is_replaced() -> None:
    table = fifo("t", extensions=[Locked()])
    with pytest.raises(TypeError, match=r"'t'.*lock.*__deepcopy__"):
        table.replace(max_size=5)
    assert table.replace(extensions=[]).extensions == ()
