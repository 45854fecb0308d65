"""The innermost work is named, also where threads end out of order."""

from forerun.current_work import current_work, work


def test_the_innermost_work_is_named_and_its_words_can_change():
    assert current_work() == ""
    with work("outer") as say:
        with work("inner"):
            assert current_work() == "inner"
        say("outer, second half")
        assert current_work() == "outer, second half"
    assert current_work() == ""


def test_work_that_ends_out_of_order_leaves_the_other():
    first, second = work("same"), work("same")
    say = first.__enter__()
    second.__enter__()
    say("first")
    second.__exit__(None, None, None)
    assert current_work() == "first"
    first.__exit__(None, None, None)
    assert current_work() == ""
