"""Signals: the first is noted, the second does what it always did, and nothing stays changed."""

from __future__ import annotations

import logging
import signal
import threading

import pytest

from mmspec.io.interrupts import Stopped, stop_requests


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_recorded_and_logged(number: int, caplog: pytest.LogCaptureFixture) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with caplog.at_level(logging.WARNING), stop_requests() as request:
        assert request.signal == 0
        signal.raise_signal(number)
        assert request.signal == number
    assert "a second signal stops at once" in caplog.text
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_second_signal_stops_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), stop_requests(loud=False):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the second signal was swallowed")


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_requests() as request:
            signal.raise_signal(signal.SIGINT)
            assert request.signal == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_threads_leave_signals_alone() -> None:
    found = []

    def run() -> None:
        with stop_requests() as request:
            found.append((request.signal, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(0, signal.getsignal(signal.SIGINT))]


def test_a_stopped_run_is_an_interrupt_with_a_sentence() -> None:
    stop = Stopped("step 3 is kept", signal.SIGTERM)
    assert isinstance(stop, KeyboardInterrupt) and str(stop) == "step 3 is kept" and stop.signal == 15
