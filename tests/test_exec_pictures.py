"""What no settings file trains, as the guides of transformers train it, small, under `forerun exec`."""

import pytest
from tests.exec_runs import forecast, run

DETECTOR = """
from torch.utils.data import DataLoader
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

backbone = ResNetConfig(
    embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", out_features=["stage2"]
)
config = DetrConfig(
    use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, num_labels=5,
    d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=64, encoder_attention_heads=2,
    decoder_attention_heads=2, num_queries=10,
)
model = DetrForObjectDetection(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

def collate(rows):
    images, mask = torch.zeros(len(rows), 3, 128, 128), torch.zeros(len(rows), 128, 128, dtype=torch.long)
    labels = []
    for place, row in enumerate(rows):
        height = 128 - PADDING * (row % 2)
        images[place, :, :height] = torch.randn(3, height, 128)
        mask[place, :height] = 1
        count = 1 + row % 4
        labels.append({"class_labels": torch.randint(0, 5, (count,)), "boxes": torch.rand(count, 4) * 0.4 + 0.1})
    return {"pixel_values": images, "pixel_mask": mask, "labels": labels}

for batch in DataLoader(range(24), batch_size=4, collate_fn=collate):
    labels = [{name: value.cuda() for name, value in row.items()} for row in batch["labels"]]
    outputs = model(batch["pixel_values"].cuda(), pixel_mask=batch["pixel_mask"].cuda(), labels=labels)
    optimizer.zero_grad()
    outputs.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
"""


@pytest.mark.scripts  # transformers' loss of boxes needs Pillow
@pytest.mark.parametrize("padding", [0, 64])
def test_a_detector_matches_boxes_and_takes_the_mask_of_a_padded_batch(tmp_path, padding):
    """The matching reads costs that nobody can know, taken as zeros; whether a batch is padded is known."""
    document, program = forecast(tmp_path, f"PADDING = {padding}\n{DETECTOR}", head="import torch\n")
    assert document.run.total_steps == 6
    assert document.fits
    assert "zeros" in {each.value for each in document.assumed}
    assert not any("masking_utils" in each.line for each in document.assumed)
    calls = [call for call in program.session.recorder.trace.calls if "efficient_attention.default" in call.name]
    assert {len(call.inputs) for call in calls} == ({3, 4} if padding else {3})  # the fourth is the mask


@pytest.mark.parametrize("name", ["blip", "donut", "sam", "dbrx"])
def test_models_of_other_tasks_run_as_scripts(name):
    (document,), program = run("other_tasks.py", name)
    assert program.exit_code == 0, program.error
    assert document.run.total_steps == 5
    assert document.step.phases.backward_seconds > document.step.phases.optimizer_seconds > 0
