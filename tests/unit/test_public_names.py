"""What the two packages offer by name, and what importing them costs."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import replayd
import replayd_client
from replayd.compat import reverb
from tests.daemon.harness import environment

PACKAGES = [replayd, replayd_client]
HEAVY = ("numpy", "zmq", "msgpack", "blosc2", "asyncio", "torch")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert sorted(names) == sorted(set(names))
    assert all(getattr(package, name) is not None for name in names)
    with pytest.raises(AttributeError, match="nonesuch"):
        package.nonesuch  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("name", sorted({*reverb.__all__, *replayd_client.__all__} - {*replayd.__all__, "errors"}))
def test_a_name_that_is_elsewhere_is_told_with_its_place(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; there is ") as caught:
        getattr(replayd, name)
    said = str(caught.value)
    assert (f"`replayd_client.{name}`" in said) == (name in replayd_client.__all__)
    assert (f"`from replayd.compat import reverb; reverb.{name}`" in said) == (name in reverb.__all__)


@pytest.mark.parametrize("package", [replayd, replayd_client, reverb])
def test_every_public_class_method_and_property_is_explained(package: Any) -> None:
    classes = [thing for name in package.__all__ if inspect.isclass(thing := getattr(package, name))]
    assert classes
    assert [name for cls in classes for name in unexplained(cls)] == []


def modules_of(package: ModuleType) -> list[str]:
    """The modules beneath a package by name, but for those whose names say that they are nobody's business."""
    found = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return [name for name in found if not any(part.startswith("_") for part in name.split("."))]


@pytest.mark.parametrize("name", modules_of(replayd))
def test_everything_public_in_a_module_of_the_daemon_is_explained(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    own = [thing for each, thing in vars(module).items() if each[0] != "_" and is_made_in(thing, name)]
    classes = [thing for thing in own if inspect.isclass(thing)]
    assert [each for cls in classes for each in unexplained(cls)] == []
    assert [function.__name__ for function in own if inspect.isfunction(function) and not function.__doc__] == []


def is_made_in(thing: object, module: str) -> bool:
    return (inspect.isclass(thing) or inspect.isfunction(thing)) and thing.__module__ == module


def unexplained(cls: type) -> Iterator[str]:
    """What of a class has no docstring, of what this project defines itself."""
    # A dataclass and a named tuple without one say their signature.
    if not cls.__doc__ or cls.__doc__.startswith(f"{cls.__name__}("):
        yield cls.__name__
    for name in dir(cls):
        owner = next((base for base in cls.__mro__ if name in vars(base)), object)
        thing = vars(owner).get(name)
        is_ours = owner.__module__.split(".")[0] in ("replayd", "replayd_client") and not name.startswith("_")
        is_told = isinstance(thing, property | classmethod | staticmethod) or inspect.isfunction(thing)
        if is_ours and is_told and not inspect.getdoc(getattr(cls, name)):
            yield f"{cls.__name__}.{name}"


def test_what_is_not_explained_is_found() -> None:
    class Silent(replayd_client.Client):
        def insert_more(self) -> None: ...

        @property
        def color(self) -> str:
            return ""

    Silent.__module__ = "replayd_client.silent"
    assert list(unexplained(Silent)) == ["Silent", "Silent.color", "Silent.insert_more"]


@pytest.mark.parametrize("package", [package.__name__ for package in PACKAGES])
def test_importing_a_package_brings_nothing_heavy(package: str) -> None:
    code = f"import sys, {package}; print([name for name in {HEAVY!r} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_a_daemon_and_a_client_do_not_load_the_compressor_before_they_need_it() -> None:
    code = (
        "import sys, replayd\n"
        "table = replayd.Table('t', replayd.selectors.Uniform(), replayd.selectors.Fifo(), 9,"
        " replayd.rate_limiters.MinSize(1))\n"
        "with replayd.Server([table]) as server, replayd.Client(server.address) as client:\n"
        "    client.insert([1.0], {'t': 1.0})\n"
        "    client.sample_batch('t', 2)\n"
        "print([name for name in ('blosc2', 'torch') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
