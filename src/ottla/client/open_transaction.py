"""A transaction without its producer: what `Producer.detach_transaction` gives and `Admin.end_transaction` takes."""

from __future__ import annotations

from dataclasses import dataclass

END_TXN_1 = 4  # the last version of EndTxn for transactions of version 1 (KIP-890)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that its producer has left for somebody else to end (`Admin.end_transaction`)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_empty: bool  # nothing was sent: there is nothing to end
