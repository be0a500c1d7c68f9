"""The one shape of the coordinating machines: metadata controller, group coordinator, transaction coordinator.

A machine is a plain value without I/O, clock, randomness or asyncio. It has two kinds of method:

- `decide(request, context) -> Decision` reads state and changes nothing;
- `apply(record, …)` alone changes state and cannot fail. Live requests, followers and recovery all go through it.

What the shell does with a `Decision`, in this order:

1. append `records` to the machine's log, as one atomic batch; if that fails, drop the decision and answer with the error;
2. `apply` each record, then each change;
3. set the timers;
4. once the records are committed, carry out the effects, then send the replies. A decision without records does so once
   everything applied before it is committed, because it may have read what is not yet committed.

Losing leadership means dropping the machine and loading it again from the log; changes are lost with it, by design.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

Record = TypeVar("Record")
Change = TypeVar("Change")

# Who waits for a reply: made by the shell, opaque to the machine, which may keep it and answer in a later decision.
Ticket = int


# Named tuples, not frozen dataclasses: several are made for every request, in a third of the time.


class Timer(NamedTuple):
    """Call `decide` with this key's time-out after `delay_ms`. Setting a key again replaces it; None cancels it.

    With `if_absent` a timer of this key that runs already is left alone.
    """

    key: Any
    delay_ms: int | None
    if_absent: bool = False


class Reply(NamedTuple):
    ticket: Ticket
    message: Any


class Decision(NamedTuple, Generic[Record, Change]):
    records: tuple[Record, ...] = ()  # durable: appended, applied, replicated
    changes: tuple[Change, ...] = ()  # volatile: applied only (a member that waits for a rebalance, say)
    replies: tuple[Reply, ...] = ()
    timers: tuple[Timer, ...] = ()
    effects: tuple[Any, ...] = ()  # what the shell itself must do once committed (transaction markers to send, say)
