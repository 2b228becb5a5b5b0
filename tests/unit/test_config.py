"""Configuration: what a file and the command line mean, and what is said about their faults."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replayd.config import build_tables, read_config
from replayd.config_environment import variables
from replayd.config_faults import ConfigError, Fault
from replayd.config_model import SECTIONS, Config, TableConfig


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str) -> str:
        path = tmp_path / "replayd.toml"
        path.write_text(text)
        return str(path)

    return write


def faults(path: str | None = None, **command_line: Any) -> list[Fault]:
    with pytest.raises(ConfigError) as caught:
        read_config(path, **command_line)
    return caught.value.faults


def problems(path: str | None = None, **command_line: Any) -> list[str]:
    """What is said, without the place: a file of a test has but a few lines."""
    return [str(replace(fault, place="")) for fault in faults(path, **command_line)]


# --- what is meant ----------------------------------------------------------------------------------------------------


def test_without_a_file_one_uniform_table_is_served_on_loopback() -> None:
    config = read_config()
    assert (config.server.listen, config.server.ingest) == ("tcp://127.0.0.1:7077", "tcp://127.0.0.1:7079")
    assert (config.server.seed, config.server.lease, config.server.insecure_public) == (None, 60.0, False)
    (table,) = config.table
    assert (table.name, str(table.sampler), str(table.remover)) == ("replay", "uniform", "fifo")
    assert (table.max_size, table.max_times_sampled) == (1_000_000, 0)
    assert str(table.limiter) == "min_size(min_size_to_sample=1)"


def test_a_file_and_the_command_line_mean_the_same(write: Any) -> None:
    path = write(
        """
        [[table]]
        name = "per"
        sampler = { type = "prioritized", priority_exponent = 0.6 }
        remover = "min_heap"
        max_size = 5_000
        max_times_sampled = 3

        [table.limiter]
        type = "sample_to_insert_ratio"
        samples_per_insert = 8
        min_size_to_sample = 100
        error_buffer = [700, 900]

        [[table]]
        name = "band"
        limiter = { type = "rate_limiter", samples_per_insert = 0.5, min_size_to_sample = 2, max_diff = 40.5 }

        [[table]]
        name = "q"
        preset = "queue"
        max_size = 7
        """
    )
    spoken = read_config(
        tables=[
            "per,sampler=prioritized,priority_exponent=0.6,remover=min_heap,max_size=5_000,max_times_sampled=3,"
            "limiter=sample_to_insert_ratio,samples_per_insert=8,min_size_to_sample=100,error_buffer=700:900",
            "band,limiter=rate_limiter,samples_per_insert=0.5,min_size_to_sample=2,max_diff=40.5",
            "q,preset=queue,max_size=7",
        ]
    )
    assert read_config(path).table == spoken.table


def test_tables_of_the_command_line_join_those_of_the_file(write: Any) -> None:
    path = write('[[table]]\nname = "a"\n')
    assert [table.name for table in read_config(path, tables=["b"]).table] == ["a", "b"]


def test_keys_of_the_smallest_limiter_need_no_limiter_named() -> None:
    (table,) = read_config(tables=["replay,min_size_to_sample=1000"]).table
    assert str(table.limiter) == "min_size(min_size_to_sample=1000)"


@pytest.mark.parametrize(("preset", "order"), [("queue", "fifo"), ("stack", "lifo")])
def test_a_preset_settles_everything_but_the_size(preset: str, order: str) -> None:
    (table,) = read_config(tables=[f"t,preset={preset},max_size=12"]).table
    assert (str(table.sampler), str(table.remover), table.max_times_sampled) == (order, order, 1)
    assert str(table.limiter) == f"{preset}(size=12)"


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("60s", 60.0), ("1.5s", 1.5), ("5min", 300.0), ("2h", 7200.0)]
)
def test_a_lease_is_a_time_with_its_unit(write: Any, text: str, seconds: float) -> None:
    assert read_config(write(f'[server]\nlease = "{text}"')).server.lease == seconds


def test_the_command_line_wins_over_the_file(write: Any) -> None:
    path = write('[server]\nlisten = "tcp://127.0.0.5:1"\ningest = "tcp://127.0.0.6:2"\nseed = 3\n')
    server = read_config(path, port=10, ingest_port=20, seed=30).server
    assert (server.listen, server.ingest, server.seed) == ("tcp://127.0.0.5:10", "tcp://127.0.0.6:20", 30)


def test_the_ingest_port_follows_the_port_unless_it_is_said_where_it_is(write: Any) -> None:
    assert read_config(port=8000).server.ingest == "tcp://127.0.0.1:8002"
    assert read_config(port=0).server.ingest == "tcp://127.0.0.1:0"
    assert read_config(port=8000, ingest_port=9).server.ingest == "tcp://127.0.0.1:9"
    assert read_config(write('[server]\ningest = ""'), port=8000).server.ingest == ""
    assert read_config(write('[server]\nlisten = "tcp://127.0.0.1:7079"')).server.ingest == "tcp://127.0.0.1:7081"


def test_at_a_path_ingest_is_at_another_one_unless_it_is_said_where_it_is(write: Any) -> None:
    path = '[server]\nlisten = "ipc:///run/x.sock"\n'
    assert read_config(write(path)).server.ingest == "ipc:///run/x.sock-ingest"
    assert read_config(listen="ipc://@x").server.ingest == "ipc://@x-ingest"
    assert read_config(listen="ipc://*").server.ingest == "ipc://*"
    assert read_config(write(path + 'ingest = ""')).server.ingest == ""
    assert read_config(write(path), ingest_port=9).server.ingest == "tcp://127.0.0.1:9"
    environment = {"REPLAYD_SERVER_INGEST": "tcp://127.0.0.1:8"}
    assert read_config(write(path), environment=environment).server.ingest == "tcp://127.0.0.1:8"
    # `--port` is one of tcp: it replaces the path.
    assert read_config(write(path), port=8000).server.ingest == "tcp://127.0.0.1:8002"


def test_the_status_page_is_on_loopback_at_the_next_port_unless_it_is_said_where_it_is(write: Any) -> None:
    assert read_config().http.listen == "127.0.0.1:7078"
    assert read_config(port=8000).http.listen == "127.0.0.1:8001"
    assert read_config(port=0).http.listen == "127.0.0.1:0"
    assert read_config(port=65535).http.listen == "127.0.0.1:7078"
    path = write('[server]\nlisten = "ipc:///run/x"\ningest = "tcp://127.0.0.1:7078"')
    assert read_config(path).http.listen == "127.0.0.1:7080"
    assert read_config(port=8000, ingest_port=8001).http.listen == "127.0.0.1:8003"
    assert read_config(listen="0.0.0.0:8000", insecure_public=True).http.listen == "127.0.0.1:8001"
    assert read_config(write('[server]\nlisten = "ipc:///run/x.sock"')).http.listen == "127.0.0.1:7078"
    assert read_config(write('[http]\nlisten = "[::1]:9000"'), port=8000).http.listen == "[::1]:9000"
    assert read_config(write('[http]\nlisten = "[::1]:9000"'), http="localhost:1").http.listen == "localhost:1"


def test_the_status_page_can_be_off(write: Any) -> None:
    assert read_config().http.is_on
    assert not read_config(write('[http]\nlisten = "off"')).http.is_on
    assert not read_config(http="off", port=0).http.is_on


@pytest.mark.parametrize("address", ["7078", "127.0.0.1", "127.0.0.1:70777", "eth0:1", "tcp://127.0.0.1:1", "Off", ""])
def test_an_address_of_the_status_page_that_is_none_is_refused(write: Any, address: str) -> None:
    (told,) = problems(write(f'[http]\nlisten = "{address}"'))
    assert told == f'http.listen: expected "HOST:PORT", HOST a number, or "off", got {address!r}'


@pytest.mark.parametrize("address", ["127.0.0.1:7077", "localhost:7079", "0.0.0.0:7077"])
def test_the_status_page_needs_a_port_of_its_own(write: Any, address: str) -> None:
    (told,) = problems(write(f'[server]\ninsecure_public = true\n[http]\nlisten = "{address}"'))
    assert told == f"http.listen {address} needs a port of its own"


def test_the_status_page_is_shown_to_other_machines_only_on_purpose(write: Any) -> None:
    path = write('[http]\nlisten = "0.0.0.0:9000"')
    (told,) = problems(path)
    assert "0.0.0.0:9000 can be reached from other machines" in told
    assert "--insecure-public" in told
    assert read_config(path, insecure_public=True).http.listen == "0.0.0.0:9000"


@pytest.mark.parametrize("listen", ["tcp://0.0.0.0:8000", "0.0.0.0:8000"])
def test_an_address_on_the_command_line_moves_the_requests_and_only_the_port_of_ingest(write: Any, listen: str) -> None:
    path = write('[server]\nlisten = "tcp://127.0.0.5:1"')
    server = read_config(path, listen=listen, insecure_public=True).server
    assert (server.listen, server.ingest) == ("tcp://0.0.0.0:8000", "tcp://127.0.0.1:8002")
    assert read_config(path, listen=listen, port=9000, insecure_public=True).server.listen == "tcp://0.0.0.0:9000"


def test_tables_are_built_as_configured(write: Any) -> None:
    path = write(
        """
        [[table]]
        name = "a"
        max_size = 10
        max_times_sampled = 2
        signature = [
            { path = ["obs", 0], dtype = "float32", shape = [-1, 3] },
            { path = ["done"], dtype = "bool", shape = [] },
            { path = ["note"], dtype = "str", shape = [-1] },
        ]

        [[table]]
        name = "b"
        """
    )
    a, b = build_tables(read_config(path))
    assert (a.name, a.max_size, a.max_times_sampled, b.name) == ("a", 10, 2, "b")
    assert a.signature is not None
    assert [(column.path, column.dtype, column.shape) for column in a.signature] == [
        (("done",), "bool", ()),
        (("note",), "str", (None,)),
        (("obs", 0), "float32", (None, 3)),
    ]
    assert b.signature is None


@pytest.mark.parametrize("selector", ["uniform", "fifo", "lifo", "min_heap", "max_heap"])
def test_every_selector_can_be_named_in_both_roles(selector: str) -> None:
    (table,) = build_tables(read_config(tables=[f"t,sampler={selector},remover={selector}"]))
    assert type(table.sampler) is type(table.remover)
    assert type(table.sampler).__name__.lower() == selector.replace("_", "")
    assert table.sampler is not table.remover


# --- faults -----------------------------------------------------------------------------------------------------------


def test_all_faults_are_told_at_once_each_with_its_place(write: Any) -> None:
    path = write(
        """
        speed = 3
        [server]
        listne = "x"
        lease = 60
        [http]
        lisen = "off"
        [[table]]
        name = "replay"
        sampler = "unifrom"
        max_sise = 3
        max_size = "a"
        limiter = { type = "min_size", min_size_to_sample = 0 }
        [[table]]
        sampler = { type = "prioritized" }
        """
    )
    told = problems(path, tables=["extra,max_time_sampled=3"])
    for place in (
        "server.lease: expected a time with its unit",
        "server: unknown key 'listne'; did you mean 'listen'?",
        "http: unknown key 'lisen'; did you mean 'listen'?",
        "table 'replay': sampler: unknown type 'unifrom'; did you mean 'uniform'?",
        "table 'replay': unknown key 'max_sise'; did you mean 'max_size'?",
        "table 'replay': max_size: expected a valid integer, got 'a'",
        "table 'replay': limiter: ",
        "table 2: name is missing",
        "table 2: sampler: priority_exponent is missing",
        "unknown key 'speed'",
        "--table extra: unknown key 'max_time_sampled'; did you mean 'max_times_sampled'?",
    ):
        assert any(line.startswith(place) for line in told), (place, told)
    assert len(told) == 11


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("max_size = 0", "greater than or equal to 1"),
        ("max_size = 1.5", "expected a valid integer, got 1.5"),
        ("max_size = true", "expected a valid integer, got True"),
        ("max_times_sampled = -1", "greater than or equal to 0"),
        ("sampler = 3", "expected a name, or a table with a `type`, got 3"),
        ('sampler = { type = "prioritized", priority_exponent = -1.0 }', "sampler: "),
        ('sampler = { type = "prioritized", priority_exponent = inf }', "finite"),
        ('sampler = "prioritized"', "priority_exponent is missing"),
        ('limiter = { type = "queue", size = 0 }', "limiter.size: "),
        ('limiter = { type = "queue", sise = 1 }', "did you mean 'size'"),
        ("limiter = { size = 1 }", "a table with a `type`"),
        ('preset = "heap"', "expected 'queue' or 'stack', got 'heap'"),
        ('preset = "queue"', "needs max_size"),
        ('preset = "queue"\nmax_size = 3\nremover = "fifo"', "settles remover"),
        ('signature = [{ path = [-1], dtype = "int8", shape = [] }]', "a key of a map"),
        ('signature = [{ path = ["a"], dtype = "float", shape = [] }]', "got 'float'"),
        ('signature = [{ path = ["a", 1], dtype = "int8", shape = [1] }]', "positions below a are [1]"),
        ("signature = []", "at least one"),
        ('signature = [{ path = ["a"], dtype = "int8", shape = [-2] }]', "greater than or equal to -1"),
        ('signature = [{ path = ["a"], dtyp = "int8", shape = [1] }]', "did you mean 'dtype'"),
    ],
)
def test_a_faulty_setting_of_a_table_is_refused(write: Any, setting: str, said: str) -> None:
    told = problems(write(f'[[table]]\nname = "t"\n{setting}\n'))
    assert any(line.startswith("table 't'") and said in line for line in told), told


@pytest.mark.parametrize("buffer", ['"x"', "[1]", "[1, 2, 3]", '[1, "x"]', "true", "0.5", "[9, 9]"])
def test_a_band_that_is_none_is_refused(write: Any, buffer: str) -> None:
    limiter = (
        f'type = "sample_to_insert_ratio", samples_per_insert = 2, min_size_to_sample = 5, error_buffer = {buffer}'
    )
    told = problems(write(f'[[table]]\nname = "t"\nlimiter = {{ {limiter} }}\n'))
    assert len(told) == 1
    assert "error_buffer" in told[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("priority_exponent=0.6", "priority_exponent needs sampler=prioritized"),
        ("sampler=uniform,priority_exponent=0.6", "priority_exponent needs sampler=prioritized"),
        ("min_diff=3", "min_diff needs limiter=rate_limiter"),
        ("limiter=queue,size=3,max_diff=3", "max_diff needs limiter=rate_limiter"),
        ("limiter=min_size,min_size_to_sample=1,size=3", "size needs limiter=queue or limiter=stack"),
        ("samples_per_insert=2", "samples_per_insert needs limiter=sample_to_insert_ratio or limiter=rate_limiter"),
        ("preset=queue,max_size=2,size=3", "size is settled by preset=queue; leave it out"),
    ],
)
def test_a_setting_beside_the_wrong_sampler_or_limiter_is_told_the_right_one(settings: str, said: str) -> None:
    assert problems(tables=[f"t,{settings}"]) == [f"--table t: {said}"]


@pytest.mark.parametrize(
    "settings",
    ["min_size_to_sample=11", "limiter=rate_limiter,samples_per_insert=1,min_size_to_sample=11"],
)
def test_a_table_too_small_to_be_sampled_ever_is_refused(settings: str) -> None:
    (told,) = problems(tables=[f"t,max_size=10,{settings}"])
    assert told.startswith("table 't': min_size_to_sample is 11 and max_size 10")
    read_config(tables=[f"t,max_size=11,{settings}"])


def test_a_name_that_swallowed_a_setting_is_told_of_the_comma() -> None:
    (told,) = problems(tables=["replay sampler=prioritized"])
    assert "is a comma missing" in told


@pytest.mark.parametrize("name", ["", "a\nb", "ü" * 65, "\x7f"])
def test_a_table_has_a_name_that_can_be_shown_and_sent(name: str) -> None:
    assert "printable" in problems(tables=[name])[0]


def test_two_tables_of_one_name_are_refused() -> None:
    assert problems(tables=["a", "b", "a"]) == ["tables are named twice: 'a'"]


def test_faults_of_the_whole_are_told_with_those_of_parts(tmp_path: Path) -> None:
    path = tmp_path / "replayd.toml"
    path.write_text(
        '[server]\nlisten = "tcp://0.0.0.0:7077"\n[store]\npath = ""\n[[table]]\nname = "a"\nmax_size = 0\n'
        '[[table]]\nname = "b"\n[[table]]\nname = "a"\n'
    )
    told = list(map(str, faults(str(path))))
    assert len(told) == 4, told
    for place, what in ((":4", "store.path"), (":7", "max_size"), (":11", "named twice: 'a'"), ("", "0.0.0.0:7077")):
        assert len([line for line in told if f"{path}{place}: " in line and what in line]) == 1, what


TOO_SMALL = '[[table]]\nname = "b"\nmax_size = 3\nlimiter = { type = "min_size", min_size_to_sample = 9 }\n'
TWO_ALIKE = '[[table]]\nname = "a"\n[[table]]\nname = "a"\n'
STRAY = (
    '[[table]]\nname = "c"\nextensions = [{ type = "insert_on_sample", options = { to = "nowhere" } }]\n',
    "copies to table 'nowhere'",
)


@pytest.mark.parametrize(
    ("faulty", "said"),
    [
        ("[server]\nlease = 60\n", "server.lease"),
        ("[server]\nlisten = 7\n", "server.listen"),
        ("[server]\nlistne = 7\n", "unknown key 'listne'"),
        ('[server]\ningest = "tcp://127.0.0.1:7077"\n', "need a port each"),
        ('[server]\nlisten = "tcp://0.0.0.0:7077"\n', "can be reached from other machines"),
        ("server = 3\n", "expected a table of settings"),
        ('[http]\nlisten = "x"\n', "http.listen"),
        ('[http]\nlisten = "127.0.0.1:7079"\n', "needs a port of its own"),
        ('[access]\nkeys = ""\n', "access.keys"),
        ("[access]\nkey = 3\n", "keys is missing"),
        ('[store]\njournal = "on"\n', "store.journal"),
        ('[log]\nlevel = "loud"\n', "log.level"),
        ("speed = 3\n", "unknown key 'speed'"),
        ('[[table]]\nname = "d"\nmax_size = 0\n', "table 'd': max_size"),
        ('[[table]]\nmax_size = 5\nlimiter = { type = "min_size", min_size_to_sample = 9 }\n', "name is missing"),
    ],
)
def test_no_fault_hides_what_several_settings_do_not_go_together(write: Any, faulty: str, said: str) -> None:
    told = problems(write(f"{faulty}{TOO_SMALL}{TWO_ALIKE}{STRAY[0]}"))
    for what in (said, "table 'b': min_size_to_sample is 9", "named twice: 'a'", STRAY[1]):
        assert len([line for line in told if what in line]) == 1, (what, told)


def test_a_faulty_key_of_a_table_does_not_hide_what_its_other_keys_do_not_do_together(write: Any) -> None:
    told = problems(write(TOO_SMALL + "colour = 3\n"))
    assert [what for what in ("unknown key 'colour'", "min_size_to_sample is 9") for line in told if what in line]
    assert len(told) == 2, told


def test_all_that_is_wrong_with_the_whole_is_told_at_once(write: Any) -> None:
    text = '[server]\nlisten = "tcp://0.0.0.0:7077"\nlease = 60\n[http]\nlisten = "0.0.0.0:7079"\n'
    told = problems(write(f"{text}{STRAY[0]}"))
    for what in ("server.lease", "nobody needs a key", "0.0.0.0:7079 needs a port", "is no authentication", STRAY[1]):
        assert len([line for line in told if what in line]) == 1, (what, told)
    assert len(told) == 5, told


@pytest.mark.parametrize(
    "text",
    [
        '[server]\nlisten = "tcp://example:7077"\ningest = "tcp://127.0.0.1:7077"\n',
        '[server]\nlisten = "tcp://0.0.0.0:7077"\n[access]\nkeys = ""\n',
        '[server]\nlisten = "tcp://127.0.0.1:7078"\n[http]\nlisten = "x"\n',
        '[server]\nlisten = "tcp://0.0.0.0:7077"\ninsecure_public = "perhaps"\n',
        '[[table]]\nname = "a"\npreset = "queue"\nmax_size = "large"\n',
        '[[table]]\nname = "a"\nmax_size = 0\nlimiter = { type = "min_size", min_size_to_sample = 2_000_000 }\n',
        '[[table]]\nname = 3\n[[table]]\nname = "replay"\n',
    ],
)
def test_what_is_put_in_the_place_of_a_faulty_setting_is_not_blamed(write: Any, text: str) -> None:
    assert len(problems(write(text))) == 1


@pytest.mark.parametrize("text", ["t,max_size", "t,max_size=1,max_size=2", "t,name=u", "t,", "t,error_buffer=1:2:3"])
def test_a_table_on_the_command_line_that_cannot_be_read_is_refused(text: str) -> None:
    assert problems(tables=[text])


@pytest.mark.parametrize(
    "address",
    [
        "",
        "7077",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:70777",
        "tcp://127.0.0.1:x",
        "tcp://eth0:1",
        "udp://127.0.0.1:1",
        "ipc://",
    ],
)
def test_an_address_that_cannot_be_bound_is_refused(write: Any, address: str) -> None:
    (told,) = problems(write(f'[server]\nlisten = "{address}"'))
    assert told.startswith("server.listen: ")


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:7090", "tcp://*:7090", "tcp://10.1.2.3:7090", "tcp://[::]:7090"])
@pytest.mark.parametrize("key", ["listen", "ingest"])
def test_other_machines_are_let_in_only_on_purpose(write: Any, key: str, address: str) -> None:
    path = write(f'[server]\n{key} = "{address}"')
    (told,) = problems(path)
    assert address in told
    assert "--insecure-public" in told
    assert getattr(read_config(path, insecure_public=True).server, key) == address


@pytest.mark.parametrize(
    ("listen", "ingest"),
    [
        ("tcp://127.0.0.1:7000", "tcp://127.0.0.1:7000"),
        ("tcp://127.0.0.1:7000", "tcp://localhost:7000"),
        ("tcp://0.0.0.0:7000", "tcp://127.0.0.1:7000"),
        ("tcp://10.1.2.3:7000", "tcp://*:7000"),
        ("ipc:///run/x.sock", "ipc:///run/x.sock"),
    ],
)
def test_requests_and_ingest_need_a_place_each(write: Any, listen: str, ingest: str) -> None:
    (told,) = problems(write(f'[server]\nlisten = "{listen}"\ningest = "{ingest}"\ninsecure_public = true'))
    assert told == f"server: listen {listen} and ingest {ingest} need a port each, not the same one"


def test_sockets_on_free_ports_or_on_two_addresses_have_a_place_each(write: Any) -> None:
    read_config(port=0, ingest_port=0)
    read_config(write('[server]\nlisten = "tcp://127.0.0.1:7000"\ningest = "tcp://127.0.0.2:7000"'))


def test_letting_the_network_in_where_it_cannot_come_is_doubted() -> None:
    with pytest.warns(UserWarning, match="insecure_public changes nothing"):
        read_config(insecure_public=True)


@pytest.mark.parametrize("address", ["tcp://127.0.0.2:1", "tcp://localhost:1", "tcp://[::1]:1", "ipc:///run/x.sock"])
def test_the_machine_itself_is_let_in(write: Any, address: str) -> None:
    assert read_config(write(f'[server]\nlisten = "{address}"')).server.listen == address


def test_a_file_that_is_not_there_or_not_toml_is_refused(write: Any, tmp_path: Path) -> None:
    (told,) = faults(str(tmp_path / "none.toml"))
    assert (told.what, told.place) == ("No such file or directory", str(tmp_path / "none.toml"))
    assert "is not TOML" in problems(write("[server"))[0]
    (tmp_path / "latin.toml").write_bytes(b'x = "\xff"')
    assert "is not TOML" in problems(str(tmp_path / "latin.toml"))[0]


@pytest.mark.parametrize("text", ["table = 3", "server = 3", 'table = ["a"]'])
def test_sections_of_the_wrong_kind_are_refused(write: Any, text: str) -> None:
    assert problems(write(text))
    assert problems(write(text), tables=["b"], port=1)


def test_a_daemon_without_tables_is_refused(write: Any) -> None:
    assert problems(write("table = []"))[0].startswith("table: ")


def test_the_example_at_the_head_of_the_module_is_a_configuration() -> None:
    import replayd.config

    assert replayd.config.__doc__ is not None
    lines = [line[4:] for line in replayd.config.__doc__.splitlines() if line.startswith("    ")]
    left, right = ("\n".join(line[column].rstrip() for line in lines) for column in (slice(0, 43), slice(43, None)))
    config = Config.model_validate(tomllib.loads(f"{left}\n{right}"))
    assert isinstance(config.table[0], TableConfig)
    assert config.table[0].name == "replay"


# --- places -----------------------------------------------------------------------------------------------------------


def test_every_fault_of_a_file_is_told_with_its_line(write: Any) -> None:
    path = write(
        """
[server]
listne = "x"
lease = 60
[[table]]
name = "replay"
sampler = { type = "prioritized", priority_exponent = "a" }
limiter = { type = "min_size", min_size_to_sample = 0 }
[[table]]
max_size = 3
[http]

listen = "x"
"""
    )
    found = faults(path, tables=["extra,max_time_sampled=3"])
    places = {fault.key: fault.place.removeprefix(f"{path}:") for fault in found}
    assert places == {
        "server": "3",
        "server.lease": "4",
        "table 'replay': sampler.priority_exponent": "7",
        "table 'replay': limiter": "8",
        "table 2": "9",
        "http.listen": "13",
        "": "",
    }


@pytest.mark.parametrize(
    ("text", "line"), [("[server]\nlisten = \n", 2), ("a = 1\na = 2\n", 2), ("\n\nx = [1,\n", 4), ('a = "\xff"', 1)]
)
def test_a_file_that_is_not_toml_is_told_with_the_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "replayd.toml"
    path.write_bytes(text.encode("latin-1"))
    (told,) = faults(str(path))
    assert told.place == f"{path}:{line}"


def test_what_the_command_line_says_is_not_blamed_on_the_file(write: Any) -> None:
    path = write('[server]\nlisten = "tcp://127.0.0.1:1"\n[[table]]\nname = "a"\n')
    places = {fault.key: fault.place for fault in faults(path, listen="nowhere:x", tables=["b,max_size=x"])}
    assert places == {"server.listen": "", "table 'b': max_size": ""}


def test_a_fault_of_an_option_from_a_variable_is_told_with_the_variable(write: Any) -> None:
    path = write('[server]\nlisten = "tcp://127.0.0.1:1"\n[[table]]\nname = "a"\n')
    faulty: dict[str, Any] = {
        "listen": "nowhere:x",
        "http": "x",
        "max_bytes": "lots",
        "data_dir": "",
        "journal": "perhaps",
        "log_level": "loud",
        "log_format": "nice",
        "tables": ["a", "b,max_size=x", "c,max_sise=1"],
    }
    named = {name: f"REPLAYD_SERVE_{name}".upper() for name in faulty}
    for said in (named, {}):
        found = faults(path, **faulty, variables=said)
        assert {fault.place for fault in found} == (set(said.values()) or {""})
        assert len(found) >= len(faulty) + 2


@pytest.mark.parametrize("listen", ["listen", "REPLAYD_SERVER_LISTEN", "typed", "REPLAYD_SERVE_LISTEN"])
@pytest.mark.parametrize("size", [100, 101, 107, 108])
def test_a_path_that_the_kernel_does_not_take_is_a_fault_of_the_settings(write: Any, listen: str, size: int) -> None:
    address = f"ipc:///{'x' * (size - 3)}é"[: 6 + size]
    assert len(address.removeprefix("ipc://").encode()) == size
    path = write(f'[server]\nlisten = "{address}"\n' if listen == "listen" else "")
    options: dict[str, Any] = {"environment": {listen: address}} if "SERVER" in listen else {}
    if listen in ("typed", "REPLAYD_SERVE_LISTEN"):
        options = {"listen": address, "variables": {"listen": listen} if listen != "typed" else {}}
    place = {"listen": f"{path}:2", "typed": ""}.get(listen, listen)
    told = [] if size == 100 else faults(path, **options)
    most = {"server.ingest": 100, "server.listen": 107}
    assert {(fault.key, fault.place) for fault in told} == {(key, place) for key in most if size > most[key]}
    for fault in told:
        assert "a path of at most 107 bytes" in fault.what
        assert fault.key == "server.listen" or "shorten that, or set ingest to another address" in fault.what
    # Who says where ingest is may use all of it.
    if size <= 107:
        assert read_config(path, **options, ingest_port=0).server.listen == address


# --- the environment --------------------------------------------------------------------------------------------------


def test_a_variable_wins_over_the_file_and_the_command_line_over_both(write: Any) -> None:
    path = write('[server]\nseed = 1\nlease = "1s"\nlisten = "tcp://127.0.0.1:1"\n')
    environment = {
        "REPLAYD_SERVER_SEED": "2",
        "REPLAYD_SERVER_LEASE": "2s",
        "REPLAYD_HTTP_LISTEN": "off",
        "REPLAYD_STORE_PATH": "/nowhere",
        "REPLAYD_STORE_CHECKPOINT_ON_STOP": "false",
        "REPLAYD_LOG_LEVEL": "warning",
        "HOME": "/",
    }
    config = read_config(path, environment=environment, seed=3)
    assert (config.server.seed, config.server.lease, config.server.listen) == (3, 2.0, "tcp://127.0.0.1:1")
    assert (config.http.is_on, config.log.level) == (False, "warning")
    assert config.store is not None
    assert (config.store.path, config.store.checkpoint_on_stop) == ("/nowhere", False)


def test_every_key_outside_tables_has_a_variable() -> None:
    named = set(variables().values())
    for section, kind in SECTIONS.items():
        assert {(section, key) for key in kind.model_fields} <= named
    assert {"server", "http", "store", "log"} <= SECTIONS.keys()


def test_a_faulty_variable_is_blamed_by_its_name(write: Any) -> None:
    path = write("[server]\nseed = 1\n")
    (told,) = faults(path, environment={"REPLAYD_SERVER_SEED": "many"})
    assert str(told) == "REPLAYD_SERVER_SEED: server.seed: expected a valid integer, got 'many'"


def test_a_misspelt_variable_is_doubted_and_one_of_somebody_else_is_not() -> None:
    with pytest.warns(UserWarning, match="did you mean REPLAYD_SERVER_LISTEN"):
        read_config(environment={"REPLAYD_SERVER_LISTNE": "x"})
    read_config(environment={"REPLAYD_SERVER_PORT_7077_TCP_PROTO": "tcp", "REPLAYD_SERVE_PORT": "1"})
