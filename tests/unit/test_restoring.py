"""Restoring: damage of every kind, and stores that do not go with the configuration."""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from replayd import rate_limiters, selectors
from replayd.errors import StoreInUse, StoreMismatch, StoreUnreadable
from replayd.messages import Failed, Sample, Sampled
from replayd.restoring import SHOWN, SHOWN_CHARACTERS, RestoreRules
from replayd.store import Store
from replayd.store_copies import bring_back, copy_store
from replayd.store_files import DATA, MARK, is_store
from replayd.store_format import FORMAT, pack_head, unpack_head
from replayd.table import Table
from replayd_client.specs import TensorSpec
from tests.unit.kept import SCHEMA, Kept
from tests.unit.writer import StreamWriter, fifo

PAYLOADS = [bytes([n]) * 8192 for n in range(1, 101)]


def saved(directory: Path, *tables: Table) -> None:
    """A store with the PAYLOADS in table `t`, of a server that was told to stop."""
    with Kept(directory, *tables) as kept:
        kept.insert(PAYLOADS)
        kept.stop()


def overwrite(directory: Path, find: bytes, change: Callable[[bytes], bytes]) -> None:
    """Change the bytes that begin with these, wherever they are in the file."""
    data = (directory / DATA).read_bytes()
    at = data.index(find)
    changed = change(data[at : at + 64])
    with (directory / DATA).open("r+b") as file:
        file.seek(at)
        file.write(changed)


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_payload_that_rots_takes_its_items_along_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path)
    overwrite(tmp_path, bytes([42]) * 100, lambda found: b"\0" + found[1:])
    with Kept(tmp_path) as kept:
        assert kept.contents() == [payload for payload in PAYLOADS if payload[0] != 42]
        assert kept.service.tables["t"].limiter.deletes == 1
        kept.service.validate()
        [told] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert "1 chunks are lost" in told
        assert "1 items of table 't'" in told
        kept.checkpoint()
    caplog.clear()
    with Kept(tmp_path) as again:
        assert again.contents() == [payload for payload in PAYLOADS if payload[0] != 42]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_damaged_payload_is_refused_if_that_is_asked_for(tmp_path: Path) -> None:
    saved(tmp_path)
    overwrite(tmp_path, bytes([42]) * 100, lambda found: b"\0" + found[1:])
    with pytest.raises(StoreUnreadable, match=r"1 chunks are lost.* --strict"):
        Kept(tmp_path, rules=RestoreRules(strict=True))
    # Nothing has been done about it.
    with Kept(tmp_path) as kept:
        assert len(kept.contents()) == 99


def test_a_block_whose_tables_rot_takes_its_chunks_along(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Kept(tmp_path) as kept:
        kept.insert(PAYLOADS[:50])
        kept.checkpoint()
        kept.insert(PAYLOADS[50:])
        kept.stop()
    with Store(tmp_path) as store:
        first = next(store.blocks())[1].tobytes()
    overwrite(tmp_path, first[:64], lambda found: found[:40] + b"\xff" * 24)
    with Kept(tmp_path) as again:
        assert again.contents() == PAYLOADS[50:]
        again.service.validate()
    assert "the tables of a block fail their CRC" in caplog.text


def test_an_index_that_rots_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    with Store(tmp_path) as store:
        assert store.head is not None
        key = next(entry.piece_keys()[0] for entry in store.head.arrays if entry.path == "tables/0/items/rows")
        with store._env.begin(db=store._db["index"]) as txn:
            piece = txn.get(key)
    overwrite(tmp_path, piece[:64], lambda found: found[:30] + bytes([found[30] ^ 1]) + found[31:])
    with pytest.raises(StoreUnreadable, match="a piece of the index fails its CRC"):
        Kept(tmp_path)


@pytest.mark.parametrize("cut_bytes", [1, 4096, 700_000], ids=lambda cut: f"by {cut} bytes")
def test_a_store_that_is_cut_off_is_refused_and_a_copy_brings_it_back(tmp_path: Path, cut_bytes: int) -> None:
    data = tmp_path / "data"
    saved(data)
    copy_store(data, tmp_path / "copy")
    size_bytes = (data / DATA).stat().st_size
    os.truncate(data / DATA, size_bytes - cut_bytes)
    with pytest.raises(StoreUnreadable, match="restore FROM"):
        Kept(data)
    # Nothing has been done about it.
    assert (data / DATA).stat().st_size == size_bytes - cut_bytes
    bring_back(tmp_path / "copy", data, replace=True)
    with Kept(data) as kept:
        assert kept.contents() == PAYLOADS


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / DATA).write_bytes(os.urandom(50_000))
    with pytest.raises(StoreUnreadable):
        Kept(tmp_path)


def test_an_unreadable_store_is_put_aside_if_empty_is_allowed(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / DATA).write_bytes(b"x" * 50_000)
    with Kept(tmp_path, allow_empty=True) as kept:
        assert kept.contents() == []
        kept.insert(PAYLOADS[:3])
        kept.checkpoint()
    [aside] = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert (aside / DATA).read_bytes() == b"x" * 50_000
    with Kept(tmp_path) as again:
        assert again.contents() == PAYLOADS[:3]


def test_a_directory_with_somebody_elses_data_is_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as other, other.begin(write=True) as txn:
        txn.put(b"a", b"b")
    with pytest.raises(StoreUnreadable, match=f"no {MARK}"):
        Kept(tmp_path)
    assert not is_store(tmp_path)


def test_a_store_has_one_server_at_a_time(tmp_path: Path) -> None:
    with Kept(tmp_path):
        with pytest.raises(StoreInUse):
            Store(tmp_path)
    with Kept(tmp_path):
        pass


def test_a_store_of_a_later_format_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    with Store(tmp_path) as store:
        assert store.head is not None
        later = pack_head(store.head).replace(b'"format":%d' % FORMAT, b'"format":9')
        # Its CRC is that of what it says.
        with store._env.begin(write=True, db=store._db["head"]) as txn:
            txn.put(b"head", struct.pack("<I", zlib.crc32(later[4:])) + later[4:])
    with pytest.raises(StoreUnreadable, match="format 9"):
        Kept(tmp_path)
    assert unpack_head(pack_head(store.head)) == store.head


@pytest.mark.parametrize("how", ["served", "brought back"])
def test_a_start_from_a_copy_speaks_of_no_server_that_ended_badly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    caplog.set_level(logging.INFO)
    with Kept(source) as kept:
        kept.insert(PAYLOADS)
        kept.checkpoint()
    copy_store(source, copy)
    if how == "brought back":
        bring_back(copy, tmp_path / "back", replace=False)
        copy = tmp_path / "back"
    with Kept(copy) as kept:
        assert kept.contents() == PAYLOADS
        assert "the store is a copy of checkpoint 1: what was done after that is not in it" in caplog.text
        assert "did not end with a checkpoint" not in caplog.text
        kept.checkpoint()
    # By now it is the store of a server, which crashed.
    caplog.clear()
    with Kept(copy):
        assert "did not end with a checkpoint" in caplog.text
        assert "is a copy" not in caplog.text


# --- configuration ----------------------------------------------------------------------------------------------------


def test_the_configuration_decides_and_each_difference_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path)
    other = Table("t", selectors.Lifo(), selectors.Fifo(), 60, rate_limiters.MinSize(7), max_times_sampled=5)
    with Kept(tmp_path, other, rules=RestoreRules(shrink_tables=True)) as kept:
        assert kept.contents() == PAYLOADS[40:]
        assert kept.draw() == [PAYLOADS[-1]]
        told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        for name in ("max_size is 60", "max_times_sampled is 5", "min_size_to_sample is 7", "sampler is lifo by"):
            assert len([line for line in told if name in line]) == 1, name
        shown = kept.info()["store"]["differences"]
        assert shown == [
            line.removesuffix("; to keep what was saved, write it into the configuration") for line in told[:-1]
        ]
        assert len(shown) >= 4
        assert not [line for line in told if "{" in line], "what Python calls a dict is nothing for people"
        kept.service.validate()


def test_what_a_table_had_no_value_of_is_called_unlimited_only_where_it_limits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path)
    other = Table("t", selectors.Prioritized(0.6), selectors.Fifo(), 1000, rate_limiters.MinSize(1), max_bytes=1 << 30)
    with Kept(tmp_path, other):
        for said in ("priority_exponent is 0.6 by the configuration, and was none", "max_bytes is 1073741824 by the"):
            assert said in caplog.text
        assert "and was unlimited when it was saved" in caplog.text


def test_the_same_configuration_differs_in_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def table() -> Table:
        limiter = rate_limiters.SampleToInsertRatio(2.5, 1, 1000.0)
        spec = {"x": TensorSpec((None,), "uint8")}
        return Table("t", selectors.Prioritized(0.6), selectors.MaxHeap(), 1000, limiter, 9, (), spec)

    saved(tmp_path, table())
    with Kept(tmp_path, table()) as kept:
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert kept.info()["store"]["differences"] == []


def test_of_very_many_differences_info_tells_some_and_how_many_more_there_are(tmp_path: Path) -> None:
    tables = [fifo(f"t{n}" * 40) for n in range(100)]
    saved(tmp_path, fifo("t"), *tables)
    with Kept(tmp_path, fifo("t")) as kept:
        shown = kept.info()["store"]["differences"]
        assert len(shown) == SHOWN + 1
        assert shown[-1] == f"and {100 - SHOWN} more, which the log has"
        assert max(map(len, shown)) <= SHOWN_CHARACTERS + 1


def test_a_table_that_only_the_configuration_has_starts_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path)
    with Kept(tmp_path, fifo(), fifo("new")) as kept:
        assert kept.contents() == PAYLOADS
        assert kept.contents("new") == []
    assert "table 'new' is not in the store" in caplog.text


def test_a_table_with_items_that_only_the_store_has_is_an_error(tmp_path: Path) -> None:
    saved(tmp_path, fifo(), fifo("u"))
    with pytest.raises(StoreMismatch, match=r"table 't' has 100 items .*--drop-removed-tables"):
        Kept(tmp_path, fifo("u"))
    with Kept(tmp_path, fifo("u"), rules=RestoreRules(drop_removed_tables=True)) as kept:
        assert len(kept.service.chunks) == 0
        kept.service.validate()


def test_an_empty_table_that_only_the_store_has_is_left_behind(tmp_path: Path) -> None:
    saved(tmp_path, fifo(), fifo("u"))
    with Kept(tmp_path) as kept:
        assert kept.contents() == PAYLOADS


def test_items_that_do_not_fit_a_new_signature_stop_the_start_and_both_are_shown(tmp_path: Path) -> None:
    def table(dtype: str) -> Table:
        return fifo(signature={"x": TensorSpec((None,), dtype)})

    saved(tmp_path, table("uint8"))
    with pytest.raises(StoreMismatch) as refused:
        Kept(tmp_path, table("float32"))
    assert "saved with: x uint8[?]; configured: x float32[?]" in str(refused.value)
    with Kept(tmp_path, table("uint8")) as kept:
        assert kept.contents() == PAYLOADS


def test_a_signature_that_the_items_fit_may_be_new(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path)
    with Kept(tmp_path, fifo(signature={"x": TensorSpec((1,), "uint8")})) as kept:
        assert kept.contents() == PAYLOADS
    assert "signature is x uint8[1] by the configuration, and was none" in caplog.text


# --- limiters ---------------------------------------------------------------------------------------------------------


def ratio() -> Table:
    return fifo(rate_limiter=rate_limiters.RateLimiter(1.0, 1, 0.0, 200.0))


def test_a_limiter_goes_on_counting_where_it_was(tmp_path: Path) -> None:
    with Kept(tmp_path, ratio()) as kept:
        kept.insert(PAYLOADS)
        kept.draw(100)
        kept.stop()
    with Kept(tmp_path, ratio()) as again:
        refused = again.ask(Sample(1, "t", 1, 1, 0.0))
        assert isinstance(refused, Failed)
        assert refused.detail["blocked_by"] == "min_diff"


def test_a_limiter_that_is_reset_lets_samples_and_inserts_pass(tmp_path: Path) -> None:
    with Kept(tmp_path, ratio()) as kept:
        kept.insert(PAYLOADS)
        kept.draw(100)
        kept.stop()
    with Kept(tmp_path, ratio(), rules=RestoreRules(reset_limiters=True)) as again:
        limiter = again.service.tables["t"].limiter
        assert (limiter.size, limiter.cursor) == (100, 100.0)
        assert isinstance(again.ask(Sample(1, "t", 1, 1, 0.0)), Sampled)
        again.insert(PAYLOADS[:1])
        again.service.validate()


def test_a_queue_that_is_reset_still_gives_each_item_once(tmp_path: Path) -> None:
    def queue() -> Table:
        return Table.queue("t", 200)

    with Kept(tmp_path, queue()) as kept:
        kept.insert(PAYLOADS)
        kept.draw(30)
        kept.stop()
    with Kept(tmp_path, queue(), rules=RestoreRules(reset_limiters=True)) as again:
        assert len(again.draw(100)) == 70
        assert isinstance(again.ask(Sample(1, "t", 1, 1, 0.0)), Failed)


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_where_the_checkpoint_has_it(tmp_path: Path) -> None:
    writer = StreamWriter()
    with Kept(tmp_path) as kept:
        kept.ask(writer.insert([b"a"], [(0, 1)], schema=SCHEMA))
        kept.checkpoint()
        lost = writer.insert([b"b"], [(1, 1)], schema=SCHEMA)
        kept.ask(lost)
        behind = writer.insert([b"c"], [(2, 1)], schema=SCHEMA)
    with Kept(tmp_path) as again:
        gap = again.ask(behind)
        assert isinstance(gap, Failed)
        assert (gap.code, gap.detail["expected"]) == ("sequence_gap", 1)
        again.ask(lost)
        again.ask(behind)
        # It may still refer to the chunk from before.
        again.ask(writer.insert(items=[(0, 3)], schema=SCHEMA))
        assert len(again.service.tables["t"].items) == 4
        again.service.validate()
