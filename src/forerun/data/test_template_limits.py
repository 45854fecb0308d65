import threading
import time

import pytest

from forerun.data.template_limits import limited_memory, limited_time


def test_what_never_ends_is_ended():
    def endless():
        while True:
            pass

    begin = time.process_time()
    with pytest.raises(RuntimeError, match=r"did not end within 0\.2 s"), limited_time(0.2):
        endless()
    assert time.process_time() - begin < 2
    with limited_time(0.2):  # nothing is left of the alarm
        pass
    end = time.process_time() + 0.4
    while time.process_time() < end:
        pass


def test_other_threads_are_left_alone():
    results = []

    def work():
        with limited_time(0.1):
            results.append(sum(range(1000)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [499500]


def test_memory_beyond_the_limit_is_an_error_and_later_is_none():
    with pytest.raises(MemoryError), limited_memory(2**28):
        "x" * 2**29
    assert len("x" * 2**29) == 2**29
