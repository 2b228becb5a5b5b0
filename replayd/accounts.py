"""Peers' accounts: what each has open, so that no peer leaves more unanswered than it may.

A peer with nothing open has no account. Knows neither sockets nor tables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from replayd.limits import PARKED_SAMPLES, WINDOW_BYTES, WINDOW_MESSAGES
from replayd.messages import Peer


@dataclass(slots=True)
class Account:
    """What one peer has open: inserts that are not acknowledged, the bytes of their messages, samples unanswered."""

    insert_messages: int = 0
    insert_bytes: int = 0
    samples: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether the peer has nothing open."""
        return not (self.insert_messages or self.samples)


class Accounts:
    """The accounts of all peers that have something open; `len` counts these peers."""

    def __init__(self) -> None:
        self._accounts: dict[Peer, Account] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Accounts) and self._accounts == other._accounts

    def __repr__(self) -> str:
        return repr(self._accounts)

    @property
    def samples(self) -> int:
        """Samples all peers wait for."""
        return sum(account.samples for account in self._accounts.values())

    def clear(self) -> None:
        """Nobody has anything open any more."""
        self._accounts.clear()

    def copy_of(self, peer: Peer) -> Account:
        """What a peer has open; changing it changes nothing here."""
        account = self._accounts.get(peer)
        return Account() if account is None else replace(account)

    def samples_of(self, peer: Peer) -> int:
        """Samples that a peer waits for."""
        account = self._accounts.get(peer)
        return 0 if account is None else account.samples

    def check_insert(self, peer: Peer, nbytes: int) -> None:
        """Raise LimitExceeded if one more message would leave the peer's window; one is always allowed."""
        account = self._accounts.get(peer)
        if account is not None and account.insert_messages:
            WINDOW_MESSAGES.check(account.insert_messages + 1)
            WINDOW_BYTES.check(account.insert_bytes + nbytes)

    def check_sample(self, peer: Peer) -> None:
        """Raise LimitExceeded if one more sample would leave more unanswered than a peer may have (PARKED_SAMPLES)."""
        account = self._accounts.get(peer)
        if account is not None:
            PARKED_SAMPLES.check(account.samples + 1)

    def open_insert(self, peer: Peer, nbytes: int) -> None:
        """The peer waits for the acknowledgement of a message of `nbytes` bytes."""
        account = self._accounts.get(peer)
        if account is None:
            account = self._accounts[peer] = Account()
        account.insert_messages += 1
        account.insert_bytes += nbytes

    def close_insert(self, peer: Peer, nbytes: int) -> None:
        """One that was opened with as many bytes is answered."""
        account = self._accounts[peer]
        account.insert_messages -= 1
        account.insert_bytes -= nbytes
        self._drop_if_empty(peer, account)

    def open_sample(self, peer: Peer) -> None:
        """The peer waits for one more sample."""
        self._accounts.setdefault(peer, Account()).samples += 1

    def close_sample(self, peer: Peer) -> None:
        """One of its samples is answered."""
        account = self._accounts[peer]
        account.samples -= 1
        self._drop_if_empty(peer, account)

    def _drop_if_empty(self, peer: Peer, account: Account) -> None:
        if account.is_empty:
            del self._accounts[peer]
