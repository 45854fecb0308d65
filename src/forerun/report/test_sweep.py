"""What a sweep shows before it starts and when it is over."""

from forerun.report.sweep import accuracy_table, plan_table
from forerun.verify.test_compare import forecast, measurement


def warned(*warnings):
    return forecast().model_copy(update={"warnings": list(warnings)})


def test_what_is_left_is_said_with_what_holds_for_all():
    variants = [("a", warned("no base yet", "only here"), "waiting"), ("b", warned("no base yet"), "finished")]
    table = plan_table(variants, 90.0, None)
    assert table.note == "Still to run: 90.0 s in all, one run after the other. no base yet"
    assert [row[-1] for row in table.rows] == ["waiting", "finished"]


def test_when_all_is_over_nothing_is_left():
    table = plan_table([("a", warned(), "finished"), ("b", warned(), "does not fit")], 0.0, 0.0)
    assert table.note == "Nothing is left to run."


def test_all_runs_are_added_up():
    one, took = forecast(), measurement()
    table = accuracy_table([("a", one, took), ("b", one, took)])
    assert len(table.rows) == 2
    share = one.run.seconds.expected / took.run.seconds - 1
    assert f"{100 * share:+.1f} %" in table.note.replace("−", "-")


def test_several_gpus_stand_side_by_side():
    other = warned().model_copy(update={"gpu": "t4"})
    table = plan_table([("a", warned(), "waiting"), ("a", other, "does not fit")], 90.0, None)
    assert table.columns[:2] == ["variant", "GPU"]
    assert [row[1] for row in table.rows] == [forecast().gpu, "t4"]
    assert "none was made" in table.note
