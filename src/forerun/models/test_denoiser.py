"""Denoisers by name: parameters as published, configurations as diffusers saves them, and what is refused."""

import importlib
import json
from importlib.util import find_spec

import pytest
import torch

import forerun
from forerun.errors import UnknownModel
from forerun.models.build import build_model
from forerun.models.catalogue import model_config
from forerun.models.rows import DIFFUSERS, architecture, architectures

needs_diffusers = pytest.mark.skipif(find_spec(DIFFUSERS) is None, reason="diffusers is not installed")
ROWS = [row for row in architectures() if row.model_type == DIFFUSERS]
TINY = {
    "_class_name": "UNet2DConditionModel", "_diffusers_version": "0.42.1", "sample_size": 16, "layers_per_block": 1,
    "block_out_channels": [32, 64], "cross_attention_dim": 32, "attention_head_dim": 8,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"], "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
}  # fmt: skip


def settings(name, **sections):
    return {"name": "d", "workload": "text-to-image", "model": {"name": name}, "data": {"examples": 8}, **sections}


@pytest.mark.scripts
@pytest.mark.literature
@needs_diffusers
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_builds_to_its_parameters(row):
    with torch.device("meta"):
        model = build_model(model_config(row.name, {}, "auto"), "text-to-image")
    assert sum(p.numel() for p in model.parameters()) == row.parameters


@pytest.mark.literature
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("sd15", 859_520_964), ("sd-1.5", 859_520_964), ("stable-diffusion-v1-5/stable-diffusion-v1-5", 859_520_964),
        ("sd2.1", 865_910_724), ("sdxl", 2_567_463_684), ("stabilityai/stable-diffusion-xl-base-1.0", 2_567_463_684),
        ("sd3-medium", 2_028_328_000), ("sd3.5-medium", 2_243_171_520), ("flux-dev", 11_901_408_320),
        ("black-forest-labs/FLUX.1-dev", 11_901_408_320), ("pixart-sigma", 610_856_096),
    ],
)  # fmt: skip
def test_names_as_people_type_them_are_the_published_models(name, count):
    """Counts as published: see the rows' sources."""
    assert architecture(name).parameters == count


@pytest.mark.literature
@pytest.mark.parametrize(
    ("name", "billions"), [("sd3.5-medium", 2.5), ("sd3.5-large", 8.1)]
)  # announced with the table of places, which is a buffer here
def test_with_its_table_of_places_a_model_has_the_announced_size(name, billions):
    row = architecture(name)
    table = row.config["pos_embed_max_size"] ** 2 * row.config["caption_projection_dim"]
    assert (row.parameters + table) / 1e9 == pytest.approx(billions, abs=0.05)


def test_a_name_without_its_version_is_several():
    with pytest.raises(UnknownModel, match="can be several models: flux.1-dev .* flux.1-schnell"):
        architecture("flux")


def test_diffusers_that_is_not_there_is_named_with_what_installs_it(monkeypatch):
    from forerun.models import denoiser  # before imports fail

    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UnknownModel, match="No module named 'diffusers'.*pip install diffusers"):
        denoiser.denoiser_config(architecture("sdxl").fields)


@pytest.mark.scripts
@needs_diffusers
@pytest.mark.parametrize("place", ["", "unet"])
def test_a_folder_that_diffusers_saved_is_a_model(tmp_path, place):
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "config.json").write_text(json.dumps(TINY))
    config = model_config(str(tmp_path), {"layers_per_block": 2}, "auto")
    assert (config.cross_attention_dim, config.layers_per_block, config.image_size) == (32, 2, 128)
    assert forerun.forecast(settings(str(tmp_path)), gpu="t4").fits


@pytest.mark.scripts
@needs_diffusers
def test_another_class_of_diffusers_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "SanaTransformer2DModel"}))
    with pytest.raises(UnknownModel, match="denoisers known here are .*; found 'SanaTransformer2DModel' in"):
        model_config(str(tmp_path), {}, "auto")


@pytest.mark.scripts
@needs_diffusers
def test_a_class_that_an_old_diffusers_lacks_is_refused(monkeypatch):
    import diffusers

    from forerun.models.denoiser import class_of

    monkeypatch.setattr(diffusers, "PixArtTransformer2DModel", None)
    with pytest.raises(UnknownModel, match="does not have. Install a newer one"):
        class_of("PixArtTransformer2DModel")
