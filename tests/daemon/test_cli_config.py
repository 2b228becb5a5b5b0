"""Settings checked and printed without a daemon: what is said, where, and in which exit code it ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replayd import doctor, process, service_files
from replayd.cli import main
from replayd.config import read_config
from replayd.errors import StoreError
from tests.daemon.harness import run_replayd


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("REPLAYD_"):
            monkeypatch.delenv(name)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def write(directory: Path, text: str) -> str:
    path = directory / "replayd.toml"
    path.write_text(text)
    return str(path)


FAULTY = '[server]\nlease = 60\n\n[[table]]\nname = "a"\nmax_sise = 3\n'
SIGNED = (
    '[[table]]\nname = "a"\nmax_size = 1000\nsignature = [{ path = ["x"], dtype = "float32", shape = [10, 100] }]\n'
)
STORED = '[store]\npath = "DIR/store"\n'


def test_a_file_without_faults_is_said_to_have_none(tmp_path: Path) -> None:
    ended = run("check-config", write(tmp_path, SIGNED))
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert "no faults" in ended.stdout
    assert "settings: none besides the defaults" in ended.stdout
    assert "a: about 4.105 MiB when it is full (about 4304 bytes an item of one chunk)" in ended.stdout


def test_what_a_service_may_have_is_not_taken_for_what_is_seen_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "limit_bytes", lambda: 1 << 40)
    said = run("check-config", write(tmp_path, SIGNED)).stdout
    assert "started from here it may have 1 TiB, as a service no more than its MemoryMax" in said


def test_all_faults_are_told_with_their_lines_in_the_code_of_a_configuration(tmp_path: Path) -> None:
    path = write(tmp_path, FAULTY)
    ended = run("check-config", path)
    assert (ended.exit_code, ended.stdout) == (os.EX_CONFIG, "")
    first, second = ended.stderr.splitlines()
    assert first.startswith(f"replayd: {path}:2: server.lease: expected a time with its unit")
    assert second == f"replayd: {path}:6: table 'a': unknown key 'max_sise'; did you mean 'max_size'?"


def test_faults_are_told_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = '[[table]]\nname = "b"\nmax_size = 0\n\n[serves]\n\n[server]\nlease = 60\nsed = 1\n' + 10 * "\n" + "[hpt]\n"
    ended = run("check-config", write(tmp_path, text))
    lines = [int(line.split(":")[2]) for line in ended.stderr.splitlines()]
    assert len(lines) == 5
    assert lines == sorted(lines)


@pytest.mark.parametrize(
    "faulty",
    ["[server]\nlease = 60\n", '[http]\nlisten = "x"\n', "[access]\n", '[[table]]\nname = "b"\nmax_size = 0\n'],
)
def test_what_will_not_fit_is_warned_of_beside_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faulty: str
) -> None:
    monkeypatch.setattr(process, "limit_bytes", lambda: 1 << 20)
    path = write(tmp_path, faulty + SIGNED)
    ended = run("check-config", path)
    fault, *warned = ended.stderr.splitlines()
    assert (ended.exit_code, path in fault) == (os.EX_CONFIG, True)
    assert warned == [
        "replayd: warning: tables come to about 4.105 MiB when they are full, the process then to 129.1 MiB (1.25 "
        "times that and 124 MiB), and it may have 1 MiB; that is too little for any table: lower max_size or "
        "max_bytes, or allow it more (MemoryMax of the service)"
    ]
    found = json.loads(run("check-config", path, "--json").stdout)
    assert (found["ok"], len(found["faults"])) == (False, 1)
    assert [f"replayd: warning: {text}" for text in found["warnings"]] == warned


def test_faults_and_forecasts_can_be_read_by_programs(tmp_path: Path) -> None:
    path = write(tmp_path, FAULTY)
    ended = run("check-config", path, "--json")
    assert ended.exit_code == os.EX_CONFIG
    found = json.loads(ended.stdout)
    assert (found["ok"], [fault["place"] for fault in found["faults"]]) == (False, [f"{path}:2", f"{path}:6"])
    ended = run("check-config", write(tmp_path, SIGNED), "--json")
    assert ended.exit_code == 0
    found = json.loads(ended.stdout)
    assert (found["ok"], found["warnings"], found["predicted_bytes"]) == (True, [], 4304 * 1000)
    assert found["predicted_resident_bytes"] == 4304 * 1250 + (124 << 20)


def test_the_file_and_settings_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYD_SERVE_CONFIG", write(tmp_path, SIGNED))
    monkeypatch.setenv("REPLAYD_SERVER_SEED", "x")
    ended = run("check-config")
    assert ended.exit_code == os.EX_CONFIG
    assert ended.stderr.startswith("replayd: REPLAYD_SERVER_SEED: server.seed: ")


def test_a_file_that_is_not_there_is_a_misuse() -> None:
    assert run("check-config", "/nowhere.toml").exit_code == os.EX_USAGE


@pytest.mark.parametrize(
    ("text", "limit", "said"),
    [
        (SIGNED, 1 << 20, "lower max_size or max_bytes"),
        (SIGNED + 'max_bytes = "1MiB"\n', 1 << 40, "more than its max_bytes, 1 MiB"),
        ('[server]\nmax_bytes = "1MiB"\n' + SIGNED, 1 << 40, "server.max_bytes is 1 MiB"),
        ('[store]\npath = "/proc/nope"\n' + SIGNED, 1 << 40, "store.path: /proc/nope cannot be made"),
        ('[[table]]\nname = "a"\nmax_bytes = "2GiB"\n', 1 << 30, "it may have 1 GiB; 720 MiB of tables would fit"),
        ('[server]\nmax_bytes = "1GiB"\n', 1 << 30, "the process then to 1.371 GiB (1.25 times that and 124 MiB)"),
        ('[server]\nmax_bytes = "721MiB"\n', 1 << 30, "720 MiB of tables would fit"),
        (f'{STORED}[server]\nmax_bytes = "644MiB"\n', 1 << 30, "643.2 MiB of tables would fit"),
    ],
)
def test_what_will_not_fit_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, limit: int, said: str
) -> None:
    monkeypatch.setattr(process, "limit_bytes", lambda: limit)
    ended = run("check-config", write(tmp_path, text.replace("DIR", str(tmp_path))))
    assert ended.exit_code == 0
    assert said in ended.stderr
    assert "warning" in ended.stderr


def test_what_fits_is_not_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "limit_bytes", lambda: 1 << 30)
    for text in (
        SIGNED,
        '[[table]]\nname = "a"\nmax_bytes = "512MiB"\n',
        '[server]\nmax_bytes = "720MiB"\n',
        f'{STORED}[server]\nmax_bytes = "643MiB"\n',
    ):
        assert run("check-config", write(tmp_path, text.replace("DIR", str(tmp_path)))).stderr == ""


def test_the_default_configuration_is_accepted(tmp_path: Path) -> None:
    printed = run("default-config")
    assert printed.exit_code == 0
    ended = run("check-config", write(tmp_path, printed.stdout))
    assert ended.exit_code == 0
    assert ended.stderr == ""
    assert "no faults" in ended.stdout


def test_settings_are_told_with_where_they_were_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYD_LOG_LEVEL", "debug")
    path = write(tmp_path, '[server]\nlisten = "tcp://127.0.0.1:9000"\n')
    listen, level = f"server.listen = 'tcp://127.0.0.1:9000' ({path}:2)", "log.level = 'debug' (REPLAYD_LOG_LEVEL)"
    assert f"settings: {listen}, {level} besides the defaults" in run("check-config", path).stdout
    found = json.loads(run("check-config", path, "--json").stdout)["settings"]
    assert found[1] == {"key": "log.level", "value": "debug", "from": "REPLAYD_LOG_LEVEL"}


def test_variables_of_options_of_serve_count_as_they_do_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYD_SERVE_PORT", "9000")
    monkeypatch.setenv("REPLAYD_SERVE_TABLE", "b,max_size=3 c")
    # The file is named: that of the environment need not be there.
    monkeypatch.setenv("REPLAYD_SERVE_CONFIG", "/nowhere.toml")
    path = write(tmp_path, '[[table]]\nname = "a"\n')
    said = run("check-config", path).stdout
    assert "settings: server.listen = 'tcp://127.0.0.1:9000' (REPLAYD_SERVE_PORT) besides the defaults" in said
    assert [name for name in "abc" if f"  {name}: " in said] == ["a", "b", "c"]
    doubt = run("doctor", "--config", path, "--timeout", "0", "--json").stdout
    assert "tcp://127.0.0.1:9000" in doubt
    monkeypatch.setenv("REPLAYD_SERVE_TABLE", "b,max_sise=3")
    assert "did you mean" in run("check-config", path).stderr
    monkeypatch.setenv("REPLAYD_SERVE_PORT", "many")
    ended = run("check-config", path)
    told = "REPLAYD_SERVE_PORT: serve --port: 'many' is not a valid integer range."
    assert (ended.exit_code, f"replayd: {told}" in ended.stderr.splitlines()) == (os.EX_USAGE, True)
    assert "did you mean" in ended.stderr, "no fault hides another"
    found = json.loads(run("doctor", "--config", path, "--timeout", "0", "--json").stdout)["findings"]
    assert [each["state"] for each in found if each["what"] == told] == ["fail"]


PLAIN_TEXT = {"config", "table", "listen", "http", "endpoint-file", "max-bytes", "data-dir"}
"""Options of `serve` that take any text, and leave it to the settings whether it is one."""
OF_A_STORE = ["strict", "allow-empty", "reset-limiter", "drop-removed-tables", "shrink-tables"]


def variable(option: str) -> str:
    return f"REPLAYD_SERVE_{option.upper().replace('-', '_')}"


def test_all_faulty_variables_are_named_together_with_the_faults_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {option.opts[0].removeprefix("--") for option in main.commands["serve"].params} - PLAIN_TEXT
    assert {"port", "journal", *OF_A_STORE} <= named
    for option in named:
        monkeypatch.setenv(variable(option), "many")
    monkeypatch.setenv("REPLAYD_SERVE_MAX_BYTES", "lots")
    path = write(tmp_path, FAULTY)
    ended = run("check-config", path)
    assert (ended.exit_code, run("serve", "--config", path).exit_code) == (os.EX_USAGE, os.EX_USAGE)
    told = {line.removeprefix("replayd: ").split(": ")[0] for line in ended.stderr.splitlines()}
    assert told == {*map(variable, named), "REPLAYD_SERVE_MAX_BYTES", f"{path}:2", f"{path}:6"}
    found = json.loads(run("check-config", path, "--json").stdout)
    assert {fault["place"] for fault in found["faults"]} == told
    found = json.loads(run("doctor", "--config", path, "--timeout", "0", "--json").stdout)["findings"]
    assert {each["what"].split(": ")[0] for each in found if each["check"] == "settings"} == told


@pytest.mark.parametrize("option", OF_A_STORE)
def test_how_a_store_is_opened_is_said_in_vain_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setenv(variable(option), "1")
    path = write(tmp_path, SIGNED)
    ended = run("check-config", path)
    assert (ended.exit_code, ended.stderr.startswith(f"replayd: {variable(option)}: ")) == (os.EX_USAGE, True)
    # Beside a fault of the settings it is told as well, and `serve` would end for that one first.
    faulty = run("check-config", write(tmp_path, FAULTY))
    assert (faulty.exit_code, ended.stderr in faulty.stderr) == (os.EX_CONFIG, True)
    assert run("check-config", write(tmp_path, SIGNED + STORED.replace("DIR", str(tmp_path)))).exit_code == 0
    monkeypatch.setenv(variable(option), "0")
    assert run("check-config", write(tmp_path, SIGNED)).exit_code == 0


def test_serve_ends_as_was_foretold_where_there_is_no_store_to_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLAYD_SERVE_STRICT", "1")
    assert run_replayd("serve", "--config", write(tmp_path, SIGNED)).returncode == os.EX_USAGE


# --- a service's ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["replayd", "replayd@box"])
def service(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path, Path]:
    """A service of this machine: its file of settings, its file of variables, which is not made, and its store."""
    for name in ("SETTINGS", "VARIABLES", "STATE"):
        monkeypatch.setattr(service_files, name, tmp_path / name)
        (tmp_path / name).mkdir()
    name = "box" if "@" in request.param else "replayd"
    settings = tmp_path / "SETTINGS" / f"{name}.toml"
    settings.write_text(f'[server]\nlisten = "tcp://127.0.0.1:9000"\n[store]\npath = "{tmp_path}/of-file"\n')
    store = tmp_path / "STATE/box/store" if name == "box" else tmp_path / "of-file"
    return str(settings), tmp_path / "VARIABLES" / request.param.replace("@", "-"), store


def test_variables_of_a_service_count_where_its_settings_are_looked_at(
    service: tuple[str, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, variables, store = service

    def settled() -> dict[str, tuple[str, str]]:
        ended = json.loads(run("check-config", settings, "--json").stdout)
        return {each["key"]: (each["value"], each["from"]) for each in ended["settings"]}

    assert settled()["server.listen"] == ("tcp://127.0.0.1:9000", f"{settings}:2")
    assert settled()["store.path"][0] == str(store)
    variables.write_text('# of the service\nREPLAYD_SERVER_LISTEN="tcp://127.0.0.1:9100"\nREPLAYD_SERVE_SEED = 7\n')
    # Those of this shell are not the service's.
    monkeypatch.setenv("REPLAYD_SERVER_LISTEN", "tcp://127.0.0.1:9200")
    assert settled()["server.listen"] == ("tcp://127.0.0.1:9100", "REPLAYD_SERVER_LISTEN")
    assert settled()["server.seed"] == (7, "REPLAYD_SERVE_SEED")
    assert f"{settings} with {variables}: " in run("check-config", settings).stdout
    named = () if settings.endswith("replayd.toml") else ("--config", settings)
    found = json.loads(run("doctor", *named, "--timeout", "0", "--json").stdout)["findings"]
    what = {check: [each["what"] for each in found if each["check"] == check] for check in ("settings", "daemon")}
    assert f"{settings} with {variables}" in what["settings"][0]
    assert "tcp://127.0.0.1:9100" in what["daemon"][0]
    assert any(each["what"].startswith(f"{store}: ") for each in found if each["check"] == "data directory")
    # A file that is elsewhere is no service's.
    assert "tcp://127.0.0.1:9200" in run("check-config", write(tmp_path, SIGNED)).stdout
    variables.write_text("REPLAYD_SERVE_PORT=many\n")
    assert "REPLAYD_SERVE_PORT" in run("check-config", settings).stderr


def test_without_a_file_the_settings_of_the_service_are_checked_where_it_is_installed(
    service: tuple[str, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, variables, _ = service
    ended = run("check-config")
    if settings.endswith("box.toml"):
        # One of several is not the service.
        assert ended.stdout.startswith("defaults and environment: no faults")
        return
    assert ended.stdout.startswith(f"{settings}: ")
    assert json.loads(run("check-config", "--json").stdout)["file"] == settings
    variables.write_text("REPLAYD_SERVER_SEED=x\n")
    ended = run("check-config")
    assert (ended.exit_code, "REPLAYD_SERVER_SEED" in ended.stderr) == (os.EX_CONFIG, True)
    variables.unlink()
    Path(settings).write_text(FAULTY)
    ended = run("check-config")
    assert (ended.exit_code, f"{settings}:2" in ended.stderr) == (os.EX_CONFIG, True)
    monkeypatch.setenv("REPLAYD_SERVE_CONFIG", write(tmp_path, SIGNED))
    assert run("check-config").exit_code == 0


def test_variables_of_a_service_that_cannot_be_read_are_told(service: tuple[str, Path, Path], tmp_path: Path) -> None:
    settings, variables, _ = service
    variables.mkdir()
    for arguments in (("check-config", settings), ("doctor", "--config", settings, "--timeout", "0")):
        ended = run(*arguments)
        assert f"{variables}: Is a directory: the service's variables are not looked at" in ended.output
    ended = run("restore", str(tmp_path), "--config", settings)
    assert (ended.exit_code, f"{variables}: Is a directory" in ended.stderr) == (os.EX_CONFIG, True)


def test_a_copy_is_brought_back_where_the_server_will_look_for_it(
    service: tuple[str, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, variables, store = service
    asked: list[Path] = []

    def bring_back(source: Path, directory: Path, *, replace: bool) -> None:
        asked.append(directory)
        raise StoreError("no copy")

    monkeypatch.setattr("replayd.store_copies.bring_back", bring_back)
    plain = write(tmp_path, f'[store]\npath = "{tmp_path}/of-file"\n')
    for where in (settings, plain):
        run("restore", str(tmp_path), "--config", where)
    variables.write_text(f"REPLAYD_STORE_PATH={tmp_path}/of-service\n")
    run("restore", str(tmp_path), "--config", settings)
    monkeypatch.setenv("REPLAYD_SERVE_DATA_DIR", str(tmp_path / "of-option"))
    run("restore", str(tmp_path), "--config", plain)
    # What the unit says on the command line nothing wins over.
    of_service = store if settings.endswith("box.toml") else tmp_path / "of-service"
    assert asked == [store, tmp_path / "of-file", of_service, tmp_path / "of-option"]
    monkeypatch.setenv("REPLAYD_SERVE_PORT", "many")
    ended = run("restore", str(tmp_path), "--config", plain)
    assert (ended.exit_code, "REPLAYD_SERVE_PORT" in ended.stderr, len(asked)) == (os.EX_USAGE, True, 4)


TAKEN = [
    ("A=1\n\n # B=2\n;C=3\nD\nE = x y \t\n", {"A": "1", "E": "x y"}),
    ("A='x  # y'\nB=x # y\nC=it's\n", {"A": "x  # y", "B": "x # y", "C": "it's"}),
    ('A="x \\" \\$ \\\\ \\n"\nB="x\ny"\nC=\'x\\\ny\'', {"A": 'x " $ \\ \\n', "B": "x\ny", "C": "x\\\ny"}),
    ("A=x\\\ny\nB=\\ x\\y", {"A": "xy", "B": " xy"}),
    ("A=\"x\" 'y' z\nB=\nexport C=1\nA-B=2\n=3\n", {"A": "xyz", "B": ""}),
    ("A=$B ${C} `d`\nA=2=3", {"A": "2=3"}),
    ("A=1\r\nB=$X\n", {"A": "1", "B": "$X"}),
]


@pytest.mark.parametrize(("text", "variables"), TAKEN)
def test_a_file_of_variables_is_read_as_systemd_reads_it(tmp_path: Path, text: str, variables: dict[str, str]) -> None:
    (tmp_path / "file").write_bytes(text.encode())
    assert service_files.read_variables(tmp_path / "file") == variables


# --- memory -----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_foretold_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "limit_bytes", lambda: 1 << 40)
    path = write(tmp_path, '[[table]]\nname = "a"\nmax_size = 1000\n')
    said = "nothing bounds what tables come to when they are full, at least 296.9 KiB in 'a': max_bytes would"
    ended = run("check-config", path)
    assert (said in ended.stdout, ended.stderr) == (True, "")
    found = json.loads(run("check-config", path, "--json").stdout)
    assert (found["warnings"], said in found["notes"][0]) == ([], True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SIGNED, "tables come to about 4.105 MiB when they are full, the process then to "),
        (SIGNED + 'max_bytes = "1MiB"\n', "tables come to at most 1 MiB when they are full, the process then to "),
        (SIGNED + 'max_bytes = "1GiB"\n', "tables come to about 4.105 MiB when they are full, the process then to "),
        ('[server]\nmax_bytes = "1MiB"\n' + SIGNED, "tables come to at most 1 MiB when they are full, the process "),
        ('[server]\nmax_bytes = "1GiB"\n' + SIGNED, "tables come to about 4.105 MiB when they are full, the process "),
        ('[server]\nmax_bytes = "1GiB"\n[[table]]\nname = "b"\n', "tables come to at most 1 GiB when they are full, "),
        ('[[table]]\nname = "b"\nmax_bytes = "1GiB"\n', "tables come to at most 1 GiB when they are full, "),
        (
            SIGNED + '[[table]]\nname = "b"\nmax_size = 1000\n[[table]]\nname = "c"\nmax_size = 2000\n',
            "nothing bounds what tables come to when they are full, at least 296.9 KiB in 'b', 593.8 KiB in 'c': ",
        ),
    ],
)
def test_whoever_asks_hears_the_same_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setattr(process, "limit_bytes", lambda: 1 << 40)
    path = write(tmp_path, text)
    (line,) = [line.strip() for line in run("check-config", path).stdout.splitlines() if "when they are full" in line]
    assert line.startswith(said)
    # Where there is something to warn of, the doctor says that instead.
    found = [(each.state, each.what) for each in doctor.memory(read_config(path), doctor.this_process())]
    warned = json.loads(run("check-config", path, "--json").stdout)["warnings"]
    assert len(warned) == text.count('max_bytes = "1MiB"'), "of what is more than that"
    if warned:
        assert found == [("warn", warning) for warning in warned]
    else:
        assert [(state, what.endswith(f"; {line}")) for state, what in found] == [("ok", True)]
    stored = read_config(path, data_dir=str(tmp_path))
    assert any(line.split(", the process")[0] in each.what for each in doctor.disk(stored))
