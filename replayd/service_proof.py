"""The proof of a service: every count again, from what holds it.

Looks into everything that a service has, and changes nothing. Tests ask for it after every step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replayd.accounts import Accounts
from replayd.streams import Ticket
from replayd.table_proof import held_chunks, held_templates, shown_chunks


def prove_service(service: Any) -> None:
    """Assertion errors tell which count is not what follows from the rest. `service` is a Service, which calls this."""
    for table in service.tables.values():
        table.validate()
    held = np.concatenate([held_chunks(table) for table in service.tables.values()])
    service.chunks.validate(held, service.streams.leased())
    service.templates.validate(np.concatenate([held_templates(table) for table in service.tables.values()]))
    service.capacity.validate([shown_chunks(table) for table in service.tables.values()])
    service.streams.validate()
    accounts = Accounts()
    tickets: dict[int, Ticket] = {}
    parked: dict[int, int] = {}
    for table in service.tables.values():
        for pending in table.pending_inserts:
            tickets[id(pending.ticket)] = pending.ticket
            parked[id(pending.ticket)] = parked.get(id(pending.ticket), 0) + len(pending)
        for request in table.pending_samples:
            assert not request.answered, "an answered request is parked"
            accounts.open_sample(request.peer)
    for request, _ in service._quotas.held:
        assert not request.answered, "an answered request is held back"
        accounts.open_sample(request.peer)
    service._quotas.validate()
    for key, ticket in tickets.items():
        assert ticket.waiting == parked[key], "a ticket waits for items that are not parked"
        for peer, _ in ticket.askers:
            accounts.open_insert(peer, ticket.nbytes)
    assert accounts == service._accounts, f"open requests {service._accounts} are not the parked ones {accounts}"
