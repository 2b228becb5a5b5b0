"""Every command and every example of the README, as it stands there."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from replayd.config import build_tables, read_config
from replayd.config_choices import CHOICES
from replayd.config_model import Config
from tests.daemon.conftest import StartDaemon
from tests.daemon.harness import ROOT, START_S, environment, run_replayd

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


# Scripts that make environments of their own have tests of their own; the commands of the daemon are run below.
# What is not run here: the file that runs it, and how it is written there. The demo installs both distributions.
ELSEWHERE = {
    "scripts/demo": ("tests/daemon/test_demo.py", '"scripts/demo"'),
    "scripts/test": (".ci/run", "scripts/test"),
    "scripts/bench-peers-setup": ("tests/daemon/test_bench.py", '"scripts" / "bench-peers-setup"'),
    "scripts/bench --peers --table": ("tests/daemon/test_bench.py", '"--peers", "--table"'),
    "scripts/bench --only cost": ("tests/daemon/test_bench.py", '"--only", workload'),
    "scripts/bench --quick": ("tests/daemon/test_bench.py", '"--quick"'),
    "replayd keys generate actor-7 --role actor --out actor-7.key": (
        "tests/unit/test_access.py",
        '"generate", "actor-7", "--role", "actor", "--out"',
    ),
    "replayd keys list": ("tests/unit/test_access.py", 'run("list", *at)'),
    "replayd keys revoke actor-7": ("tests/unit/test_access.py", 'run("revoke", "actor-7", *at)'),
    "replayd checkpoint": ("tests/daemon/test_store.py", 'run_replayd("checkpoint", "--address", '),
    "replayd checkpoint --to /backup/replayd --keep 7": (
        "tests/daemon/test_store.py",
        '"checkpoint", "--address", daemon.address, "--to", str(copies), "--keep", "2"',
    ),
    "replayd restore /backup/replayd/COPY --data-dir DIR --replace": (
        "tests/daemon/test_store.py",
        '"restore", str(copy), "--data-dir", str(data), "--replace"',
    ),
    "replayd default-config > replayd.toml": ("tests/daemon/test_cli_config.py", 'run("default-config")'),
    "replayd check-config replayd.toml": ("tests/daemon/test_cli_config.py", 'run("check-config", '),
    "replayd doctor": ("tests/unit/test_doctor.py", '["doctor", '),
    "replayd bench": ("tests/daemon/test_cli_tools.py", '"replayd", "bench", '),
    ". .venv/bin/activate": ("scripts/test", ". .venv/bin/activate"),
    "sudo scripts/install": ("tests/test_systemd.py", '[INSTALL, "--destdir", destdir]'),
    # What systemd's own commands need: a unit of that name, and the field that the journal is asked for.
    "sudo systemctl enable --now replayd": ("tests/test_systemd.py", '"replayd.service"'),
    "systemctl status replayd": ("tests/test_systemd.py", '"replayd.service"'),
    "sudo -u replayd replayd doctor": ("tests/unit/test_doctor.py", '"sudo -u replayd replayd doctor"'),
    "journalctl -u replayd -f": ("tests/daemon/test_logs.py", '"REPLAYD_TABLE": "replay"'),
    "pip install ./client .": ("scripts/demo", '[*pip, "./client", ".[demo]"]'),
    "pip install ./client": ("scripts/demo", '[*pip, "./client", '),
}
SERVE = "replayd serve --table replay,sampler=prioritized,priority_exponent=0.6,max_size=100000"
SERVE_A_NETWORK = "replayd serve --listen tcp://0.0.0.0:7077 --insecure-public"
WITH_KEYS = [
    "replayd keys generate me --role admin --out me.key --dir keys",
    "REPLAYD_ACCESS_KEYS=keys replayd serve --table replay",
    "REPLAYD_KEY_FILE=me.key replayd info",
]
AGAINST_IT = [
    "replayd ping --wait 10",
    "replayd info",
    "replayd why replay",
    "replayd peek replay --newest 5",
    "replayd set replay max_size=200000",
    "replayd pause replay sample",
    "replayd top",
]


def test_every_command_of_the_readme_is_run_by_a_test() -> None:
    assert sorted(commands()) == sorted([*ELSEWHERE, SERVE, SERVE_A_NETWORK, *WITH_KEYS, *AGAINST_IT])
    for place, text in ELSEWHERE.values():
        assert text in (ROOT / place).read_text()


def test_the_daemon_of_the_readme_serves_and_is_inspected(start_daemon: StartDaemon) -> None:
    # The commands run as they stand; only the port is a free one.
    daemon = start_daemon(*shlex.split(SERVE)[2:])
    variables = {
        f"REPLAYD_{command}_ADDRESS": daemon.address
        for command in ("PING", "INFO", "WHY", "PEEK", "SET", "PAUSE", "TOP")
    }
    said = [
        subprocess.run(
            [sys.executable, "-m", *shlex.split(command)],
            env={**environment(), **variables},
            capture_output=True,
            text=True,
            timeout=START_S,
            check=True,
        ).stdout
        for command in AGAINST_IT
    ]
    assert "replayd 0" in said[0]
    assert "items    0 of at most 100000" in said[1]
    assert "flowing" in said[2]
    assert "0 items" in said[3]
    assert "100000 -> 200000" in said[4]
    assert "no -> yes" in said[5]
    assert "0% 0 of 200k, 0 B" in " ".join(said[6].split())


def test_the_daemon_of_the_readme_serves_a_network(start_daemon: StartDaemon) -> None:
    assert start_daemon(*shlex.split(SERVE_A_NETWORK)[2:]).address.startswith("tcp://0.0.0.0:")


def test_the_keys_of_the_readme_are_made_and_let_one_in(
    start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate, serve, info = map(shlex.split, WITH_KEYS)
    monkeypatch.chdir(tmp_path)
    assert run_replayd(*generate[1:]).returncode == 0
    monkeypatch.setenv(*serve[0].split("="))
    monkeypatch.setenv("REPLAYD_INFO_ADDRESS", start_daemon(*serve[3:]).address)
    monkeypatch.setenv("REPLAYD_INFO_TIMEOUT", str(START_S / 2))  # However busy the machine is.
    without = run_replayd(*info[2:])
    assert (without.returncode, "REPLAYD_KEY_FILE" in without.stderr) == (os.EX_NOPERM, True), without.stderr
    monkeypatch.setenv(*info[0].split("="))
    assert "items    0 of" in run_replayd(*info[2:]).stdout


def test_the_configuration_of_the_readme_is_one(tmp_path: Path) -> None:
    (example,) = blocks("toml")
    path = tmp_path / "replayd.toml"
    path.write_text(example)
    config = read_config(str(path))
    assert config.server.model_fields_set == {"listen", "ingest", "lease", "seed"}
    assert config.http == Config().http, "the default stands there"
    replay, episodes = build_tables(config)
    assert replay.signature is not None
    assert (replay.limiter.samples_per_insert, episodes.max_size, episodes.max_times_sampled) == (8.0, 64, 1)
    assert [extension.type for extension in config.table[0].extensions] == ["priority_diffusion"]


def test_the_readme_lists_the_keys_of_each_sampler_and_limiter() -> None:
    rows = dict(re.findall(r"^\| (`.*?`) \| (.*) \|$", README, re.MULTILINE))
    for choice, model in CHOICES.items():
        (keys,) = [keys for names, keys in rows.items() if f"`{choice}`" in names.split(", ")]
        listed = re.findall(r"`(\w+)`", keys)
        assert listed == [key for key in model.model_fields if key != "type"]


@pytest.mark.parametrize("example", blocks("python"))
def test_the_examples_of_the_readme_run_and_print_what_they_say(example: str) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README.md", "exec"), {"__name__": "__main__"})  # noqa: S102
    promised = re.findall(r"print\(.*\)  # (.*)", example)
    assert printed.getvalue().splitlines() == promised


def test_every_promise_of_the_readme_names_tests_that_there_are() -> None:
    section = README.partition("## What replayd promises")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", section))
    sources = [file.read_text() for file in ROOT.glob("tests/**/test_*.py")]
    there = {name for source in sources for name in re.findall(r"def (test_\w+)", source)}
    assert len(named) > 30
    assert named - there == set()
    rows = [line for line in section.splitlines() if line.startswith("| ") and "**" not in line][1:]
    assert [row for row in rows if "`test_" not in row and "`tests/" not in row] == []


def test_the_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not Path(os.path.join(ROOT, link)).exists()] == []
