"""Demos that really happen: each starts brokers in this process, tells what it does, shows the state and proves what it says.

A demo is a module with `async def play(stage: Stage) -> None`. It must end by itself within a minute.
"""
