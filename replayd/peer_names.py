"""What peers call themselves, for people who ask who waits. Decides nothing: a name is not proven by anything."""

from __future__ import annotations

from collections.abc import Iterable

from replayd.messages import Peer

REMEMBERED = 4096
"""Peers whose names are remembered, the last to have said hello: more than a lab has clients, in half a MB."""
TOLD = 4
"""Names that are told of one side that waits: enough to know where to look, and one line."""
UNNAMED = "unnamed"


class PeerNames:
    """Names by peer, of those who said hello last."""

    def __init__(self) -> None:
        self._names: dict[Peer, str] = {}

    def __len__(self) -> int:
        return len(self._names)

    def greet(self, peer: Peer, name: str) -> None:
        """Remember how a peer calls itself; one that gives no name is forgotten."""
        self._names.pop(peer, None)
        if not name:
            return
        if len(self._names) == REMEMBERED:
            del self._names[next(iter(self._names))]
        self._names[peer] = name

    def tell(self, peers: Iterable[Peer]) -> list[str]:
        """The names of the first peers, each once, in their order; none if nobody gave one."""
        told: dict[str, None] = {}
        for peer in peers:
            told.setdefault(self._names.get(peer, UNNAMED))
            if len(told) == TOLD:
                break
        return [] if list(told) == [UNNAMED] else list(told)
