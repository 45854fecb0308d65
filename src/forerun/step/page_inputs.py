"""What models of document pages read beside tokens: a box for each token, and the image of the page.

LayoutLM reads boxes; LayoutLMv3 the page too, whose patches stand behind the tokens and so lengthen each sequence. Data
of one's own are texts alone here, and such a model trains without its page: then nothing is added.
"""

import torch

from forerun.models.build import config_of
from forerun.settings.schema import Settings
from forerun.step.workload import Batch

SEES_THE_PAGE = {"layoutlm": False, "layoutlmv3": True}
"""Types that read boxes → whether they read the page as well (modeling_layoutlm.py, modeling_layoutlmv3.py, 5.24)."""


def page_inputs(settings: Settings, size: int, length: int) -> Batch:
    """Boxes (B, T, 4), and the page (B, C, H, W) where the model reads it; nothing for other models."""
    if settings.data.source is not None:
        return {}
    config = config_of(settings)
    sees = SEES_THE_PAGE.get(config.model_type)
    if sees is None:
        return {}
    boxes = {"bbox": torch.zeros(size, length, 4, dtype=torch.long)}
    side = config.input_size if sees else 0
    return {**boxes, "pixel_values": torch.zeros(size, config.num_channels, side, side)} if sees else boxes
