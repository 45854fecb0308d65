"""What the pages draw, as options of ECharts: plain data, which a test can look at."""

from collections.abc import Mapping, Sequence
from typing import Any

from forerun.units import GIB, HOUR, MILLI, format_bytes

PARTS = {
    "parameter_bytes": ("parameters", "#4269d0"), "gradient_bytes": ("gradients", "#efb118"),
    "optimizer_state_bytes": ("optimizer state", "#ff725c"), "activation_bytes": ("activations", "#3ca951"),
    "temporary_bytes": ("temporary", "#a463f2"), "other_bytes": ("other", "#9c6b4e"),
}  # fmt: skip
"""Parts of memory with their colours, which differ in lightness too."""
GREY = "#808080"
"""Of text and lines: readable on white and on black."""
PAGE = {
    "aria": {"enabled": True, "decal": {"show": False}}, "textStyle": {"color": GREY, "fontSize": 13},
    "animationDuration": 200,
}  # fmt: skip


def _axis(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "type": kind, "name": name, "nameLocation": "middle", "nameGap": 28,
        "axisLabel": {"color": GREY, "hideOverlap": True},
        "nameTextStyle": {"color": GREY}, "splitLine": {"lineStyle": {"color": GREY, "opacity": 0.25}}, **more,
    }  # fmt: skip


def memory_bar(memory: Mapping[str, Any]) -> dict[str, Any]:
    """One bar of memory by kind against the card; what is outside the parts is reserved by allocator and driver."""
    breakdown, device = memory["breakdown"], memory["device_bytes"]
    values = [(name, colour, breakdown[field] / GIB) for field, (name, colour) in PARTS.items()]
    outside = (device["expected"] - sum(breakdown.values())) / GIB
    margin = (device["conservative"] - device["expected"]) / GIB
    values += [("cache and driver", "#6cc5b0", max(0.0, outside)), ("if unlucky", "#c0c0c0", max(0.0, margin))]
    capacity = memory["capacity_bytes"] / GIB
    series: list[dict[str, Any]] = [
        {"name": name, "type": "bar", "stack": "memory", "data": [round(value, 3)], "itemStyle": {"color": colour}}
        for name, colour, value in values
    ]
    series[0]["markLine"] = {
        "symbol": "none", "data": [{"xAxis": round(capacity, 3)}], "lineStyle": {"color": "#d00", "width": 2},
        "label": {"formatter": "card", "color": GREY}, "silent": True,
    }  # fmt: skip
    return {
        **PAGE, "series": series, "tooltip": {"trigger": "item"},
        "legend": {"bottom": 0, "textStyle": {"color": GREY}, "type": "scroll"},
        "grid": {"left": 10, "right": 20, "top": 24, "bottom": 74},
        "xAxis": _axis("value", "GiB", max=round(max(capacity, device["conservative"] / GIB) * 1.05, 1)),
        "yAxis": {"type": "category", "data": [""], "axisLine": {"show": False}, "axisTick": {"show": False}},
    }  # fmt: skip


def time_and_cost(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Hours and dollars of a run on each GPU that has a price and fits; the front is joined."""
    priced = [row for row in rows if row["fits"] and row["cost"] is not None]
    points = [
        {"name": row["gpu"], "value": [float(f"{row['run_seconds'] / HOUR:.4g}"), float(f"{row['cost']:.4g}")],
         "itemStyle": {"color": "#4269d0" if row["is_on_front"] else GREY}}
        for row in priced
    ]  # fmt: skip
    front = sorted(point["value"] for point, row in zip(points, priced, strict=True) if row["is_on_front"])
    label = {"show": True, "formatter": "{b}", "position": "top", "color": GREY}
    return {
        **PAGE, "tooltip": {"trigger": "item", "formatter": "{b}: {c}"},
        "grid": {"left": 56, "right": 40, "top": 30, "bottom": 48},
        "xAxis": _axis("log", "hours"), "yAxis": _axis("log", "dollars", nameGap=40),
        "series": [
            {"type": "scatter", "data": points, "symbolSize": 12, "label": label, "labelLayout": {"hideOverlap": True}},
            {"type": "line", "data": front, "symbol": "none", "lineStyle": {"color": "#4269d0", "type": "dashed"}},
        ],
    }  # fmt: skip


def memory_over_step(timeline: Sequence[Mapping[str, Any]], capacity_bytes: int) -> dict[str, Any]:
    """Live memory by kind over one step; zooms."""
    series: list[dict[str, Any]] = [
        {"name": name, "type": "line", "stack": "memory", "symbol": "none", "areaStyle": {"color": colour},
         "lineStyle": {"width": 0}, "itemStyle": {"color": colour},
         "data": [[round(point["seconds"] / MILLI, 4), round(point["bytes"][field] / GIB, 4)] for point in timeline]}
        for field, (name, colour) in PARTS.items()
    ]  # fmt: skip
    changes = [
        later for before, later in zip(timeline, timeline[1:], strict=False) if before["phase"] != later["phase"]
    ]
    starts = [*timeline[:1], *changes]
    series[0]["markLine"] = {
        "symbol": "none", "silent": True, "lineStyle": {"color": GREY, "type": "dotted"},
        "data": [
            {"xAxis": round(point["seconds"] / MILLI, 4), "label": {"formatter": point["phase"], "color": GREY}}
            for point in starts
        ],
    }  # fmt: skip
    return {
        **PAGE, "series": series, "tooltip": {"trigger": "axis"},
        "legend": {"bottom": 0, "textStyle": {"color": GREY}, "type": "scroll"},
        "dataZoom": [{"type": "inside"}, {"type": "slider", "bottom": 30, "height": 18}],
        "grid": {"left": 50, "right": 20, "top": 40, "bottom": 96},
        "xAxis": _axis("value", "ms"), "yAxis": _axis("value", f"GiB of {format_bytes(capacity_bytes)}", nameGap=36),
    }  # fmt: skip


def loss_curves(curves: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, Any]:
    """Loss over the steps of each run."""
    return {
        **PAGE, "tooltip": {"trigger": "axis"}, "grid": {"left": 56, "right": 20, "top": 34, "bottom": 48},
        "legend": {"show": len(curves) > 1, "top": 0, "textStyle": {"color": GREY}},
        "xAxis": _axis("value", "step"), "yAxis": _axis("value", "loss", scale=True, nameGap=40),
        "series": [
            {"name": name, "type": "line", "symbol": "none", "data": [list(point) for point in points],
             "color": colour, "lineStyle": {"type": line}}
            for (name, points), colour, line in zip(
                curves.items(), ("#4269d0", "#d97706"), ("solid", "dashed"), strict=False
            )
        ],
    }  # fmt: skip


def parallel_lines(
    axes: Sequence[str], lines: Sequence[Sequence[float | str]], labels: Sequence[str]
) -> dict[str, Any]:
    """One line for each run or trial over what differs between them, coloured by the last axis; axes can be brushed."""
    parallel_axes: list[dict[str, Any]] = []
    for n, name in enumerate(axes):
        values = [line[n] for line in lines]
        numbers = [value for value in values if isinstance(value, float | int)]
        axis: dict[str, Any] = {"dim": n, "name": name.rpartition(".")[2].replace("_", " ")}
        if len(numbers) < len(values):
            axis |= {"type": "category", "data": sorted({str(value) for value in values})}
        elif 0 < min(numbers) < max(numbers) / 20:
            axis |= {"type": "log"}
        else:
            axis |= {"scale": True}
        parallel_axes.append(axis)
    last = [line[-1] for line in lines if isinstance(line[-1], float | int)]
    texts = {"color": GREY, "hideOverlap": True, "rotate": 0}
    return {
        **PAGE, "tooltip": {"trigger": "item"},
        "parallel": {
            "left": 48, "right": 90, "top": 70, "bottom": 50, "axisExpandable": len(axes) > 8,
            "parallelAxisDefault": {
                "nameTextStyle": {"color": GREY}, "nameRotate": 30, "nameTruncate": {"maxWidth": 110},
                "axisLabel": texts, "splitNumber": 3, "axisLine": {"lineStyle": {"color": GREY}},
            },
        },
        "parallelAxis": parallel_axes,
        "visualMap": {
            "show": bool(last), "type": "continuous", "dimension": len(axes) - 1, "min": min(last, default=0.0),
            "max": max(last, default=1.0), "orient": "horizontal", "bottom": 0, "left": "center", "itemHeight": 120,
            "itemWidth": 12, "precision": 3, "textStyle": {"color": GREY},
            "inRange": {"color": ["#4269d0", "#a463f2", "#ff725c"]},
        },
        "series": [{
            "type": "parallel", "lineStyle": {"width": 2, "opacity": 0.8},
            "data": [{"name": label, "value": list(line)} for label, line in zip(labels, lines, strict=True)],
        }],
    }  # fmt: skip


def importance_bars(importances: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Share of the scores' variance for each setting, the largest on top, and what idle settings stay under."""
    rows = sorted(importances, key=lambda row: row["value"])
    return {
        **PAGE, "tooltip": {"trigger": "axis"}, "legend": {"bottom": 0, "textStyle": {"color": GREY}},
        "grid": {"left": 10, "right": 20, "top": 10, "bottom": 66, "containLabel": True},
        "xAxis": _axis("value", "share of the variance", min=0),
        "yAxis": {
            "type": "category", "data": [row["name"].rpartition(".")[2].replace("_", " ") for row in rows],
            "axisLabel": {"color": GREY},
        },
        "series": [
            {"name": "share", "type": "bar", "data": [round(row["value"], 4) for row in rows], "color": "#4269d0"},
            {"name": "by chance", "type": "scatter", "symbol": "diamond", "color": "#d97706",
             "data": [[round(row["by_chance"], 4), n] for n, row in enumerate(rows)]},
        ],
    }  # fmt: skip
