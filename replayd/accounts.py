"""Peers' accounts: what each has open, so that no peer leaves more unanswered than it may.

A peer with nothing open has no account. Knows neither sockets nor tables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from replayd.limits import PARKED_SAMPLES, WINDOW_BYTES, WINDOW_MESSAGES
from replayd.messages import Peer


@dataclass(slots=True)
class Account:
    insert_messages: int = 0
    insert_bytes: int = 0
    samples: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.insert_messages or self.samples)


class Accounts:
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

    def copy_of(self, peer: Peer) -> Account:
        """What a peer has open; changing it changes nothing here."""
        account = self._accounts.get(peer)
        return Account() if account is None else replace(account)

    def check_insert(self, peer: Peer, nbytes: int) -> None:
        """Raise LimitExceeded if one more message would leave the peer's window; one is always allowed."""
        account = self._accounts.get(peer)
        if account is not None and account.insert_messages:
            WINDOW_MESSAGES.check(account.insert_messages + 1)
            WINDOW_BYTES.check(account.insert_bytes + nbytes)

    def check_sample(self, peer: Peer) -> None:
        account = self._accounts.get(peer)
        if account is not None:
            PARKED_SAMPLES.check(account.samples + 1)

    def open_insert(self, peer: Peer, nbytes: int) -> None:
        account = self._accounts.setdefault(peer, Account())
        account.insert_messages += 1
        account.insert_bytes += nbytes

    def close_insert(self, peer: Peer, nbytes: int) -> None:
        account = self._accounts[peer]
        account.insert_messages -= 1
        account.insert_bytes -= nbytes
        self._drop_if_empty(peer, account)

    def open_sample(self, peer: Peer) -> None:
        self._accounts.setdefault(peer, Account()).samples += 1

    def close_sample(self, peer: Peer) -> None:
        account = self._accounts[peer]
        account.samples -= 1
        self._drop_if_empty(peer, account)

    def _drop_if_empty(self, peer: Peer, account: Account) -> None:
        if account.is_empty:
            del self._accounts[peer]
