"""Every warning and error of the daemon's log says what to do, not only what is wrong."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from replayd.config import read_config
from replayd.connections import FailedHandshake
from replayd.forecast import memory_warnings
from replayd.watch import handshake_text

PACKAGE = Path(__file__).resolve().parents[2] / "replayd"
SOURCES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py")) if "compat" not in path.parts}

VERBS = (
    r"back|chmod|did\ you\ mean|end|give|leave|let|look|lower|make|mend|name|raise|remove|restart|revoke|run|see|send|"
    r"set|start|stop|take|use|widen|write"
)
ADVICE = re.compile(
    rf"""
    [:;,]\ (?:to\ [^,;:]+,\ |if\ [^,;:]+,\ |where\ [^,;:]+,\ )?(?:{VERBS})\b  # "…: see to the disk"
    | `replayd\ \w+ | `\w+`\ in\ \[ | --\w+ | \(`?\[\w+\]                       # a command or setting that helps
    | needs\ a\ restart | belongs?\ in\ a\ report
    """,
    re.VERBOSE,
)


def literal(node: ast.expr) -> str:
    """The text that stands in the source, whatever is put into it at run time left out."""
    return "".join(
        each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )


def warned(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the text of each warning in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "advice" and "Fault(" in path.read_text():
            yield node.lineno, f": {literal(node.value)}"
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = ast.unparse(node.func)
        level = next((ast.unparse(word.value) for word in node.keywords if word.arg == "level"), "")
        # What the gate tells of goes into the log as it is.
        if called == "self._tell" and path.name == "gate.py":
            yield node.lineno, literal(node.args[0])
        if called in ("log.warning", "log.error", "log.exception", "log.critical", "warnings.warn") or (
            called.endswith(".say") and level in ("logging.WARNING", "logging.ERROR")
        ):
            yield node.lineno, literal(node.args[0])


def is_passed_on(text: str) -> bool:
    """A line made of somebody else's text alone, which says itself what to do."""
    return not re.search(r"[a-z]{2}", text.replace("%s", ""))


@pytest.mark.parametrize("name", SOURCES)
def test_each_warning_says_what_to_do(name: str) -> None:
    helpless = [
        f"{name} line {line}: {text}"
        for line, text in warned(SOURCES[name])
        if not is_passed_on(text) and not ADVICE.search(text)
    ]
    assert not helpless


@pytest.mark.parametrize("wants_keys", [True, False])
@pytest.mark.parametrize("hung_up", [True, False])
def test_a_handshake_that_failed_says_what_to_do(wants_keys: bool, hung_up: bool) -> None:
    assert ADVICE.search(handshake_text(FailedHandshake("tcp://127.0.0.1:7077", wants_keys, hung_up))[0])


def test_settings_that_take_too_much_say_what_to_do() -> None:
    config = read_config(tables=("a,max_size=1000000,max_bytes=1MiB",), max_bytes="1MiB")
    warned_of = memory_warnings(config, 1 << 20)
    assert warned_of
    assert [text for text in warned_of if not ADVICE.search(text)] == []


@pytest.mark.parametrize(
    "module", ["keeper", "restoring", "store", "store_copies", "store_files", "activation", "access", "key_files"]
)
def test_what_keeps_a_daemon_from_starting_says_what_to_do(module: str) -> None:
    kinds = r"Store(InUse|Mismatch|NotMade)|LastCheckpointFailed|NoRights|NotMade|Misfit"
    helpless = [
        text
        for call in ast.walk(ast.parse(SOURCES[f"{module}.py"].read_text()))
        if isinstance(call, ast.Call) and call.args and re.fullmatch(kinds, ast.unparse(call.func))
        # A text that is made elsewhere is no literal.
        if re.search(r"[a-z]{2}", text := literal(call.args[0])) and not ADVICE.search(text)
    ]
    assert not helpless


def test_the_warnings_are_found() -> None:
    found = [text for path in SOURCES.values() for _, text in warned(path)]
    assert len(found) > 25
    assert any("the loop took" in text for text in found)
    assert any("insecure_public" in text for text in found)


@pytest.mark.parametrize(
    "text", ["the store is damaged", "a checkpoint failed: %s", "dropped a reply to a peer that does not read"]
)
def test_one_that_is_helpless_would_be_found(text: str) -> None:
    assert not ADVICE.search(text)
    assert not is_passed_on(text)
