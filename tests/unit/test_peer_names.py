"""Names of peers: how many are remembered, and which are told."""

from __future__ import annotations

from replayd.peer_names import REMEMBERED, TOLD, UNNAMED, PeerNames


def test_names_are_told_in_the_order_of_the_peers_and_each_once() -> None:
    names = PeerNames()
    for peer, name in ((1, "actor"), (2, "actor"), (3, "learner")):
        names.greet(peer, name)
    assert names.tell([3, 1, 2, 3]) == ["learner", "actor"]
    assert names.tell([9, 8, 1]) == [UNNAMED, "actor"]
    assert names.tell([]) == []
    assert names.tell([9, 8]) == []


def test_of_many_peers_the_first_few_are_told() -> None:
    names = PeerNames()
    for peer in range(2 * TOLD):
        names.greet(peer, f"actor {peer}")
    assert names.tell(range(2 * TOLD)) == [f"actor {peer}" for peer in range(TOLD)]


def test_the_names_of_the_peers_that_said_hello_last_are_remembered() -> None:
    names = PeerNames()
    for peer in range(REMEMBERED):
        names.greet(peer, f"actor {peer}")
    names.greet(0, "actor 0 again")
    names.greet(REMEMBERED, "one more")
    assert len(names) == REMEMBERED
    assert names.tell([0, 1, REMEMBERED]) == ["actor 0 again", UNNAMED, "one more"]


def test_a_peer_that_says_hello_without_a_name_has_none() -> None:
    names = PeerNames()
    names.greet(1, "actor")
    names.greet(1, "")
    assert (len(names), names.tell([1])) == (0, [])
