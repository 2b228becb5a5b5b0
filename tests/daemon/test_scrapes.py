"""Scrapes hold up nobody: what serves them cannot reach what the loop works on, and the loop goes on under many."""

from __future__ import annotations

import ast
import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from replayd.board import Board, Bulletin
from replayd.http import StatusServer
from replayd.messages import Sample
from replayd.metrics import Exposition
from replayd.rate_limiters import RateLimiter
from replayd.rendered import Rendered
from tests.daemon.conftest import ConnectPeer, StartDaemon
from tests.daemon.embedded import until
from tests.daemon.harness import ROOT, DaemonProcess
from tests.daemon.test_http import get, history_of, info_of, metrics_of, samples_of, value
from tests.unit.writer import StreamWriter, fifo, service

PAGES = ("/metrics", "/info.json", "/history.json", "/", "/healthz", "/readyz")


def source(module: str) -> ast.Module:
    """What a module of replayd, or a package's head, says."""
    path = ROOT.joinpath("replayd", *module.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


def imported(module: str) -> set[str]:
    """Modules of replayd that this one imports when it runs, at its head or within its functions."""
    found = set()
    for node in source(module).body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.ImportFrom) and inner.module == "replayd":
                found |= {f"replayd.{name.name}" for name in inner.names if not name.name.startswith("__")}
            elif isinstance(inner, ast.ImportFrom):
                found.add(inner.module or "")
            elif isinstance(inner, ast.Import):
                found |= {name.name for name in inner.names}
    return {name.removeprefix("replayd.") for name in found if name.startswith("replayd.")}


def reached(*modules: str) -> set[str]:
    """These, what they import, what that imports, …"""
    found: set[str] = set()
    todo = set(modules)
    while todo:
        module = todo.pop()
        found.add(module)
        todo |= imported(module) - found
    return found


def test_what_serves_http_reaches_the_board_and_nothing_that_the_loop_works_on() -> None:
    assert reached("http", "metrics") == {"http", "metrics", "rendered", "board", "errors", "fault_log"}
    # The same look finds the service where it is.
    assert {"service", "sockets", "watch"} <= imported("server")


def test_the_board_has_no_lock_that_the_loop_could_wait_for() -> None:
    for module in ("board", "watch", "vitals", "reports", "showing"):
        tree = source(module)
        names = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not names & {"threading", "queue", "multiprocessing", "_thread"}, module
    # What HTTP locks is its own: nothing but its own modules is told of it.
    assert {name for name, kept in vars(Board()).items() if "lock" in type(kept).__name__.lower()} == set()


def test_a_bulletin_stays_as_it_is_whatever_the_loop_does_next() -> None:
    tables = [fifo(name, max_size=4, rate_limiter=RateLimiter(1.0, 1, 0.0, 100.0)) for name in ("t", "u")]
    s, writer, board = service(*tables), StreamWriter(), Board()

    def traffic(now: float) -> None:
        for table in ("t", "u"):
            first = writer.next_chunk
            told = writer.insert([b"x"] * 3, [(first, 1), (first, 3)], table=table, policy_version=int(now))
            s.handle("peer", "insert", told, now)
            s.handle("peer", "sample", Sample(1, table, 2, 2, 60.0), now)
            s.handle("peer", "sample", Sample(2, table, 50, 50, 60.0), now)
        s.drain()

    for second in range(3):
        traffic(float(second))
    board.publish(s.report(3.0, brief=True), 3.0)
    bulletin = board.newest
    assert bulletin is not None
    assert all(table["limiter"]["inserts"] and table["waiting"] for table in bulletin.report["tables"])
    before = copy.deepcopy((bulletin.report, bulletin.history))
    for second in range(3, 9):
        traffic(float(second))
        board.publish(s.report(float(second), brief=True), float(second))
    for table in s.tables.values():
        table.reset()
    assert (bulletin.report, bulletin.history) == before
    assert board.newest is not None
    assert board.newest.report != bulletin.report


@pytest.mark.parametrize("path", ["/metrics", "/info.json", "/history.json"])
def test_many_who_ask_for_the_same_second_cost_one_rendering(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[Bulletin] = []
    begun = Rendered.__init__

    def counting(self: Rendered, render: Callable[[Bulletin], bytes]) -> None:
        begun(self, lambda bulletin: rendered.append(bulletin) or render(bulletin))  # type: ignore[func-returns-value]

    monkeypatch.setattr(Rendered, "__init__", counting)
    s, board = service(fifo()), Board()
    with StatusServer(board, "127.0.0.1:0") as status:
        for second in range(2):
            board.publish(s.report(float(second), brief=True), float(second))
            with ThreadPoolExecutor(8) as asking:
                assert [answer[0] for answer in asking.map(lambda _: get(status.address, path), range(24))] == [
                    200
                ] * 24
    assert len(rendered) == 2
    assert rendered[0] is not rendered[1]


def test_the_age_of_a_bulletin_grows_though_it_is_rendered_once() -> None:
    s, board = service(fifo()), Board()
    board.publish(s.report(0.0, brief=True), 0.0)
    now = iter((1.0, 20.0))
    exposition = Exposition(board, lambda: next(now))
    for age_s in (1.0, 20.0):
        assert value(samples_of(exposition.text().decode()), "replayd_bulletin_age_seconds") == age_s


@contextmanager
def scraped(daemon: DaemonProcess, threads: int) -> Iterator[list[int]]:
    """So many at once ask for every page, one after the other, without a pause; yields the answers each has had."""
    answers = [0] * threads
    ends = threading.Event()
    faults: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            while not ends.is_set():
                for path in PAGES:
                    assert get(daemon.http_address, path)[0] == 200
                    answers[number] += 1
        except BaseException as fault:
            faults.append(fault)

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(threads)]
    for thread in asking:
        thread.start()
    try:
        yield answers
    finally:
        ends.set()
        for thread in asking:
            thread.join()
    assert faults == []


def test_the_loop_goes_on_and_tells_of_itself_while_many_scrape(
    start_daemon: StartDaemon, connect: ConnectPeer
) -> None:
    daemon = start_daemon("--table", "replay,max_size=100")
    peer = connect(daemon)
    peer.insert("replay")
    until(lambda: get(daemon.http_address, "/readyz")[0] == 200)
    before = info_of(daemon.http_address)
    with scraped(daemon, 4) as answers:
        drawn = 0
        while min(answers) < 2 * len(PAGES):
            assert "error" not in peer.ask("sample", table="replay", n=1, timeout_ms=60_000)
            drawn += 1
        asked = peer.ask("info")["counters"]["requests"]
        until(lambda: info_of(daemon.http_address)["counters"]["requests"] >= asked)
        during = info_of(daemon.http_address)
        assert value(metrics_of(daemon), "replayd_replies_dropped_total") == 0
    assert during["tables"][0]["limiter"]["samples"] == drawn
    turns = [sum(report["loop"]["turn_s"]["counts"]) for report in (before, during)]
    assert turns[1] > turns[0]
    # A point for each bulletin: none was left out or told twice, and the time goes on.
    at_s = history_of(daemon)["at_s"]
    assert at_s == sorted(set(at_s))
    assert len(at_s) >= 2
