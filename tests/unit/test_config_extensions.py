"""Extensions that a configuration names: made from it; whatever is wrong with one is a fault of the configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from replayd.cli import main
from replayd.config import build_tables, read_config
from replayd.config_faults import ConfigError
from tests.daemon.harness import REPLAYD, START_S, environment

FOREIGN = {
    "counting": """
class Counting:
    def on_insert(self, access, items): ...
class Awaited:
    async def on_insert(self, access, items): ...
class AwaitedGenerator:
    async def on_sample(self, access, items):
        yield
class Generator:
    def on_update(self, access, items):
        yield
class Misspelt:
    def on_insret(self, access, items): ...
class NotCallable:
    on_insert = 3
class CopiesToOne:
    copies_to = "seen"
    def on_insert(self, access, items): ...
class Exits:
    def __init__(self):
        raise SystemExit(3)
class Fails:
    def __init__(self):
        raise RuntimeError("no\\nGPU")
class Speechless(Exception):
    def __str__(self):
        raise RuntimeError
class FailsWithoutWords:
    def __init__(self):
        raise Speechless
class FailsLooking:
    @property
    def on_insert(self):
        raise KeyError("looked")
class FailsToShow:
    def __repr__(self):
        raise RuntimeError("no text")
class ServesOnce:
    made = 0
    def __init__(self):
        type(self).made += 1
        if self.made > 2:
            raise OSError("made too often")
    def on_insert(self, access, items): ...
function = len
""",
    "raises": "raise RuntimeError('at import')",
    "exits": "raise SystemExit",
    "misspelt": "class Counting:\n    def on_insert(self) return",
    "lacks": "import nonesuch.module",
}


@pytest.fixture(autouse=True)
def _foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("REPLAYD_"):
            monkeypatch.delenv(name)
    for name, text in FOREIGN.items():
        (tmp_path / f"foreign_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    # Each test has a directory of its own, with modules of its own.
    monkeypatch.delitem(sys.modules, "foreign_counting", raising=False)


def write(directory: Path, extension: str) -> str:
    path = directory / "replayd.toml"
    path.write_text(f'[[table]]\nname = "replay"\nextensions = [{extension}]\n[[table]]\nname = "seen"\n')
    return str(path)


def test_extensions_are_made_from_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
    { type = "priority_diffusion", options = { decay = 0.25, distance = 2 } },
    { type = "insert_on_sample", options = { to = "seen" } },
    { type = "foreign_counting:Counting" },
""",
    )
    table, _ = build_tables(read_config(path))
    assert [type(each).__name__ for each in table.extensions] == ["PriorityDiffusion", "InsertOnSample", "Counting"]


FAULTY = [
    ('{ type = "priority_diffusion", options = { decay = 7 } }', "decay must be in (0, 1]"),
    ('{ type = "priority_diffusion", options = { speed = 1 } }', "speed"),
    ('{ type = "insert_on_sample" }', "to"),
    ('{ type = "nonesuch" }', "package.module:Class"),
    ('{ type = "nonesuch.module:Class" }', "cannot be loaded: ModuleNotFoundError: No module named 'nonesuch'"),
    ('{ type = "collections:Nonesuch" }', "cannot be loaded: AttributeError"),
    ('{ type = ".collections:Counter" }', "cannot be loaded: TypeError"),
    ('{ type = ":Counter" }', "cannot be loaded: ValueError"),
    ('{ type = "foreign_raises:Class" }', "cannot be loaded: RuntimeError: at import"),
    ('{ type = "foreign_exits:Class" }', "cannot be loaded: SystemExit"),
    ('{ type = "foreign_misspelt:Counting" }', "cannot be loaded: SyntaxError"),
    ('{ type = "foreign_lacks:Class" }', "cannot be loaded: ModuleNotFoundError: No module named 'nonesuch'"),
    ('{ type = "foreign_counting:Awaited" }', "on_insert of <foreign_counting.Awaited object"),
    ('{ type = "foreign_counting:AwaitedGenerator" }', "is async; nobody would await it"),
    ('{ type = "foreign_counting:Generator" }', "is a generator"),
    ('{ type = "foreign_counting:Misspelt" }', "an extension has methods of on_insert"),
    ('{ type = "foreign_counting:NotCallable" }', "an extension has methods of on_insert"),
    ('{ type = "foreign_counting:CopiesToOne" }', "copies_to"),
    ('{ type = "foreign_counting:Exits" }', "SystemExit: 3"),
    ('{ type = "foreign_counting:Fails" }', "RuntimeError: no GPU"),
    ('{ type = "foreign_counting:FailsWithoutWords" }', "Speechless"),
    ('{ type = "foreign_counting:FailsLooking" }', "KeyError: 'looked'"),
    ('{ type = "foreign_counting:FailsToShow" }', "RuntimeError: no text"),
    ('{ type = "foreign_counting:function" }', "TypeError: len()"),
    ('{ type = "foreign_counting:FOREIGN" }', "cannot be loaded: AttributeError"),
]


@pytest.mark.parametrize(("extension", "said"), FAULTY)
def test_an_extension_that_cannot_be_made_is_a_fault_of_the_configuration(
    tmp_path: Path, extension: str, said: str
) -> None:
    path = write(tmp_path, extension)
    ended = CliRunner().invoke(main, ["check-config", path])
    assert ended.exit_code == os.EX_CONFIG, (ended.exception, ended.output)
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"replayd: {path}:3: table 'replay': extensions.0")
    assert extension.split('"')[1] in line
    assert said in line


@pytest.mark.parametrize("kind", ["foreign_raises:Class", "foreign_exits:Class", "foreign_counting:Awaited"])
def test_a_daemon_does_not_begin_with_an_extension_that_cannot_be_made(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, f'{{ type = "{kind}" }}')
    serve = [*REPLAYD, "serve", "--port", "0", "--config", path]
    # Python looks for modules in the directory it is started in.
    ended = subprocess.run(
        serve, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=START_S, check=False
    )
    assert ended.returncode == os.EX_CONFIG, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"replayd: {path}:3: table 'replay': extensions.0: extension '{kind}'")


def test_an_extension_that_can_be_made_no_more_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, '{ type = "foreign_counting:ServesOnce" }'))
    with pytest.raises(ConfigError, match="table 'replay': extension 'foreign_counting:ServesOnce': OSError: made too"):
        build_tables(config)


def test_whoever_interrupts_the_reading_of_settings_ends_it(tmp_path: Path) -> None:
    (tmp_path / "foreign_slow.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        read_config(write(tmp_path, '{ type = "foreign_slow:Class" }'))


def test_a_key_that_an_extension_does_not_have_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(write(tmp_path, '{ type = "priority_diffusion", optoins = {} }'))
    assert "table 'replay': extensions.0: unknown key 'optoins'; did you mean 'options'?" in str(caught.value)
