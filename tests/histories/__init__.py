"""What clients saw, and whether a log may behave so: record with `Recorder`, read with `History`, judge with `check`.

Only the standard library is imported, so that a client under test can be any process with a file to write to.
"""

from .checker import ANOMALIES, Report, check
from .history import History, Poll, Seen, Send, Transaction
from .recorder import Recorder

__all__ = ["ANOMALIES", "History", "Poll", "Recorder", "Report", "Seen", "Send", "Transaction", "check"]
