"""Hands messages on to measuring processes of the machine that it runs on.

A measuring process is driven by messages, wherever its client is (autotune/measure/worker_client.py). The relay keeps
the processes of one client, each under the name of a channel, and stops them when it is dropped: the client has ended,
or has lost its connection.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from autotune.core import DeviceKind
from autotune.measure import ChildProcess, Ended


def device_kind() -> DeviceKind:
    """Return the kind of this machine's device: of the first GPU that is visible, or of the CPU."""
    return DeviceKind.of(torch.device("cuda:0" if torch.cuda.is_available() else "cpu"))


@dataclass
class _Channel:
    """A measuring process, threads that send and that wait, and messages that overtook others on the way."""

    process: ChildProcess
    sender: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))  # a full pipe blocks it
    receiver: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    next: int = 0
    early: dict[int, object] = field(default_factory=dict)


class Relay:
    """The measuring processes of one client on this machine.

    Its methods are coroutines, so that none waits for another. Each process answers its messages in the order of their
    numbers.
    """

    def __init__(self) -> None:
        self._channels: dict[str, _Channel] = {}

    def __del__(self) -> None:
        for name in list(self._channels):
            self._end(name)

    async def ping(self) -> int:
        """Return the id of the relay's process."""
        return os.getpid()

    async def start(self, name: str, module: str, arguments: Sequence[str]) -> int | None:
        """Start a process, and return its id.

        Args:
            name: A new name for its channel.
            module: Name of the module that it runs.
            arguments: Arguments of the module.
        """
        channel = self._channels[name] = _Channel(ChildProcess(module, arguments))
        await asyncio.to_thread(channel.process.start)
        return channel.process.pid

    async def send(self, name: str, number: int, message: object) -> None:
        """Send a message to a process; the one with the number before it is sent first."""
        channel = self._channels.get(name)
        if channel is None:
            return
        channel.early[number] = message
        while channel.next in channel.early:
            channel.sender.submit(channel.process.send, channel.early.pop(channel.next))
            channel.next += 1

    async def receive(self, name: str, seconds: float) -> Any | Ended:
        """Return the next message of a process, or how it ended.

        Args:
            name: Its channel.
            seconds: Time limit, after which the process is killed.
        """
        channel = self._channels.get(name)
        if channel is None:
            return Ended("crashed", "the process was stopped")
        return await asyncio.wrap_future(channel.receiver.submit(channel.process.receive, seconds))

    async def stop(self, name: str) -> None:
        """Kill a process."""
        await asyncio.to_thread(self._end, name)

    def _end(self, name: str) -> None:
        channel = self._channels.pop(name, None)
        if channel:
            with suppress(Exception):
                channel.process.stop()
            channel.sender.shutdown(wait=False)
            channel.receiver.shutdown(wait=False)
