"""Work of a tuning run that goes on in threads: computing, and waiting for measuring processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from autotune.codegen import POLL_SECONDS
from autotune.core import DeviceFacts
from autotune.measure import Worker


@contextmanager
def in_thread(work: Callable[[], None]) -> Iterator[Future[None]]:
    """Do some work in a thread; the exit waits for its end and raises its error."""
    with ThreadPoolExecutor(1) as executor:
        done = executor.submit(work)
        yield done
        done.result()


@contextmanager
def start_in_background(worker: Worker) -> Iterator[None]:
    """Start the measuring process in a thread; the first request to it waits for that. The exit kills the process."""
    executor = ThreadPoolExecutor(1)
    started = executor.submit(worker.start)
    try:
        yield
    finally:
        stop_until_done(executor, [started], [worker])


@contextmanager
def facts_in_background(worker: Worker) -> Iterator[Future[DeviceFacts]]:
    """Start the measuring process and measure its device in a thread.

    The exit does not wait for either: an interrupted run would last until the process has started.
    """
    executor = ThreadPoolExecutor(1)
    facts = executor.submit(worker.facts)
    try:
        yield facts
    finally:
        stop_until_done(executor, [facts], [worker])


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
