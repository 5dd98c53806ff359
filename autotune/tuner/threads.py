"""Work of a tuning run that goes on in threads: computing, and waiting for measuring processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

from autotune.codegen import POLL_SECONDS
from autotune.core import DeviceFacts
from autotune.measure import Worker


@contextmanager
def in_thread(work: Callable[[Event], None]) -> Iterator[Future[None]]:
    """Do some work in a thread; the exit waits for its end and raises its error.

    Args:
        work: Takes an event, and ends soon after that is set: the body has raised, for example by Ctrl-C.
    """
    stop = Event()
    with ThreadPoolExecutor(1) as executor:
        done = executor.submit(work, stop)
        try:
            yield done
        except BaseException:
            stop.set()
            raise
        done.result()


@contextmanager
def start_in_background(workers: Sequence[Worker]) -> Iterator[None]:
    """Start measuring processes in threads and kill them on exit. A request waits until its process has started."""
    executor = ThreadPoolExecutor(max(1, len(workers)))
    started = [executor.submit(worker.start) for worker in workers]
    try:
        yield
    finally:
        stop_until_done(executor, started, workers)


@contextmanager
def facts_in_background(workers: Sequence[Worker]) -> Iterator[list[Future[DeviceFacts]]]:
    """Start measuring processes and measure their devices in threads.

    The exit does not wait for either: an interrupted run would last until the processes have started.
    """
    executor = ThreadPoolExecutor(len(workers))
    facts = [executor.submit(worker.facts) for worker in workers]
    try:
        yield facts
    finally:
        stop_until_done(executor, facts, workers)


def stop_until_done(executor: ThreadPoolExecutor, futures: Iterable[Future[Any]], workers: Iterable[Worker]) -> None:
    """Kill measuring processes until no thread waits for them any more.

    Args:
        executor: The threads; it takes no more work.
        futures: What the threads do.
        workers: The processes, which are killed again and again: one may be between two steps of its start.
    """
    futures, workers = list(futures), list(workers)
    executor.shutdown(wait=False, cancel_futures=True)
    while not all(future.done() for future in futures):
        for worker in workers:
            worker.stop()
        time.sleep(POLL_SECONDS)
