"""The asyncio shell around the machines: it owns sockets, files and timers, and decides nothing that a machine could."""
