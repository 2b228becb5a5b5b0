"""`replayd top`: the tables of a running daemon in a terminal, looked at again each second.

Owns how `info` looks in some 80 by 24 characters. Draws with rich, which it imports when it runs.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from replayd.cli_completion import tables_there
from replayd.cli_operator import connected, fail, print_json
from replayd.cli_options import ADDRESS, Time
from replayd.wording import count, duration, fill, short, size_text

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

    from replayd_client.pool import ConnectionPool

INTERVAL = "1s"
ANSWER_S = 5.0
"""How long an answer may take before it is said that nobody answers."""
FIRST_S = 0.5
"""Over which rates are taken that are printed once."""
REMEMBERED = 24
"""Looks whose rates are drawn as a little graph, and over which draws are told of."""
BAR = 20
BAND = 24
"""Widths, in characters."""
Report = Mapping[str, Any]

_CLAUSE = re.compile(r"[,;] |  (?=\S)")
"""Where a line is broken first."""


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]…", shell_complete=tables_there)
@ADDRESS
@click.option(
    "--interval",
    "interval_s",
    type=Time(0.1, 3600),
    default=INTERVAL,
    show_default=True,
    help="Time between looks.",
)
@click.option(
    "--frames", type=click.IntRange(1), help="End after so many looks.  [default: 1 if not in a terminal, or as JSON]"
)
@click.option("--json", "as_json", is_flag=True, help="Print what the daemon said, an object a look, as JSON.")
def top(tables: tuple[str, ...], address: str, interval_s: float, frames: int | None, as_json: bool) -> None:
    """Watch a running daemon: fill, rates, the limiter's band, and who waits for what. `q` ends it.

    All tables, or those named. It asks for `info`, which nothing waits for and which changes nothing.

    \b
    Examples:
      replayd top
      replayd top replay --interval 5
      replayd top --frames 1 | cat
      replayd top --json --frames 60 | jq '.loop'
    """
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if frames is None and not console.is_terminal:
        frames = 1
    look = Look(tables)
    with connected(address) as pool, _keys() as key_within:
        look.see(_info(pool), address)
        missing = [name for name in tables if name not in look.names]
        if missing:
            fail(os.EX_USAGE, f"there is no table {missing[0]!r}; there are: {', '.join(look.names)}")
        if as_json or not console.is_terminal:
            for frame in range(frames or 1):
                # Rates need two looks, and who looks once wants them too.
                if frame or not as_json:
                    time.sleep(interval_s if frame else min(interval_s, FIRST_S))
                    look.see(_info(pool), address)
                if as_json:
                    print_json({**look.report, "tables": look.tables})
                else:
                    console.print(look.drawn(console.width, None))
            return
        with Live(look.drawn(console.width, console.height), console=console, screen=True, auto_refresh=False) as live:
            shown = 1
            while frames is None or shown < frames:
                if key_within(interval_s) in ("q", "Q"):
                    return
                look.see(_info_or_none(pool), address)
                live.update(look.drawn(console.width, console.height), refresh=True)
                shown += 1


COMMANDS: tuple[click.Command, ...] = (top,)


def _info(pool: ConnectionPool) -> Report:
    from replayd_client.inspection import info

    return info(pool, time.monotonic() + ANSWER_S)


def _info_or_none(pool: ConnectionPool) -> Report | None:
    """The answer, None if there is none: a daemon that is restarted is waited for."""
    from replayd_client.errors import ConnectionLostError, DeadlineExceededError

    try:
        return _info(pool)
    except (ConnectionLostError, DeadlineExceededError):
        return None


@contextmanager
def _keys() -> Iterator[Any]:
    """While inside, keys are read as they are typed; yields a function that waits for one at most so many seconds."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):

        def wait(seconds: float) -> str | None:
            time.sleep(seconds)
            return None

        yield wait
        return
    import select
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def key_within(seconds: float) -> str | None:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return os.read(sys.stdin.fileno(), 1).decode("latin-1") if ready else None

    try:
        yield key_within
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


class Look:
    """What was seen so far, and how it is drawn."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._wanted = wanted
        self._report: Report = {}
        self._before: Report = {}
        self._answered = True
        self._address = ""
        self._rates: dict[str, dict[str, deque[float]]] = {}
        self._draws: dict[str, deque[dict[str, Report]]] = {}
        """Histograms of draws as they were in the last looks, by table."""

    @property
    def names(self) -> list[str]:
        """The tables that the daemon has."""
        return [table["name"] for table in self._report["tables"]]

    @property
    def report(self) -> Report:
        """The newest answer."""
        return self._report

    @property
    def tables(self) -> list[Report]:
        """Those of it that are wanted."""
        return [table for table in self._report["tables"] if not self._wanted or table["name"] in self._wanted]

    def see(self, report: Report | None, address: str) -> None:
        """The newest answer of `info`; None: there was none."""
        self._address = address
        self._answered = report is not None
        if report is None:
            return
        self._before, self._report = self._report, report
        if self._before.get("server_id") != report["server_id"]:
            self._before = {}
            self._rates, self._draws = {}, {}
        before = {table["name"]: table["limiter"] for table in self._before.get("tables", [])}
        passed_s = report["uptime_s"] - self._before.get("uptime_s", report["uptime_s"])
        for table in report["tables"]:
            draws = self._draws.setdefault(table["name"], deque(maxlen=REMEMBERED))
            draws.append({key: table[key] for key in ("sample_age_s", "staleness_versions") if key in table})
            rates = self._rates.setdefault(
                table["name"], {key: deque(maxlen=REMEMBERED) for key in ("inserts", "samples")}
            )
            if table["name"] in before and passed_s > 0:
                for key, seen in rates.items():
                    # A reset sets the counters back.
                    seen.append(max(0, table["limiter"][key] - before[table["name"]][key]) / passed_s)

    def drawn(self, width: int, height: int | None) -> Group:
        """For a terminal of this size; height None: as long as it gets."""
        from rich.console import Group
        from rich.text import Text

        tables = self.tables
        lines = [line for markup in self._head() for line in _wrapped(markup, width)]
        shown = 0
        for table in tables:
            block = [Text(""), *(line for markup in self._table(table, width) for line in _wrapped(markup, width))]
            if height is not None and len(lines) + len(block) > height - 1:
                break
            lines += block
            shown += 1
        if shown < len(tables):
            left = _plain(", ".join(table["name"] for table in tables[shown:]))
            lines.append(_cut_line(f"[dim]and {count(len(tables) - shown, 'table')} more: {left}[/]", width))
        return Group(*lines[:height])

    def _head(self) -> Iterator[str]:
        report = self._report
        yield f"[bold]{_plain(report['server'])}[/] at {_plain(self._address)}, up {duration(report['uptime_s'])}"
        memory, peers, counters = report["memory"], report["peers"], report["counters"]
        resident, limit = memory["resident_bytes"], memory["limit_bytes"]
        when_full = memory.get("bytes_when_full", resident)
        of = f" of {size_text(limit)}" if limit else ""
        full = f", about {size_text(when_full)} when all tables are full" if when_full > resident else ""
        colour = "bold red" if limit and when_full > limit else "default"
        yield f"[{colour}]memory {size_text(resident)}{of}{full}[/]"
        if "max_bytes" in memory:
            yield f"tables hold {size_text(memory['held_bytes'])} of {size_text(memory['max_bytes'])} (max_bytes)"
        yield (
            f"{count(peers['connected'], 'connection')}, {count(report['streams']['open'], 'writer')}, "
            f"{count(peers['waiting'], 'peer')} waiting; loop {self._busy():.0%} busy, "
            f"slowest turn {duration(report['loop']['slowest_turn_s'])}"
        )
        if "store" in report:
            yield _durable(report["store"])
            if waits := report["store"].get("inserts_wait"):
                yield f"[bold red]inserts wait: {_plain(waits)}[/]"
        for key, word in (("replies_dropped", "replies dropped"), ("push_gaps", "pushes lost")):
            if counters[key]:
                yield f"[bold red]{short(counters[key])} {word}[/]"
        if not self._answered:
            yield "[bold white on red] nobody answers: this is how it was; asking again [/]"

    def _busy(self) -> float:
        if not self._before or self._report["uptime_s"] <= self._before["uptime_s"]:
            return 0.0
        busy_s, passed_s = (
            now - before
            for now, before in (
                (self._report["loop"]["turn_s"]["sum"], self._before["loop"]["turn_s"]["sum"]),
                (self._report["uptime_s"], self._before["uptime_s"]),
            )
        )
        return float(min(1.0, busy_s / passed_s))

    def _table(self, table: Report, width: int) -> Iterator[str]:
        rates = self._rates[table["name"]]
        share, limit = fill(table)
        filled = min(BAR, round(share * BAR))
        most, of = (f" of {size_text(table['max_bytes'])}", f" of {limit}") if "max_bytes" in table else ("", "")
        bar = f"[bold]{'█' * filled}[/][dim]{'░' * (BAR - filled)}[/]"
        yield (
            f"[bold]{_plain(_cut(table['name'], 24))}[/]  {bar} {share:.0%}{of}  {short(table['size'])} of "
            f"{short(table['max_size'])}, {size_text(table['held_bytes'])}{most}"
        )
        inserts, samples = (_rate(rates[key]) for key in ("inserts", "samples"))
        graph = max(0, min(REMEMBERED, (width - 50) // 2))
        yield (
            f"  [blue]inserts {inserts:>7}/s {_graph(rates['inserts'], graph)}[/]  "
            f"[yellow]samples {samples:>7}/s {_graph(rates['samples'], graph)}[/]"
        )
        yield f"  {_band(table['limiter'])}"
        if told := "; ".join(self._draws_text(table)):
            yield f"  [dim]{told}[/]"
        if table["paused"]:
            yield f"  [bold]paused: {' and '.join(table['paused'])}[/]"
        for waiting in table["waiting"]:
            colour = "blue" if waiting["side"] == "insert" else "yellow"
            words = (
                f"{waiting['side']}s wait {duration(waiting['waited_s'])} ({count(waiting['requests'], 'request')}): "
                f"{waiting['why']}"
            )
            for line in wrap(words, max(20, width - 4), subsequent_indent="  "):
                yield f"  [{colour}]{_plain(line)}[/]"

    def _draws_text(self, table: Report) -> Iterator[str]:
        """How old draws are and how stale, and how often items are drawn."""
        ages = self._lately(table, "sample_age_s")
        if sum(ages["counts"]):
            yield f"drawn at age {_quantile(ages, 0.5)} (half), {_quantile(ages, 0.9)} (90%)"
        times = table["times_sampled"]
        if items := sum(times["counts"]):
            yield f"items {short(times['sum'] / items)} times, {times['counts'][0] / items:.0%} never"
        if "staleness_versions" in table:
            behind = self._lately(table, "staleness_versions")
            draws = sum(behind["counts"])
            lag = f", draws {behind['sum'] / draws:.1f} behind" if draws else ""
            yield f"policy {table['newest_policy_version']}{lag}"

    def _lately(self, table: Report, key: str) -> Report:
        """A histogram of draws, of those in the looks that are remembered, or of all if there were none in these."""
        now: Report = table[key]
        before = self._draws[table["name"]][0].get(key)
        if before is not None:
            counts = [new - old for new, old in zip(now["counts"], before["counts"], strict=True)]
            # A reset sets the counts back.
            if min(counts) >= 0 and sum(counts):
                return {**now, "counts": counts, "sum": now["sum"] - before["sum"]}
        return now


def _quantile(histogram: Report, share: float) -> str:
    """`≤ 10 s`: the bucket in which this share of the values is reached."""
    wanted, passed = share * sum(histogram["counts"]), 0
    for bound, counted in zip(histogram["bounds"], histogram["counts"], strict=False):
        passed += counted
        if passed >= wanted:
            return f"≤ {_round(bound)}"
    return f"> {_round(histogram['bounds'][-1])}"


def _round(seconds: float) -> str:
    """A round number of some unit: `10 ms`, `30 s`, `5 min`."""
    return duration(seconds).replace(".0 s", " s").removesuffix(" 0 s").removesuffix(" 0 min").removesuffix(" 0 h")


def _durable(store: Report) -> str:
    running, age_s = store.get("running"), store.get("durable_age_s")
    # With a journal what is durable is younger than the checkpoint, whose age is what a restart has to repeat.
    checkpoint = f"; {_last_checkpoint(store)}" if "journal" in store else ""
    if running is not None:
        share = f" {running['chunks']} of {running['chunks_total']} chunks," if running["chunks_total"] else ""
        return f"checkpoint: {_plain(running['phase'])},{share} since {duration(running['elapsed_s'])}{checkpoint}"
    if store.get("last_error"):
        return f"[bold red]the last checkpoint failed: {_plain(store['last_error'])}[/]{checkpoint}"
    return f"{'no checkpoint yet' if age_s is None else f'durable as it was {duration(age_s)} ago'}{checkpoint}"


def _last_checkpoint(store: Report) -> str:
    ago = f"{duration(store['checkpoint_age_s'])} ago"
    return f"the last checkpoint is of {ago}" if "last" in store else f"without a checkpoint since the start, {ago}"


def _band(limiter: Report) -> str:
    """The cursor in its band, drawn; without bounds there is none."""
    low: float | None = limiter.get("min_diff")
    high: float | None = limiter.get("max_diff")
    cursor: float = limiter["cursor"]
    least = limiter["min_size_to_sample"]
    start = "" if limiter["size"] >= least else f"  samples begin at {short(least)}"
    if low is None and high is None:
        return f"[dim]no band[/]{start}"
    if low is None:
        assert high is not None
        return f"cursor {short(cursor)}, inserts wait at {short(high)}{start}"
    if high is None:
        return f"cursor {short(cursor)}, samples wait at {short(low)}{start}"
    place = 0 if high == low else round((cursor - low) / (high - low) * (BAND - 1))
    place = min(max(place, 0), BAND - 1)
    track = f"[dim]{'─' * place}[/][bold]●[/][dim]{'─' * (BAND - 1 - place)}[/]"
    return f"[yellow]{short(low)}[/] {track} [blue]{short(high)}[/]  cursor {short(cursor)}{start}"


def _rate(seen: Sequence[float]) -> str:
    return short(seen[-1]) if seen else "–"


def _graph(seen: Sequence[float], width: int) -> str:
    """The last rates as blocks, relative to the largest of them."""
    if width == 0:
        return ""
    most = max(seen, default=0.0)
    blocks = "▁▂▃▄▅▆▇█"
    drawn = "".join(blocks[round(rate / most * 7)] if most else blocks[0] for rate in list(seen)[-width:])
    return drawn.ljust(width)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _plain(text: str) -> str:
    """Text that comes from elsewhere: no markup of rich's, and no control characters of a terminal's."""
    from rich.markup import escape

    return escape("".join(letter if letter.isprintable() else "?" for letter in text))


def _wrapped(markup: str, width: int) -> list[Text]:
    """One line; where the terminal is narrower, several, indented alike and broken between clauses, else words."""
    from rich.console import Console
    from rich.text import Text

    text = Text.from_markup(markup, emoji=False)
    if text.cell_len <= width:
        return [text]
    body = text[len(text.plain) - len(text.plain.lstrip()) :]
    indent = min(len(text) - len(body), max(0, width - BAND))
    lines: list[Text] = []
    for clause in body.divide(match.end() for match in _CLAUSE.finditer(body.plain)):
        if lines and lines[-1].cell_len + len(clause.plain.rstrip()) <= width - indent:
            lines[-1] = lines[-1] + clause
        else:
            lines += clause.wrap(Console(), width - indent) if clause.cell_len > width - indent else [clause]
    for line in lines:
        line.rstrip()
        line.pad_left(indent)
    return lines


def _cut_line(markup: str, width: int) -> Text:
    """One line, cut where the terminal ends."""
    from rich.text import Text

    line = Text.from_markup(markup, emoji=False)
    line.no_wrap = True
    line.truncate(width, overflow="ellipsis")
    return line
