"""When a line is due: after two seconds, on other work, and every half minute; never for quick commands."""

import sys
from types import ModuleType, SimpleNamespace

from forerun.cli.waiting import WaitingLines, being_imported, shown_waiting
from forerun.current_work import work


def lines_at(*moments):
    lines = WaitingLines()
    return [lines.line(words, now) for words, now in moments]


def test_quick_work_is_not_shown():
    assert lines_at(("a", 0.5), ("a", 1.9), ("b", 2.1), ("", 4.5), ("c", 4.9)) == [""] * 5


def test_long_work_is_shown_once_then_every_half_minute_and_other_work_again():
    shown = lines_at(("a", 0.2), ("a", 2.3), ("a", 4.0), ("a", 31.0), ("a", 33.0), ("b", 34.0), ("b", 36.5))
    assert shown == ["", "… a", "", "", "… a, 33 s so far", "", "… b"]


def test_the_thread_ends_with_the_body_and_says_nothing_in_time():
    shown = []
    with shown_waiting(shown.append), work("quick"):
        pass
    assert shown == []


def test_many_quick_pieces_of_work_are_not_silent_together():
    shown = lines_at(*((f"piece {n}", 1.5 * n) for n in range(1, 9)))
    assert [line for line in shown if line] == ["… piece 4", "… piece 8"]


def test_a_slow_import_is_named_while_it_lasts(monkeypatch):
    module = ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch", module)
    module.__spec__ = SimpleNamespace(_initializing=True)  # pyright: ignore[reportAttributeAccessIssue]
    assert being_imported() == "loading PyTorch"
    module.__spec__ = SimpleNamespace(_initializing=False)  # pyright: ignore[reportAttributeAccessIssue]
    assert being_imported() == ""
