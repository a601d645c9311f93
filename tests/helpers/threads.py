"""What other threads do beside a test."""

import contextlib
import threading


def in_a_thread(do, *given):
    """What it returns, or the error that it raises, in a thread of its own."""
    found = []

    def run():
        try:
            found.append(do(*given))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


@contextlib.contextmanager
def held_elsewhere(lock):
    """Inside, another thread holds a lock."""
    held, done = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(20)
    try:
        yield
    finally:
        done.set()
        thread.join()
