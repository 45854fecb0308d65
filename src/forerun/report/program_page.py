"""One self-contained HTML page of a program's forecast (`forerun exec --html`): no network, no script.

Does it fit, memory over time with its peak and a flame graph of what is alive there, the step by phase with its
kernels by operator and by line, findings, assumptions, and how the program ran.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from forerun.forecasting.program_account import ProgramAccount
from forerun.memory.explain import live_at_peak
from forerun.records import MemoryBreakdown, Record
from forerun.report.charts import StackView, draw_stack, stack_view
from forerun.report.flame import draw_flame, flame_tree
from forerun.report.html import page_template, phase_bars
from forerun.report.terminal import cost_text
from forerun.units import format_bytes, format_percent, format_seconds

POINTS = 500
"""Points of the memory curve; each is the highest of its neighbours, so that no peak is lost."""
KERNELS_SHOWN = 12


class KernelRow(Record):
    """Kernels of one operator or of one line in a warm step."""

    name: str
    phase: str
    calls: int
    seconds: float
    share: float
    """Of all kernels of the step."""


def render_program_page(forecasts: Sequence[Any], account: ProgramAccount) -> str:
    """The page of a program's `ProgramForecast`s; details are of the first card."""
    first = forecasts[0]
    peak = account.memory.peak_allocated_bytes
    tree = flame_tree(live_at_peak(account.trace, account.memory), peak)
    return page_template("program.html.j2").render(
        forecast=first,
        others=forecasts if len(forecasts) > 1 else [],
        facts=program_facts(first),
        breakdown=[(name.removesuffix("_bytes"), size) for name, size in first.memory.breakdown.model_dump().items()],
        curve=Markup(_curve(account)),
        flame=Markup(draw_flame(tree, f"Memory at the peak: {format_bytes(peak)}")),
        legend=[name.removesuffix("_bytes") for name in MemoryBreakdown.model_fields],
        bars=phase_bars(first.step.phases, None),
        operators=kernels_by_operator(account),
        lines=kernels_by_line(account),
        run=script_rows(first),
        size=format_bytes,
        seconds=format_seconds,
        percent=format_percent,
        cost=cost_text,
    )


def program_facts(forecast: Any) -> list[tuple[str, str, str]]:
    """The headline numbers: name, value, and what to read it against."""
    memory, step, run = forecast.memory, forecast.step, forecast.run
    reserved = format_bytes(memory.peak_reserved_bytes)
    largest = max(forecast.cards, key=lambda card: card.device_bytes, default=None)
    whose = "" if largest is None else f" on cuda:{largest.number}, which needs most"
    facts = [
        (
            "device memory",
            format_bytes(memory.device_bytes.expected),
            f"of {format_bytes(memory.capacity_bytes)}{whose}",
        ),
        ("peak allocated", format_bytes(memory.peak_allocated_bytes), f"{reserved} reserved"),
    ]
    if step.seconds.expected:
        spread = f"{format_seconds(step.seconds.optimistic)} to {format_seconds(step.seconds.conservative)}"
        facts.append(("step", format_seconds(step.seconds.expected), spread))
        rate = step.tokens_per_second or step.samples_per_second
        unit = "tokens a second" if step.tokens_per_second else "samples a second"
        facts.append((unit, f"{rate:,.0f}", f"mfu {format_percent(step.mfu)}"))
        length = f"{run.total_steps:,} steps" + ("" if forecast.script.length_known_from else ", those seen")
        facts.append(("run", format_seconds(run.seconds.expected), length))
        facts.append(("cost", cost_text(run.cost), "at the catalogue's price" if run.cost is not None else ""))
    return facts


def memory_curve(account: ProgramAccount) -> StackView | None:
    """Live bytes by category while the program ran; None where it did nothing on the device."""
    moments = [moment for moment in account.memory.curve if moment.event < account.stop]
    if len(moments) < 2:
        return None
    stride = max(1, len(moments) // POINTS)
    groups = (moments[begin : begin + stride] for begin in range(0, len(moments), stride))
    points = [max(group, key=lambda moment: moment.total_bytes) for group in groups]
    series = [
        (name.removesuffix("_bytes"), f"layer {name.removesuffix('_bytes')}", [getattr(m.live, name) for m in points])
        for name in MemoryBreakdown.model_fields
    ]
    times = account.host_seconds
    peak = account.memory.peak_allocated_bytes
    marks = [(f"peak {format_bytes(peak)}", float(peak)), ("capacity", float(account.device.memory_bytes))]
    begins = [(f"step {number}", times[step.begin]) for number, step in enumerate(account.steps, start=1)]
    return stack_view(
        "Memory while the program ran",
        f"Live bytes by category; the peak is {format_bytes(peak)}.",
        [times[m.event] for m in points], series, marks, begins,
    )  # fmt: skip


def _curve(account: ProgramAccount) -> str:
    view = memory_curve(account)
    return "" if view is None else draw_stack(view, format_seconds, format_bytes)


def kernels_by_operator(account: ProgramAccount) -> list[KernelRow]:
    """Operators of the last step by the time of their kernels, most first."""
    return _ranked(account, lambda operator, line: operator.removeprefix("aten.").removesuffix(".default"))


def kernels_by_line(account: ProgramAccount) -> list[KernelRow]:
    """Lines of the program by the time of the kernels that they launch in the last step, most first."""
    return _ranked(account, lambda operator, line: line or "unknown line")


def _ranked(account: ProgramAccount, name_of: Callable[[str, str], str]) -> list[KernelRow]:
    trace, totals = account.trace, defaultdict(lambda: [0, 0.0])
    for span in account.steps_with_spans[-1][1] if account.steps else []:
        seconds = span.end - span.begin
        if seconds > 0:
            op = trace.ops[span.op]
            name = name_of(trace.calls[op.call].name, trace.lines.get(span.op, ""))
            total = totals[name, op.phase.value]
            total[0] += 1
            total[1] += seconds
    whole = sum(seconds for _, seconds in totals.values())
    rows = [
        KernelRow(name=name, phase=phase, calls=int(calls), seconds=seconds, share=seconds / whole)
        for (name, phase), (calls, seconds) in totals.items()
    ]
    return sorted(rows, key=lambda row: -row.seconds)[:KERNELS_SHOWN]


def _card_text(card: Any) -> str:
    fits = "fits" if card.fits else "does not fit"
    return f"{format_bytes(card.peak_allocated_bytes)} allocated, {format_bytes(card.device_bytes)} shown; {fits}"


def script_rows(forecast: Any) -> list[tuple[str, str]]:
    """How the program ran, as names and values."""
    script, warm = forecast.script, forecast.script.warm_from_step
    return [
        ("command", script.command),
        ("exit code", str(script.exit_code)),
        ("steps seen", str(script.steps_seen)),
        ("first warm step", "none" if warm is None else str(warm)),
        ("parameters", f"{forecast.parameters.total:,}, of which {forecast.parameters.trainable:,} are trained"),
        ("ranks", str(forecast.world_size)),
        *((f"GPU cuda:{card.number} of the process", _card_text(card)) for card in forecast.cards),
        ("length of the whole run", script.length_known_from or "not known: give --total-steps"),
        ("wall time of this forecast", format_seconds(script.wall_seconds)),
        ("host memory of this forecast", format_bytes(script.host_peak_bytes)),
    ]
