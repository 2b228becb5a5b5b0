"""The status page in a real browser: what it says of a daemon that is idle, blocked either way, or full.

Skipped where there is no Chromium; `.ci/run` installs one. With REPLAYD_SCREENSHOTS naming a directory, each state is
photographed there in light, in dark and on a phone: `scripts/check-page` does that.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest

from replayd_client import Client
from replayd_client.errors import ReplaydError
from tests.daemon.browser import Browser, executable
from tests.daemon.conftest import ConnectPeer, StartDaemon
from tests.daemon.embedded import until
from tests.daemon.harness import DaemonProcess

pytestmark = pytest.mark.skipif(executable() is None, reason="needs Chromium: apt-get install chromium")

SIZES = {"desktop": (1100, 800, False), "phone": (360, 780, True)}
TABLES = (
    "--table",
    "replay,sampler=prioritized,priority_exponent=0.6,max_size=2000,limiter=sample_to_insert_ratio,"
    "samples_per_insert=8,min_size_to_sample=100,error_buffer=400",
    "--table",
    "rollouts,preset=queue,max_size=16",
)
REPLAY, ROLLOUTS = 0, 1


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A browser whose page must not complain."""
    with Browser(tmp_path) as browser:
        browser.show(1100, 800)
        yield browser
    assert browser.complaints == []


def opened(browser: Browser, daemon: DaemonProcess) -> None:
    until(lambda: is_ready(daemon))
    browser.go(f"{daemon.http_address}/")
    browser.wait_for("document.querySelector('article')")


def is_ready(daemon: DaemonProcess) -> bool:
    try:
        with urlopen(f"{daemon.http_address}/readyz", timeout=30):
            return True
    except HTTPError as error:
        error.close()
        return False


def text(browser: Browser, table: int, key: str) -> str:
    """What stands in a place of a table's card."""
    found: str = browser.ask(
        f"document.querySelectorAll('article')[{table}].querySelector('[data-k={key}]').textContent"
    )
    return found


def place(table: int, key: str) -> str:
    return f"document.querySelectorAll('article')[{table}].querySelector('[data-k={key}]').textContent"


def label(browser: Browser, table: int, key: str) -> str:
    """What a drawing of a table's card says to those who cannot see it."""
    said: str = browser.ask(f"document.querySelectorAll('article')[{table}].querySelector('[data-k={key}]').ariaLabel")
    return said


DURABLE = "[data-k=durable-tile]"
IS_BAD = "document.querySelector('[data-k=durable-of]').className === 'bad'"
CHANGED_ANSWERS = """(() => {
    const real = ask;
    window.changes = {};
    ask = async (path) => {
        const answer = await real(path);
        return path === "info.json" ? { ...answer, store: { ...answer.store, ...window.changes } } : answer;
    };
})()"""
"""From now on the page sees what `window.changes` says of the store."""


def tile(browser: Browser, key: str) -> str:
    """What stands in a place of the tiles above the tables."""
    found: str = browser.ask(f"document.querySelector('#tiles [data-k={key}]').textContent")
    return found


def wait_for_tile(browser: Browser, key: str, pattern: str) -> None:
    """Until what stands there is like this."""
    said = f"document.querySelector('#tiles [data-k={key}]')"
    matches = f"new RegExp({json.dumps(pattern)}).test({said}.textContent)"
    browser.wait_for(f"!{said}.hidden && {matches}", lambda: tile(browser, key))


def changed(browser: Browser, **store: object) -> None:
    """Let the page see this of the store, beside what the daemon says of it."""
    browser.ask(f"window.changes = {json.dumps(store)}")


INK = """(name) => {
    const probe = document.body.appendChild(document.createElement('i'));
    probe.style.color = `var(--${name})`;
    const wanted = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
    probe.remove();
    const canvas = document.querySelector('[data-k=graph] canvas');
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
    let found = 0;
    for (let i = 0; i < data.length; i += 4) {
        found += wanted.every((w, k) => Math.abs(data[i + k] - w) < 4) && data[i + 3] > 200;
    }
    return found;
}"""
"""How many pixels of the first graph have a colour of the page, as it is now."""


def wait_for_text(browser: Browser, table: int, key: str, part: str) -> str:
    """What stands there, as soon as this is among it."""
    browser.wait_for(f"{place(table, key)}.includes({part!r})", lambda: text(browser, table, key))
    return text(browser, table, key)


def photograph(browser: Browser, name: str) -> None:
    """Nothing may stick out at the side, in any size and colours; pictures of them, if somebody wants to see them."""
    directory = os.environ.get("REPLAYD_SCREENSHOTS")
    for size, (width, height, phone) in SIZES.items():
        for dark in (False, True):
            browser.show(width, height, dark=dark, phone=phone)
            browser.wait_for(f"document.documentElement.clientWidth <= {width}")
            assert browser.ask("document.documentElement.scrollWidth <= innerWidth"), f"{name} on a {size} is too wide"
            browser.wait_for("plots().every(plot => plot.width === plot.root.parentElement.clientWidth)")
            if directory:
                # Bars and markers move to where they belong.
                browser.ask(
                    "Promise.allSettled(document.getAnimations().map(animation => animation.finished)).then(() => 1)"
                )
                browser.screenshot(Path(directory) / f"{name}-{size}-{'dark' if dark else 'light'}.png")
    browser.show(1100, 800)


@contextmanager
def traffic(daemon: DaemonProcess, table: str, batch: int) -> Iterator[None]:
    """Somebody inserts, and somebody samples, as fast as the limiter lets them."""
    ends = threading.Event()

    def write() -> None:
        with Client(daemon.address) as client:
            while not ends.is_set():
                steps = {"observation": np.zeros((batch, 1, 8), np.float32)}
                client.insert_batch(steps, {table: np.linspace(0.1, 1.0, batch)}, timeout_ms=500)

    def read() -> None:
        with Client(daemon.address) as client:
            while not ends.is_set():
                client.sample_batch(table, batch, timeout_ms=500)

    def until_the_end(work: object) -> None:
        while not ends.is_set():
            try:
                work()  # type: ignore[operator]
            except ReplaydError:
                continue

    threads = [threading.Thread(target=until_the_end, args=(work,)) for work in (write, read)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


# --- what it says -----------------------------------------------------------------------------------------------------


def test_an_idle_daemon(start_daemon: StartDaemon, browser: Browser) -> None:
    daemon = start_daemon(*TABLES)
    opened(browser, daemon)
    assert browser.ask("document.getElementById('state').textContent") == "idle"
    assert text(browser, REPLAY, "name") == "replay"
    assert text(browser, REPLAY, "policy") == "drawn prioritized (exponent 0.6), removed fifo"
    assert text(browser, REPLAY, "words") == "Nobody waits, and nothing has come in or gone out yet."
    assert text(browser, ROLLOUTS, "policy") == "drawn fifo, removed fifo, one draw of each at most"
    assert text(browser, REPLAY, "low") == "samples wait at 400"
    assert text(browser, REPLAY, "high") == "inserts wait at 1200"
    assert text(browser, REPLAY, "ages") == label(browser, REPLAY, "ages") == "nothing has been drawn yet"
    assert browser.ask("/Connections refused\\s*0/.test(document.body.textContent)")
    assert tile(browser, "peers") == "0"
    assert tile(browser, "peers-of") == "connections, 0 writers; nobody waits"
    assert browser.ask(f"document.querySelector('{DURABLE}').hidden"), "there is no store"
    photograph(browser, "idle")


def test_samples_that_wait(start_daemon: StartDaemon, connect: ConnectPeer, browser: Browser) -> None:
    daemon = start_daemon(*TABLES)
    peer = connect(daemon)
    for _ in range(30):
        peer.insert("replay")
    peer.send("sample", table="replay", n=8, timeout_ms=60_000)
    opened(browser, daemon)
    words = wait_for_text(browser, REPLAY, "words", "1 sample request of 1 peer waits")
    assert "it holds 30 of min_size_to_sample 100 items; writers must insert" in words
    assert "70 inserts would set the first one free" in words
    assert tile(browser, "peers") == "2"
    assert tile(browser, "peers-of") == "connections, 1 writer; 1 peer waiting"
    assert browser.ask("document.getElementById('state').textContent") == "replay: samples wait"
    assert text(browser, REPLAY, "limiter-of").endswith("samples begin at 100 items, 70 to go")
    assert wait_for_text(browser, REPLAY, "facts", "min_size_to_sample")
    photograph(browser, "samples-wait")


def test_inserts_that_wait(start_daemon: StartDaemon, connect: ConnectPeer, browser: Browser) -> None:
    daemon = start_daemon(*TABLES)
    peer = connect(daemon)
    for _ in range(16):
        peer.insert("rollouts")
    peer.send_insert("rollouts")
    opened(browser, daemon)
    words = wait_for_text(browser, ROLLOUTS, "words", "1 insert request of 1 peer waits")
    assert "the cursor 16 may not pass max_diff 16; learners must sample" in words
    wait_for_text(browser, ROLLOUTS, "words", "is a learner running?")
    assert text(browser, ROLLOUTS, "fill") == "100 %"
    assert browser.ask("document.getElementById('state').textContent") == "rollouts: inserts wait"
    photograph(browser, "inserts-wait")


def test_a_full_table_under_way(start_daemon: StartDaemon, browser: Browser, tmp_path: Path) -> None:
    daemon = start_daemon(*TABLES, "--data-dir", str(tmp_path / "store"))
    opened(browser, daemon)
    with traffic(daemon, "replay", 50):
        wait_for_text(browser, REPLAY, "state", "flowing")
        browser.wait_for("parseInt(document.querySelector('[data-k=fill]').textContent) === 100")
        wait_for_text(browser, REPLAY, "ages-of", "in the last minute")
        # Rates, histograms and the memory forecast have something to show, and the graph a line.
        rate = "parseFloat(document.querySelector('[data-k=sample-rate]').textContent)"
        assert browser.ask(rate) > 0
        assert re.search(r"[1-9]\S*( k)?/s samples", label(browser, REPLAY, "graph"))
        assert "draws" in label(browser, REPLAY, "ages")
        assert re.search(r"3–4: \d+ items, \d+ %", label(browser, REPLAY, "times"))
        assert "in use" in browser.ask("document.querySelector('[data-k=memory-graph]').ariaLabel")
        assert "when all tables are full" in browser.ask("document.querySelector('[data-k=memory-of]').textContent")
        assert tile(browser, "durable") == "not yet"
        assert tile(browser, "durable-of") == "no checkpoint since the start"
        assert browser.ask("document.querySelector('[data-k=checkpoint]').hidden"), "its age is that of what is durable"
        for dark in (False, True):
            browser.show(1100, 800, dark=dark)
            for side in ("insert", "sample"):
                browser.wait_for(f"({INK})({side!r}) > 20")
        photograph(browser, "full")


def test_what_is_durable_and_how_the_checkpoints_are(
    start_daemon: StartDaemon, browser: Browser, tmp_path: Path
) -> None:
    daemon = start_daemon(*TABLES, "--data-dir", str(tmp_path / "store"), "--journal", "interval")
    with Client(daemon.address) as client:
        client.insert({"x": np.zeros((2, 1), np.float32)}, {"rollouts": 1.0})
        client.checkpoint()
    opened(browser, daemon)
    took = r"^the last checkpoint took .+, wrote \S+ (B|KiB|MiB) and held requests for .+"
    wait_for_tile(browser, "durable-of", took)
    wait_for_tile(browser, "durable", r" ago$")
    wait_for_tile(browser, "checkpoint", r"^the last checkpoint is of .+ ago$")
    assert browser.ask(IS_BAD) is False
    # What lasts for moments, or needs a disk that fails, is said by an answer of the daemon's that is changed.
    browser.ask(CHANGED_ANSWERS)
    running = {"phase": "chunks", "chunks": 12_000, "chunks_total": 48_000, "bytes": 1, "elapsed_s": 75.0}
    changed(browser, running=running, last_error="no space left", checkpoint_age_s=3723.0, durable_age_s=0.25)
    wait_for_tile(browser, "durable-of", r"^writing a checkpoint for 1 min 15 s: chunks, 12\.0 k of 48\.0 k chunks$")
    assert tile(browser, "checkpoint") == "the last checkpoint is of 1 h 2 min ago"
    assert tile(browser, "durable") == "250 ms ago"
    assert browser.ask(IS_BAD) is False, "it is being mended"
    changed(browser, running={**running, "phase": "preparing", "chunks_total": 0})
    wait_for_tile(browser, "durable-of", r"^writing a checkpoint for 1 min 15 s: preparing$")
    changed(browser, last=None, checkpoint_age_s=90.0)
    wait_for_tile(browser, "checkpoint", r"^without a checkpoint since the start, 1 min 30 s ago$")
    changed(browser, last_error="no <b>space</b> left", checkpoint_age_s=90_061.0)
    wait_for_tile(browser, "durable-of", r"^the last checkpoint failed: no <b>space</b> left$")
    assert tile(browser, "checkpoint") == "the last checkpoint is of 1 d 1 h ago"
    assert browser.ask(IS_BAD) is True
    assert "Inserts waited for the disknever" in browser.ask("document.getElementById('counts').textContent")
    changed(browser, inserts_wait="70.1 MB wait for the disk of /x", blocked_s=75.0)
    said = wait_for_text(browser, ROLLOUTS, "words", "Inserts wait: 70.1 MB wait for the disk of /x.")
    assert "Nobody waits" not in said
    assert text(browser, ROLLOUTS, "state") == "inserts wait for the disk"
    assert "Inserts waited for the disk1 min 15 s" in browser.ask("document.getElementById('counts').textContent")
    photograph(browser, "disk-stuck")
    browser.show(360, 780, phone=True)
    browser.wait_for(
        "document.documentElement.clientWidth <= 360 && document.documentElement.scrollWidth <= innerWidth"
    )


def test_how_far_draws_lag_behind_the_policy_is_told_where_somebody_says_it(
    start_daemon: StartDaemon, browser: Browser
) -> None:
    daemon = start_daemon("--table", "said", "--table", "silent,max_bytes=700")
    with Client(daemon.address) as client:
        with client.batch_writer() as writer:
            for version in (4, 6):
                writer.policy_version = version
                writer.insert({"x": np.zeros((2, 1), np.float32)}, {"said": 1.0, "silent": 1.0})
                writer.flush()
        for _ in range(50):
            client.sample_batch("said", 16)
        opened(browser, daemon)
        # What binds it is not how many items it has.
        assert re.fullmatch(r"[89]\d % of max_bytes", wait_for_text(browser, 1, "fill", "max_bytes"))
        assert re.match(r"2 of \d.* held of 700 B$", text(browser, 1, "fill-of"))
        assert re.search(r" held; about \d+ MiB when full$", text(browser, 0, "fill-of"))
        assert text(browser, 0, "fill") == "<1 %"
        photograph(browser, "full-of-bytes")
        # Half of the draws are two versions behind.
        said = wait_for_text(browser, 0, "facts", "newest version 6, draws")
        assert 0.5 < float(said.split("draws ")[1].split(" behind")[0]) < 1.5
        assert "since the start" in said


def test_a_paused_table(start_daemon: StartDaemon, connect: ConnectPeer, browser: Browser) -> None:
    daemon = start_daemon(*TABLES)
    peer = connect(daemon)
    peer.ask("set", table="replay", changes={"paused_samples": True, "paused_inserts": True})
    opened(browser, daemon)
    wait_for_text(browser, REPLAY, "state", "inserts and samples paused")
    assert text(browser, REPLAY, "words") == "An operator holds back inserts and samples; nobody waits for them."


# --- how it behaves ---------------------------------------------------------------------------------------------------


def test_it_follows_what_happens_and_asks_for_nothing_else(
    start_daemon: StartDaemon, connect: ConnectPeer, browser: Browser
) -> None:
    daemon = start_daemon(*TABLES)
    opened(browser, daemon)
    assert text(browser, REPLAY, "fill-of").startswith("0 of 2000 items")
    connect(daemon).insert("replay")
    wait_for_text(browser, REPLAY, "fill-of", "1 of 2000 items")
    assert browser.requested == {f"{daemon.http_address}/{path}" for path in ("", "info.json", "history.json")}


def test_it_says_when_the_daemon_is_gone_and_goes_on_when_it_is_back(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon(*TABLES)
    assert daemon.http_address is not None
    address = daemon.http_address.removeprefix("http://")
    with Browser(tmp_path) as browser:
        browser.show(1100, 800)
        opened(browser, daemon)
        daemon.stop()
        browser.wait_for("document.getElementById('alarm').textContent.startsWith('The daemon does not answer')")
        assert text(browser, REPLAY, "name") == "replay", "what was known is still there"
        start_daemon("--table", "another", "--http", address)
        browser.wait_for("document.getElementById('alarm').hidden")
        browser.wait_for("document.querySelectorAll('article').length === 1")
        assert text(browser, 0, "name") == "another"
        # A daemon that is not there, or is going while it answers, or is there again and not ready, is all there is to
        # complain of.
        of_the_daemon = re.compile(r"ERR_(CONNECTION_(REFUSED|RESET|CLOSED)|EMPTY_RESPONSE)|status of 503")
        assert [complaint for complaint in browser.complaints if not of_the_daemon.search(complaint)] == []


def test_a_name_with_markup_in_it_is_shown_as_it_is(start_daemon: StartDaemon, browser: Browser) -> None:
    name = "<img src onerror>&amp;<b>"
    daemon = start_daemon("--table", name)
    opened(browser, daemon)
    assert text(browser, 0, "name") == name
    assert browser.ask("document.images.length") == 0


def test_the_graph_tells_the_values_under_the_pointer(
    start_daemon: StartDaemon, connect: ConnectPeer, browser: Browser
) -> None:
    daemon = start_daemon(*TABLES)
    connect(daemon).insert("replay")
    opened(browser, daemon)
    browser.wait_for("past.at_s.length > 3")
    point = browser.ask(
        "(() => { const { right, top } = document.querySelector('[data-k=graph] .u-over').getBoundingClientRect();"
        " return { x: right - 1, y: top + 10 }; })()"
    )
    browser.command("Input.dispatchMouseEvent", type="mouseMoved", **point)
    browser.wait_for("/ago: .*s inserts, .*s samples/.test(document.querySelector('[data-k=graph] .told').textContent)")
