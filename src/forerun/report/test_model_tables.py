import io

from rich.console import Console

from forerun.models.footprint import Footprint, LeastCard, ModelDescription, ModelShape, TrainingOption
from forerun.models.rows import architectures
from forerun.report.model_tables import model_view, models_table

WIDTH = 80
DESCRIPTION = ModelDescription(
    name="m", family="llama", hub_ids=("a/m",), parameters=8_030_261_248, parameters_of="causal-lm", source="a paper",
    licence=None, shape=ModelShape(layers=32, hidden=4096),
    footprint=Footprint(weights_bf16_bytes=16, weights_nf4_bytes=5, full_training_bytes=128),
    coarse=(LeastCard(what="weights in bf16", needs_bytes=16 * 2**30, cards={"consumer": "rtx-5060-ti-16gb"}),),
    options=(
        TrainingOption(way="LoRA", gpu="rtx-3090", fits=True, device_bytes=2**34, capacity_bytes=2**35, step_seconds=1.0),
        TrainingOption(way="QLoRA", gpu="gtx-1660", refusal="No dense peak for float16."),
    ),
)  # fmt: skip


def render(view: object) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=WIDTH, color_system=None).print(view)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_the_list_has_a_line_for_each_model_at_80_columns():
    rows = [row for row in architectures() if not row.is_tiny]
    lines = render(models_table(rows))
    names = [line.split()[0] for line in lines[2:] if line and line[0] != " "]  # a long id folds onto a second line
    assert names[: len(rows)] == [row.name for row in rows]
    assert max(map(len, lines)) <= WIDTH


def test_a_model_is_shown_with_what_is_coarse_and_what_is_forecast():
    text = " ".join(" ".join(render(model_view(DESCRIPTION))).split())
    for part in ("8,030,261,248 (8.03B", "layers 32, hidden 4,096", "not recorded", "rtx-5060-ti-16gb", "none",
                 "Coarse: weights", "16.0 GiB / 32.0 GiB", "yes", "No dense peak for float16."):  # fmt: skip
        assert part in text, part
