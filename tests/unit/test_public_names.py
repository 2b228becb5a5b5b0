"""What the two packages offer by name, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import replayd
import replayd_client
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
