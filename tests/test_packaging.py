"""The metadata of both distributions, read from their files."""

from __future__ import annotations

import ast
import configparser
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENT = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
SERVER = configparser.ConfigParser()
SERVER.read(ROOT / "setup.cfg")


def requirements() -> list[str]:
    """Everything either distribution requires, extras included."""
    server = [SERVER["options"]["install_requires"], *SERVER["options.extras_require"].values()]
    client = [CLIENT["dependencies"], *CLIENT.get("optional-dependencies", {}).values()]
    return [line for text in server for line in text.split("\n") if line] + [line for lines in client for line in lines]


def test_the_version_is_a_literal_so_that_a_build_imports_nothing() -> None:
    assert SERVER["metadata"]["version"] == "attr: replayd.__version__"
    tree = ast.parse((ROOT / "replayd" / "__init__.py").read_text())
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    ]
    assert len(values) == 1
    assert isinstance(values[0], ast.Constant)
    assert values[0].value == CLIENT["version"], "both distributions are released together"


def test_nothing_requires_a_distribution_of_somebody_else() -> None:
    # The name `replayd` on the public index is another project.
    names = {re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-") for requirement in requirements()}
    assert "replayd" not in names
    assert "replayd-client" in names


def test_requirements_set_lower_bounds() -> None:
    assert all(">=" in requirement for requirement in requirements())


def test_the_public_index_is_never_asked_for_replayd_in_our_texts() -> None:
    texts = [path for path in ROOT.rglob("*.md") if ".venv" not in path.parts] + [
        path for path in (ROOT / "scripts").iterdir() if path.is_file()
    ]
    asking = re.compile(r"pip install(?:\s+-\S+)*\s+[\"']?replayd(?![\w-])")
    guilty = [str(path.relative_to(ROOT)) for path in texts if asking.search(path.read_text())]
    assert not guilty


def test_both_distributions_are_typed() -> None:
    assert (ROOT / "replayd" / "py.typed").exists()
    assert (ROOT / "client" / "replayd_client" / "py.typed").exists()
    assert "py.typed" in SERVER["options.package_data"]["replayd"].split(", ")


def test_all_that_is_no_code_is_packed_with_it() -> None:
    patterns = SERVER["options.package_data"]["replayd"].split(", ")
    packed = {path for pattern in patterns for path in (ROOT / "replayd").glob(pattern)}
    others = [
        path
        for path in (ROOT / "replayd").rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    ]
    assert len(others) > 1
    assert packed == set(others)
