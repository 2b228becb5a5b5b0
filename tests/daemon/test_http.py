"""What the daemon serves by HTTP: metrics that parse, probes that tell the truth, and no harm from whoever asks."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from replayd import http as replayd_http
from replayd.board import PATIENCE_S, STALE_S, Board
from replayd.errors import BindError
from replayd.http import PARTS, REQUESTS, StatusServer
from replayd.metrics import OF_TABLES, OF_THE_SERVER
from tests.daemon.conftest import ConnectPeer, StartDaemon
from tests.daemon.embedded import until
from tests.daemon.harness import ROOT, DaemonProcess, environment, run_replayd
from tests.unit.writer import StreamWriter, fifo, service

TABLES = {"replay": ""}
BAND = (
    "replay,max_size=10,limiter=rate_limiter,samples_per_insert=2,min_size_to_sample=2,min_diff=0,max_diff=8",
    'tab"le \\ ünï,preset=queue,max_size=3',
)


def get(address: str | None, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    """Status, body and headers of an answer."""
    assert address is not None
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def info_of(address: str | None) -> dict[str, Any]:
    status, body, _ = get(address, "/info.json")
    assert status == 200, body
    answer: dict[str, Any] = json.loads(body)
    return answer


def samples_of(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of an exposition by name and labels."""
    samples: list[Sample] = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples), "a series is there twice"
    return found


def metrics_of(daemon: DaemonProcess) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    status, body, headers = get(daemon.http_address, "/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return samples_of(body)


def value(metrics: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    return metrics[name, frozenset(labels.items())]


@pytest.fixture
def busy(start_daemon: StartDaemon, connect: ConnectPeer) -> DaemonProcess:
    """Two tables: in one samples wait, in the other inserts; some of everything has happened."""
    daemon = start_daemon(*(word for table in BAND for word in ("--table", table)))
    peer = connect(daemon)
    for _ in range(4):
        peer.insert("replay")
    peer.ask("sample", table="replay", n=8, timeout_ms=1000)
    peer.send("sample", table="replay", n=3, timeout_ms=60_000)
    queue = BAND[1].split(",")[0]
    for _ in range(3):
        peer.insert(queue)
    peer.send_insert(queue)
    assert peer.ask("reset", table="nowhere")["error"]["code"] == "unknown_table"
    requests = peer.ask("info")["counters"]["requests"]
    until(lambda: _bulletin(daemon).get("counters", {}).get("requests") == requests)
    return daemon


def _bulletin(daemon: DaemonProcess) -> dict[str, Any]:
    """What info.json says, {} before there is anything."""
    status, body, _ = get(daemon.http_address, "/info.json")
    return json.loads(body) if status == 200 else {}


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_say_what_info_says(busy: DaemonProcess) -> None:
    metrics = metrics_of(busy)
    report = info_of(busy.http_address)
    for table in report["tables"]:
        label = {"table": table["name"]}
        for key, name in (
            ("size", "replayd_table_items"),
            ("max_size", "replayd_table_max_items"),
            ("bytes", "replayd_table_bytes"),
            ("bytes_when_full", "replayd_table_full_bytes"),
            ("unique_samples", "replayd_table_unique_samples_total"),
        ):
            assert value(metrics, name, **label) == table[key]
        for key, name in (
            ("inserts", "replayd_table_inserts_total"),
            ("samples", "replayd_table_samples_total"),
            ("cursor", "replayd_limiter_cursor"),
            ("min_diff", "replayd_limiter_min_diff"),
            ("max_diff", "replayd_limiter_max_diff"),
        ):
            assert value(metrics, name, **label) == table["limiter"][key]
        assert value(metrics, "replayd_table_sample_age_seconds_count", **label) == table["limiter"]["samples"]
        assert value(metrics, "replayd_table_times_sampled_gcount", **label) == table["size"]
    for key, name in (("requests", "replayd_requests_total"), ("refused", "replayd_requests_refused_total")):
        assert value(metrics, name) == report["counters"][key] > 0
    assert value(metrics, "replayd_connections") == 2, "one for requests and one for pushes"
    assert value(metrics, "replayd_streams") == 1
    assert value(metrics, "replayd_chunk_bytes") == report["chunks"]["bytes"] == 8 * 4
    assert value(metrics, "replayd_resident_memory_bytes") > 1e6


def test_metrics_say_which_side_waits_and_for_which_reason(busy: DaemonProcess) -> None:
    metrics = metrics_of(busy)
    queue = info_of(busy.http_address)["tables"][1]["name"]
    waits = {"replay": ("sample", "min_diff", 3), queue: ("insert", "max_diff", 1)}
    for table, (waiting, reason, items) in waits.items():
        for side in ("insert", "sample"):
            labels = {"table": table, "side": side}
            assert value(metrics, "replayd_parked_requests", **labels) == (side == waiting)
            assert value(metrics, "replayd_parked_items", **labels) == (items if side == waiting else 0)
            assert (value(metrics, "replayd_oldest_parked_seconds", **labels) > 0) == (side == waiting)
            assert value(metrics, "replayd_paused", **labels) == 0
        seconds = {
            (labels["side"], labels["reason"]): seconds
            for (name, pairs), seconds in metrics.items()
            for labels in [dict(pairs)]
            if name == "replayd_limiter_blocked_seconds_total" and labels["table"] == table
        }
        assert [pair for pair, blocked in seconds.items() if blocked > 0] == [(waiting, reason)]


def test_every_metric_is_there_from_the_start_and_labels_are_bounded(daemon: DaemonProcess) -> None:
    until(lambda: bool(_bulletin(daemon)))
    _, text, _ = get(daemon.http_address, "/metrics")
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {name for _, name, _, _ in (*OF_TABLES, *OF_THE_SERVER)} <= names
    labels = {(name, value) for _, pairs in samples_of(text) for name, value in pairs if name != "le"}
    assert {name for name, _ in labels} == {"table", "side", "reason", "version", "python", "libzmq"}


def test_counters_end_in_total_and_units_are_base_units(server: DaemonProcess) -> None:
    until(lambda: bool(_bulletin(server)))
    for family in text_string_to_metric_families(get(server.http_address, "/metrics")[1]):
        assert family.documentation, family.name
        assert not re.search(r"_(ms|milliseconds|us|kib|mib|mb|percent)(_|$)", family.name)
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples), family.name


def test_a_scraper_may_name_the_format_it_likes(server: DaemonProcess) -> None:
    until(lambda: bool(_bulletin(server)))
    openmetrics = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    assert samples_of(get(server.http_address, "/metrics", Accept=openmetrics)[1])


# --- probes -----------------------------------------------------------------------------------------------------------


def test_a_daemon_that_runs_is_healthy_and_ready(server: DaemonProcess) -> None:
    until(lambda: get(server.http_address, "/readyz")[0] == 200)
    assert get(server.http_address, "/healthz")[0] == 200


@pytest.fixture
def board() -> Iterator[tuple[Board, str]]:
    """A board that a test writes, and where it is served."""
    board = Board()
    with StatusServer(board, "127.0.0.1:0") as status:
        yield board, status.address


def publish(board: Board, ago_s: float) -> None:
    board.publish(service(fifo()).report(1.0, brief=True), time.monotonic() - ago_s)


def test_before_the_loop_has_begun_the_daemon_is_healthy_and_not_ready(board: tuple[Board, str]) -> None:
    assert [get(board[1], path)[0] for path in ("/healthz", "/readyz", "/info.json")] == [200, 503, 503]
    assert "replayd_build_info" in get(board[1], "/metrics")[1]


def test_a_daemon_that_loads_says_how_far_it_is(board: tuple[Board, str]) -> None:
    board[0].state = "loading: 3 of 7 chunks"
    assert get(board[1], "/readyz")[:2] == (503, "loading: 3 of 7 chunks\n")
    assert get(board[1], "/healthz")[:2] == (200, "loading: 3 of 7 chunks\n")
    assert get(board[1], "/info.json")[:2] == (503, "loading: 3 of 7 chunks\n")


def test_a_daemon_that_loads_is_healthy_while_its_loop_goes_round_and_loading_gets_on(board: tuple[Board, str]) -> None:
    now = time.monotonic()

    def health() -> tuple[int, str]:
        return get(board[1], "/healthz")[:2]

    board[0].tell("loading: chunks", 1, now - 2 * PATIENCE_S)
    assert health()[0] == 503
    assert "the loop is stuck" in health()[1]
    board[0].tell("loading: chunks", 2, now - PATIENCE_S - 1)
    board[0].tell("loading: chunks", 2, now)
    assert (health()[0], "it has not got on: see to the disk" in health()[1]) == (503, True)
    assert get(board[1], "/readyz")[0] == 503
    board[0].tell("loading: chunks", 3, now)
    assert health() == (200, "loading: chunks\n")
    board[0].tell("", None, now - STALE_S - 1)
    assert health()[0] == 503, "it has not served yet, and is stuck"


def test_a_loop_that_never_begins_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    with StatusServer(Board(), "127.0.0.1:0") as status:
        assert get(status.address, "/healthz")[:2] == (200, "starting\n")
        later = time.monotonic() + STALE_S + 1
        monkeypatch.setattr(status._pages, "_began_at", time.monotonic() - (later - time.monotonic()))
        assert get(status.address, "/healthz")[0] == 503


def test_a_loop_that_is_stuck_is_neither_healthy_nor_ready(board: tuple[Board, str]) -> None:
    publish(board[0], STALE_S + 1)
    board[0].state = ""
    for path in ("/healthz", "/readyz"):
        status, body, _ = get(board[1], path)
        assert status == 503
        assert "the loop is stuck" in body
    info = info_of(board[1])
    assert info["age_s"] > info["stale_after_s"]
    publish(board[0], STALE_S / 2)
    assert [get(board[1], path)[0] for path in ("/healthz", "/readyz")] == [200, 200]


def test_a_daemon_that_stops_is_healthy_and_not_ready(board: tuple[Board, str]) -> None:
    publish(board[0], 0.0)
    board[0].state = "stopping"
    assert [get(board[1], path)[0] for path in ("/healthz", "/readyz")] == [200, 503]


STUCK = """
class UntilRead:
    def __init__(self, pipe):
        self._pipe = pipe

    def on_insert(self, access, items):
        open(self._pipe).close()
"""


def test_what_a_stuck_loop_said_last_is_served_while_it_is_stuck(
    start_daemon: StartDaemon, connect: ConnectPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "stuck_until.py").write_text(STUCK)
    (tmp_path / "replayd.toml").write_text(
        '[[table]]\nname = "replay"\n'
        f'extensions = [{{ type = "stuck_until:UntilRead", options = {{ pipe = "{pipe}" }} }}]\n'
    )
    monkeypatch.setattr("tests.daemon.harness.environment", lambda: _with_path(tmp_path))
    daemon = start_daemon("--config", str(tmp_path / "replayd.toml"))
    peer = connect(daemon)
    until(lambda: bool(_bulletin(daemon)))
    peer.send_insert("replay")
    until(lambda: _bulletin(daemon).get("age_s", 0.0) > 2.5)
    assert info_of(daemon.http_address)["tables"][0]["size"] == 0
    assert value(metrics_of(daemon), "replayd_bulletin_age_seconds") > 2.5
    with pipe.open("w"):
        peer.receive()
    until(lambda: info_of(daemon.http_address)["tables"][0]["size"] == 1)
    assert info_of(daemon.http_address)["loop"]["slowest_turn_s"] > 2.0
    assert "s for one turn, in which nobody was answered" in daemon.stop().stderr


def _with_path(directory: Path) -> dict[str, str]:
    variables = environment()
    return {**variables, "PYTHONPATH": os.pathsep.join([variables["PYTHONPATH"], str(directory)])}


# --- programs and people ----------------------------------------------------------------------------------------------


def test_info_by_http_is_what_the_wire_says(busy: DaemonProcess, connect: ConnectPeer) -> None:
    wire = connect(busy).ask("info")
    web = info_of(busy.http_address)
    assert bytes.fromhex(web["server_id"]) == wire["server_id"]
    assert [set(table) for table in web["tables"]] == [set(table) for table in wire["tables"]]
    assert set(wire) - {"v", "op", "id"} == set(web) - {"age_s", "stale_after_s"}
    assert web["tables"][0]["waiting"][0]["why"] == wire["tables"][0]["waiting"][0]["why"]


def test_the_history_has_a_point_for_each_second(daemon: DaemonProcess, connect: ConnectPeer) -> None:
    connect(daemon).insert("replay")
    until(lambda: get(daemon.http_address, "/history.json")[0] == 200 and len(history_of(daemon)["at_s"]) >= 3)
    history = history_of(daemon)
    columns = [history["at_s"], history["resident_bytes"], *history["tables"]["replay"].values()]
    assert len({len(column) for column in columns}) == 1
    assert history["at_s"] == sorted(history["at_s"])
    assert history["tables"]["replay"]["inserts"][-1] == 1


def history_of(daemon: DaemonProcess) -> dict[str, Any]:
    history: dict[str, Any] = json.loads(get(daemon.http_address, "/history.json")[1])
    return history


def test_the_page_is_whole_in_itself(board: tuple[Board, str]) -> None:
    status, page, headers = get(board[1], "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert not re.findall(r"""(?:src|href)=["'](?!data:|metrics|info\.json|healthz|readyz)""", page)
    assert not any(f"/* {place} */" in page for _, place, _ in PARTS)
    # The icon's namespace and uPlot's name of itself aside there is no address of anything else.
    addresses = set(re.findall(r"https?://[^\s'\"]+", page))
    assert addresses == {"http://www.w3.org/2000/svg", "https://github.com/leeoniya/uPlot"}
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for _, _, kind in PARTS:
        tags = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        assert re.findall("sha256-([^']+)", policy.partition(f"{kind}-src")[2].partition(";")[0]) == [
            base64.b64encode(hashlib.sha256(tag.encode()).digest()).decode() for tag in tags
        ]


def test_what_others_made_is_as_they_made_it() -> None:
    vendor = ROOT / "replayd" / "page" / "vendor"
    told = dict(re.findall(r"^\| `(\S+)` \| `([0-9a-f]{64})` \|$", (vendor / "README.md").read_text(), re.MULTILINE))
    assert told == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in vendor.iterdir()
        if path.name != "README.md"
    }
    (version,) = re.findall(r"uPlot\]\(\S+\) (\S+) by", (vendor / "README.md").read_text())
    assert f"(v{version})" in (vendor / "uPlot.iife.min.js").read_text()[:100]


def test_the_readme_lists_every_address() -> None:
    readme = (ROOT / "README.md").read_text()
    listed = re.findall(r"^\| `(/[^`]*)` \|", readme, re.MULTILINE)
    with StatusServer(Board(), "127.0.0.1:0") as status:
        there = get(status.address, "/nowhere")[1].removeprefix("there are: ").split()
    assert sorted(listed) == sorted(there)
    assert f"more than {STALE_S:g} s ago" in readme


# --- what a stranger may do -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "NONSENSE"])
def test_nothing_but_get_is_answered(board: tuple[Board, str], method: str) -> None:
    publish(board[0], 0.0)
    status, _, headers = get(board[1], "/info.json", method)
    assert (status, headers["Allow"]) == (405, "GET")


def test_an_unknown_address_is_told_which_there_are(board: tuple[Board, str]) -> None:
    status, body, _ = get(board[1], "/../etc/passwd")
    assert status == 404
    assert "/metrics" in body


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7078", "10.0.0.1", "[2001:db8::1]:7078", ""])
def test_a_name_of_another_site_that_leads_here_is_refused(board: tuple[Board, str], host: str) -> None:
    publish(board[0], 0.0)
    assert get(board[1], "/info.json", Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1:1", "[::1]:7078", "127.1.2.3"])
def test_this_machine_may_be_called_by_each_of_its_names(board: tuple[Board, str], host: str) -> None:
    publish(board[0], 0.0)
    assert get(board[1], "/info.json", Host=host)[0] == 200


def test_idle_connections_are_bounded_and_the_daemon_serves_on(daemon: DaemonProcess, connect: ConnectPeer) -> None:
    until(lambda: bool(_bulletin(daemon)))
    assert daemon.http_address is not None
    host, _, port = daemon.http_address.removeprefix("http://").rpartition(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(REQUESTS + 4)]
    try:
        # Of those that came last some are closed at once; the first ones are waited for.
        ended = [connection for connection in idle[REQUESTS:] if connection.recv(1) == b""]
        assert len(ended) == 4
        assert connect(daemon).insert("replay")["items"] == 1
    finally:
        for connection in idle:
            connection.close()
    until(lambda: _answers(daemon))


def _answers(daemon: DaemonProcess) -> bool:
    try:
        return get(daemon.http_address, "/healthz")[0] == 200
    except OSError:
        return False


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /healthz HTTP/1.0\r\nA: "], ids=["nothing", "line", "headers"])
def test_clients_that_send_one_byte_after_the_other_shut_nobody_out(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayd_http._Handler, "within_s", 0.5)
    with StatusServer(Board(), "127.0.0.1:0") as status:
        host, _, port = status.address.removeprefix("http://").rpartition(":")
        slow = [socket.create_connection((host, int(port)), timeout=30) for _ in range(REQUESTS)]
        for each in slow:
            each.sendall(sent)
        stopping = threading.Event()

        def trickle() -> None:
            """Faster than any wait for the next byte could end."""
            while not stopping.wait(0.01):
                for each in slow:
                    with contextlib.suppress(OSError):
                        each.send(b"x")

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            until(lambda: _is_answered(status.address))
        finally:
            stopping.set()
            thread.join()
            for each in slow:
                each.close()


def _is_answered(address: str) -> bool:
    try:
        return get(address, "/healthz")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def test_clients_that_take_an_answer_one_byte_after_the_other_shut_nobody_out(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replayd_http._Handler, "within_s", 0.5)
    # More than the system buffers for who does not read.
    monkeypatch.setattr(replayd_http, "_page", lambda: (bytes(50_000_000), "default-src 'none'"))
    with StatusServer(Board(), "127.0.0.1:0") as status:
        host, _, port = status.address.removeprefix("http://").rpartition(":")
        slow = [socket.create_connection((host, int(port)), timeout=30) for _ in range(REQUESTS)]
        for each in slow:
            each.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        for each in slow:
            assert each.recv(1) == b"H"
        until(lambda: _is_answered(status.address))
        for each in slow:
            each.close()
    assert capfd.readouterr().err == ""


def test_a_request_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayd_http._Handler, "within_s", 0.05)
    with StatusServer(Board(), "127.0.0.1:0") as status:
        host, _, port = status.address.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as slow:
            slow.sendall(b"GET /healthz HTT")
            assert slow.recv(1) == b""


def test_garbage_is_answered_or_closed_and_harms_nothing(board: tuple[Board, str]) -> None:
    host, _, port = board[1].removeprefix("http://").rpartition(":")
    for garbage in (
        b"\0" * 100,
        b"GET",
        b"\xff\xfe\n\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /%00%ff HTTP/1.0\r\n\r\n",
        b"A" * 70_000,
    ):
        with socket.create_connection((host, int(port)), timeout=30) as stranger:
            stranger.sendall(garbage)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
    assert get(board[1], "/healthz")[0] == 200


def test_a_fault_of_a_page_is_told_in_the_log_and_not_to_the_stranger(
    board: tuple[Board, str], caplog: pytest.LogCaptureFixture
) -> None:
    board[0].publish({"tables": [], "uptime_s": 1.0, "memory": {"resident_bytes": 1}, "odd": {1, 2}}, time.monotonic())
    for _ in range(3):
        status, body, _ = get(board[1], "/info.json")
        assert status == 500
        assert "Traceback" not in body
    assert sum("GET /info.json" in record.getMessage() for record in caplog.records) == 1


def test_faults_of_pages_that_were_but_counted_are_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    board = Board()
    board.publish({"tables": [], "uptime_s": 1.0, "memory": {"resident_bytes": 1}, "odd": {1, 2}}, time.monotonic())
    with StatusServer(board, "127.0.0.1:0") as status:
        for _ in range(5):
            assert get(status.address, "/info.json")[0] == 500
    assert "(the last of 4 since the line before)" in caplog.records[-1].getMessage()


def test_a_daemon_ends_while_somebody_keeps_a_connection(daemon: DaemonProcess) -> None:
    until(lambda: bool(_bulletin(daemon)))
    assert daemon.http_address is not None
    host, _, port = daemon.http_address.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))) as idle:
        idle.sendall(b"GET /met")
        assert "Traceback" not in daemon.stop().stderr


# --- where, and whether -----------------------------------------------------------------------------------------------


def test_it_listens_on_loopback_and_says_where(server: DaemonProcess) -> None:
    assert server.http_address is not None
    assert server.http_address.startswith("http://127.0.0.1:")
    assert f"status    {server.http_address}/" in server.output()


def test_it_can_be_turned_off(start_daemon: StartDaemon, tmp_path: Path, connect: ConnectPeer) -> None:
    (tmp_path / "replayd.toml").write_text('[http]\nlisten = "off"\n')
    for arguments in (("--http", "off"), ("--config", str(tmp_path / "replayd.toml"))):
        daemon = start_daemon(*arguments)
        assert daemon.http_address is None
        assert "status" not in daemon.output()
        loop = connect(daemon).ask("info")["loop"]
        assert sum(loop["turn_s"]["counts"]) <= 10, "a loop that nobody looks at does not turn by itself"


def test_a_taken_port_is_told_and_ends_in_its_own_code() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run_replayd("serve", "--port", "0", "--http", address)
        assert ended.returncode == os.EX_CANTCREAT
        assert f"cannot bind http://{address}: Address already in use" in ended.stderr
        with pytest.raises(BindError):
            StatusServer(Board(), address)


def test_a_default_port_that_is_taken_keeps_no_daemon_from_serving(
    start_daemon: StartDaemon, connect: ConnectPeer
) -> None:
    with socket.socket() as taken, socket.socket() as free:
        for port in range(20_000, 30_000, 7):
            try:
                free.bind(("127.0.0.1", port))
                taken.bind(("127.0.0.1", port + 1))
                break
            except OSError:
                continue
        taken.listen()
        free.close()
        daemon = start_daemon("--port", str(port), "--ingest-port", "0", file_decides=True)
        assert connect(daemon).insert("replay")["items"] == 1
        who = rf"process {os.getpid()} \(.*\) has it"
        told = rf"cannot bind http://127\.0\.0\.1:{port + 1}: Address already in use, {who}, so the status page is at"
        assert re.search(told, daemon.output())
        until(lambda: get(daemon.http_address, "/readyz")[0] == 200)


def test_other_machines_are_let_in_only_on_purpose(start_daemon: StartDaemon) -> None:
    ended = run_replayd("serve", "--port", "0", "--http", "0.0.0.0:0")
    assert ended.returncode == os.EX_CONFIG
    assert "http.listen 0.0.0.0:0 can be reached from other machines" in ended.stderr
    daemon = start_daemon("--http", "0.0.0.0:0", "--insecure-public")
    assert "changes nothing" not in daemon.output()
    port = str(daemon.http_address).rpartition(":")[2]
    # There any name may lead to it.
    assert get(f"http://127.0.0.1:{port}", "/healthz", Host="box.lab.example")[0] == 200


def test_an_embedded_server_and_help_pay_nothing_for_it() -> None:
    script = (
        "import sys, replayd\n"
        "with replayd.Server([replayd.Table.queue('q', 1)]):\n"
        "    pass\n"
        "from replayd import cli\n"
        "print([name for name in ('prometheus_client', 'wsgiref', 'rich', 'replayd.http') if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    # blosc2, which the client may use, brings rich along, though only when something is compressed.
    assert ended.stdout.strip() == "[]"


def test_the_board_shows_a_service_under_way() -> None:
    s = service(fifo())
    board = Board()
    writer = StreamWriter()
    with StatusServer(board, "localhost:0") as status:
        for second in range(3):
            s.handle("peer", "insert", writer.insert([b"x"], [(second, 1)]), float(second))
            board.publish(s.report(float(second), brief=True), time.monotonic())
            assert info_of(status.address)["tables"][0]["size"] == second + 1


def test_metrics_tell_of_checkpoints(start_daemon: StartDaemon, connect: ConnectPeer, tmp_path: Path) -> None:
    daemon = start_daemon("--data-dir", str(tmp_path / "store"))
    connect(daemon).insert("replay")
    until(lambda: bool(_bulletin(daemon)))
    assert not any(name == "replayd_durable_age_seconds" for name, _ in metrics_of(daemon))
    since_start_s = value(metrics_of(daemon), "replayd_checkpoint_age_seconds")
    assert since_start_s > 0, "a daemon that never makes one is found by its alert"
    assert run_replayd("checkpoint", "--address", daemon.address).returncode == 0
    until(lambda: metrics_of(daemon).get(("replayd_checkpoints_total", frozenset())) == 1)
    metrics = metrics_of(daemon)
    assert value(metrics, "replayd_checkpoint_failures_total") == 0
    assert value(metrics, "replayd_durable_age_seconds") > 0
    store = info_of(daemon.http_address)["store"]
    assert store["last"]["age_s"] == store["checkpoint_age_s"] > 0
    assert value(metrics, "replayd_checkpoint_bytes") > 0
    assert value(metrics, "replayd_store_size_bytes") > 0
