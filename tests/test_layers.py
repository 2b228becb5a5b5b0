"""The shape of the code: who may import whom. Read from the source by `ast`, so that nothing is imported to find out.

A new module of the daemon is given a layer in LAYERS, deliberately.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 450

# Lowest first. A module imports from its own layer and from those below it.
LAYERS: dict[str, tuple[str, ...]] = {
    "words": ("errors", "limits", "columns", "messages", "wording"),
    "core": (
        "accounts",
        "admission",
        "arena",
        "blocked",
        "board",
        "capacity",
        "chunks",
        "deadlines",
        "draws",
        "durability",
        "episodes",
        "extensions",
        "filling",
        "handover",
        "histograms",
        "hooks",
        "interned",
        "intake",
        "items",
        "layouts",
        "leases",
        "maximum",
        "pace",
        "payloads",
        "peeking",
        "parked",
        "parked_samples",
        "peer_names",
        "pending",
        "quotas",
        "rate_limiters",
        "selectors",
        "reports",
        "room",
        "service",
        "service_proof",
        "settings",
        "showing",
        "signature",
        "slots",
        "staleness",
        "snapshots",
        "state",
        "streams",
        "sum_tree",
        "table",
        "table_arguments",
        "table_proof",
        "vitals",
        "waiting",
        "wishes",
    ),
    "codec": ("blobs", "header", "header_forms", "insert_forms", "insert_reader", "insert_runs", "reception", "wire"),
    "disk": (
        "backlog",
        "checkpoints",
        "journal",
        "journal_format",
        "keeper",
        "loading",
        "replaying",
        "restoring",
        "store",
        "store_blocks",
        "store_copies",
        "ownership",
        "store_files",
        "store_format",
        "store_formats",
        "store_parts",
        "store_writer",
    ),
    "shell": (
        "addresses",
        "config",
        "config_choices",
        "config_differences",
        "config_environment",
        "config_faults",
        "config_judge",
        "config_model",
        "config_units",
        "config_text",
        "connections",
        "fault_log",
        "heap",
        "http",
        "metrics",
        "rendered",
        "exit_codes",
        "process",
        "server",
        "sockets",
        "taken",
        "embedded",
        "notify",
        "activation",
        "announcer",
        "logs",
        "cli",
        "access",
        "gate",
        "key_files",
        "cli_keys",
        "cli_bench",
        "cli_completion",
        "cli_config",
        "cli_doctor",
        "cli_info",
        "cli_operator",
        "cli_serve",
        "cli_served",
        "cli_options",
        "cli_store",
        "cli_top",
        "doctor",
        "progress",
        "forecast",
        "reloading",
        "service_files",
        "toml_lines",
        "unread",
        "watch",
        "__main__",
    ),
    "compat": ("compat",),
    "face": ("__init__",),
}

# What the core is handed instead of fetching: time, randomness, bytes that arrived, the disk.
IMPURE = {
    "asyncio", "blosc2", "concurrent", "datetime", "io", "lmdb", "logging", "msgpack", "multiprocessing",
    "os", "pathlib", "queue", "random", "secrets", "select", "selectors", "shutil", "signal", "socket",
    "subprocess", "tempfile", "threading", "time", "uuid", "zmq",
}  # fmt: skip

UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "runpy", "code"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}

# Modules that a person or the interpreter starts, so that nothing need import them.
ENTRIES = {"replayd", "replayd.__main__", "replayd.cli", "replayd.compat", "replayd_client"}


@cache
def sources() -> dict[str, Path]:
    """Every module of both packages by its dotted name; a package by its own name."""
    found = {}
    for base, package in ((ROOT, "replayd"), (ROOT / "client", "replayd_client")):
        for path in sorted((base / package).rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(sources()[module].read_text(), filename=str(sources()[module]))


@cache
def imports(module: str) -> frozenset[str]:
    """Dotted names of the modules it imports, anywhere in it, inside functions too."""
    return frozenset(_imports(module))


def _imports(module: str) -> Iterator[str]:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} line {node.lineno}: imports are absolute here"
            assert node.module is not None
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in sources() else node.module


def our_imports(module: str) -> set[str]:
    return {name for name in imports(module) if name in sources()}


def top_level_imports(module: str) -> set[str]:
    """Modules which importing it imports as well: what stands outside functions and outside `if TYPE_CHECKING`."""
    found: set[str] = set()

    def visit(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    found.add(name if name in sources() else str(node.module))
            elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
                visit(node.body + node.orelse)
            elif isinstance(node, ast.Try):
                visit(node.body + node.orelse + node.finalbody + [s for handler in node.handlers for s in handler.body])

    visit(tree(module).body)
    return found


def short(module: str) -> str:
    """`selectors` for `replayd.selectors.uniform`, `__init__` for `replayd`: the name by which LAYERS knows it."""
    return module.split(".")[1] if "." in module else "__init__"


DAEMON = sorted(name for name in sources() if name.split(".")[0] == "replayd")
CLIENT = sorted(name for name in sources() if name.split(".")[0] == "replayd_client")
LAYER_OF = {module: layer for layer, modules in LAYERS.items() for module in modules}
PURE = [module for module in DAEMON if LAYER_OF.get(short(module)) in ("words", "core")]
HEIGHT = {layer: height for height, layer in enumerate(LAYERS)}


def test_every_module_of_the_daemon_has_a_layer() -> None:
    assert len(DAEMON) > 10, "the daemon's modules were not found"
    unassigned = sorted({short(module) for module in DAEMON} - LAYER_OF.keys())
    assert not unassigned, f"give these a layer in {Path(__file__).name}: {unassigned}"


@pytest.mark.parametrize("module", DAEMON)
def test_a_module_imports_nothing_from_a_layer_above_its_own(module: str) -> None:
    own = HEIGHT[LAYER_OF[short(module)]]
    above = {
        name: LAYER_OF[short(name)]
        for name in our_imports(module)
        if name.split(".")[0] == "replayd" and HEIGHT[LAYER_OF[short(name)]] > own
    }
    # The version is a literal at the head of the package, which every module may show to people.
    if imports_version_only(module):
        above.pop("replayd", None)
    assert not above, f"{module} is {LAYER_OF[short(module)]} and imports {above}"


def imports_version_only(module: str) -> bool:
    names = [
        alias.name
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ImportFrom) and node.module == "replayd"
        for alias in node.names
        if f"replayd.{alias.name}" not in sources()
    ]
    return set(names) == {"__version__"}


def test_imports_form_no_circle() -> None:
    graph = {module: our_imports(module) - {module, "replayd", "replayd_client"} for module in sources()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(error.args[1]))


@pytest.mark.parametrize("module", PURE)
def test_the_core_fetches_nothing_from_the_outside_world(module: str) -> None:
    impure = sorted(name for name in imports(module) if name.split(".")[0] in IMPURE)
    assert not impure, f"{module} imports {impure}; hand it in instead"


@pytest.mark.parametrize("module", PURE)
def test_the_core_draws_no_entropy(module: str) -> None:
    drawn = [
        ast.unparse(node) for node in ast.walk(tree(module)) if isinstance(node, ast.Call) and _draws_entropy(node)
    ]
    assert not drawn, f"{module}: {drawn}; seeds and generators are handed in"


def _draws_entropy(call: ast.Call) -> bool:
    """A generator made of nothing, or numpy's hidden global one."""
    module, _, function = ast.unparse(call.func).rpartition(".")
    if module not in ("np.random", "numpy.random"):
        return False
    return not call.args or function not in ("Generator", "PCG64", "SeedSequence", "default_rng")


def test_only_the_codec_of_the_daemon_touches_msgpack() -> None:
    assert {short(module) for module in DAEMON if "msgpack" in imports(module)} <= set(LAYERS["codec"])


def test_only_the_shell_of_the_daemon_touches_zmq() -> None:
    touching = {short(module) for module in DAEMON if any(name.split(".")[0] == "zmq" for name in imports(module))}
    assert touching <= set(LAYERS["shell"])
    assert "server" in touching


def test_the_client_imports_nothing_from_the_daemon() -> None:
    assert len(CLIENT) > 5, "the client's modules were not found"
    guilty = {module for module in CLIENT if any(name.split(".")[0] == "replayd" for name in imports(module))}
    assert not guilty


@pytest.mark.parametrize("module", sources())
def test_nothing_turns_bytes_or_text_into_code(module: str) -> None:
    unsafe = sorted(name for name in imports(module) if name.split(".")[0] in UNSAFE_MODULES)
    unsafe += sorted(
        node.func.id
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in UNSAFE_CALLS
    )
    unsafe += sorted(
        ast.unparse(node)
        for node in ast.walk(tree(module))
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False"
    )
    assert not unsafe, f"{module} uses {unsafe}"


def test_no_module_is_dead() -> None:
    imported = set().union(*(our_imports(module) - {module} for module in sources()))
    # A package is alive when one of its modules is: importing that runs it.
    imported |= {name.rsplit(".", 1)[0] for name in imported if "." in name}
    # The faces and the command line fetch lazily, by a table of names.
    imported |= {
        name
        for face in ("replayd", "replayd.cli", "replayd_client")
        for node in ast.walk(tree(face))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for name in (node.value, f"{face}.{node.value}")
        if name in sources()
    }
    dead = sorted(sources().keys() - imported - ENTRIES)
    assert not dead, f"nothing imports {dead}"


@pytest.mark.parametrize("module", sources())
def test_a_file_fits_in_a_head(module: str) -> None:
    lines = len(sources()[module].read_text().splitlines())
    assert lines <= MAX_LINES, f"{module} has {lines} lines; it holds more than one noun"


def all_imports(*modules: str) -> set[str]:
    """What importing these brings, as far as our own modules go; of others the name of their package."""
    seen: set[str] = set()
    todo = [*modules]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            if name in sources():
                todo += top_level_imports(name)
    return {name.split(".")[0] for name in seen}


@pytest.mark.parametrize(
    "module", ["replayd", "replayd.__main__", *(name for name in DAEMON if short(name).startswith("cli"))]
)
def test_the_command_line_starts_without_numpy_and_zmq(module: str) -> None:
    heavy = {"numpy", "zmq", "msgpack", "blosc2", "pydantic", "prometheus_client", "rich", "wsgiref", "replayd_client"}
    assert not heavy & all_imports(module)


def test_a_few_words_with_a_daemon_take_no_arrays_and_nothing_that_few_need() -> None:
    brought = all_imports("replayd_client.inspection", "replayd_client.keys", "replayd.cli", "replayd.cli_info")
    assert {"zmq", "msgpack", "click"} <= brought
    slow = {"numpy", "blosc2", "dataclasses", "logging", "pathlib", "socket", "subprocess", "tomllib", "traceback"}
    assert not slow & brought


def test_keys_are_looked_after_without_sockets_and_messages() -> None:
    brought = all_imports("replayd.cli_keys", "replayd.access")
    assert not {"numpy", "zmq", "msgpack", "pydantic"} & brought
