"""The form of what is saved belongs to its number: whoever changes one must change the other."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replayd import journal_format, rate_limiters, selectors
from replayd.handover import SavedChunks
from replayd.journal_format import READ, REQUEST, TIME_PASSED, TOGETHER, Entries
from replayd.limits import UNREAD_REPLIES
from replayd.messages import Sample
from replayd.parked_samples import dump_samples
from replayd.snapshots import dump_service
from replayd.state import frozen, settled
from replayd.store_format import FORMAT, ArrayEntry, Head, pack_block, pack_head, pack_piece, take_apart
from replayd.table import Table
from replayd_client.specs import TensorSpec
from tests.unit.kept import SCHEMA
from tests.unit.test_journal import Journaled
from tests.unit.writer import StreamWriter

FORMS = Path(__file__).parent / "store_forms"
SELECTORS = (
    selectors.Uniform,
    selectors.Fifo,
    selectors.Lifo,
    selectors.MinHeap,
    selectors.MaxHeap,
    lambda: selectors.Prioritized(0.6),
)
ADVICE = (
    f"what is saved has another form than that of format {FORMAT}: raise FORMAT (or the journal's VERSION), say in "
    "store_formats how it was, and keep a store by tests/daemon/make_store.py and this form beside the others"
)


def test_what_is_saved_has_the_form_of_its_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So few that a sample soon waits until its peer has read.
    monkeypatch.setattr("replayd.quotas.UNREAD_REPLIES", dataclasses.replace(UNREAD_REPLIES, value=1))
    tables = [
        Table(f"by {n}", sampler(), SELECTORS[-1 - n](), 5, rate_limiters.MinSize(1))
        for n, sampler in enumerate(SELECTORS)
    ]
    few = Table(
        "few",
        selectors.Uniform(),
        selectors.Fifo(),
        5,
        rate_limiters.MinSize(3),
        2,
        (),
        {"x": TensorSpec((None,), "uint8")},
    )
    with Journaled(tmp_path, [*tables, few, Table.queue("many", 3)], max_bytes=1 << 30) as live:
        writer, service, now = StreamWriter(), live.service, time.monotonic()

        def handle(peer: str, op: str, request: Any) -> None:
            refused = service.handle((peer.encode(),), op, request, now)
            assert refused is None, refused

        for table in service.tables:
            window = (writer.next_chunk, 2)
            message = writer.insert([b"a", b"bb"], [window] * 3, table=table, schema=SCHEMA, policy_version=3)
            handle("actor", "insert", message)
        # The second waits until its peer has read; the learner has some of four, another actor waits for room.
        for id in (1, 2):
            handle("reader", "sample", Sample(id, "by 0", 1, 1, 10.0))
        handle("learner", "sample", Sample(1, "few", 4, 4, 10.0))
        handle("another", "insert", StreamWriter(b"x" * 16).insert([b"d"], [(0, 1)] * 9, table="many", schema=SCHEMA))
        service.drain(are_read=False)
        state = dump_service(service, now)
        samples = dump_samples(service)
        assert samples["waiting"][0]["kept"] is not None
        assert len(samples["held"]) == 1
        whole = settled(frozen({**state, "journal": live.journal.freeze(), "samples": samples}, np.copy))
    for table in whole["tables"]:
        # Others may come and go: a start takes those that it knows.
        table["settings"] = {name: table["settings"][name] for name in ("sampler", "remover", "signature")}
    found = [*sorted(set(lines_of(whole, "index"))), *bytes_of_all()]
    expected = (FORMS / f"format-{FORMAT}.txt").read_text().splitlines()
    assert found == expected, ADVICE


def lines_of(value: Any, path: str) -> list[str]:
    """A line for each field, with its type; the entries of a list have one form."""
    if isinstance(value, dict):
        return [line for name, inner in value.items() for line in lines_of(inner, f"{path}/{name}")]
    if isinstance(value, list):
        return [f"{path}: list", *(line for inner in value for line in lines_of(inner, f"{path}/*"))]
    if isinstance(value, np.ndarray):
        return [f"{path}: {np.lib.format.dtype_to_descr(value.dtype)} {value.ndim}-d"]
    return [f"{path}: {type(value).__name__}"]


def bytes_of_all() -> list[str]:
    """The bytes of a head, a piece, a block and of entries of a journal, in hex."""
    ones = np.ones(1, np.int64)
    chunks = SavedChunks(
        **{name: n * ones for n, name in enumerate(("uids", "streams", "numbers", "episodes", "rows", "schemas"), 2)},
        widths=ones,
        records=9 * ones.astype(np.uint64),
        nbytes=3 * ones,
        body=[b"abc"],
    )
    entries = Entries(0, 7, sum=5, wall_s=1.5)
    for kind in (TIME_PASSED, REQUEST, TOGETHER, READ):
        entries.add(0.5, kind, (b"peer",) if kind else None, [b"frame"] if kind else [])
    _, arrays = take_apart({"a": ones})
    head = pack_head(Head(3, 1.5, True, {"a": {"$": 0}}, [ArrayEntry("a", arrays["a"].dtype, (1,), [(1, "hash")])]))
    [(number, value)] = journal_format.pack(entries)
    return [
        f"head: {json.dumps(json.loads(head[4:]))}",
        f"piece: {pack_piece(b'raw', 1).hex()}",
        f"block: {pack_block(chunks).hex()}",
        f"journal: {number} {value.hex()}",
    ]
