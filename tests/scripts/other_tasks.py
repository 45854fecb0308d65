"""Small models of tasks that no settings file trains, from their configurations: `python other_tasks.py blip`."""

import sys

import torch
from transformers import (
    BlipConfig,
    BlipForConditionalGeneration,
    DbrxConfig,
    DbrxForCausalLM,
    DonutSwinConfig,
    MBartConfig,
    SamConfig,
    SamMaskDecoderConfig,
    SamModel,
    SamPromptEncoderConfig,
    SamVisionConfig,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
)

ROWS, STEPS = 4, 5
device = "cuda" if torch.cuda.is_available() else "cpu"


def blip():
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {"vocab_size": 1000, "encoder_hidden_size": 64, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
    vision = {"image_size": 64, "patch_size": 16}
    config = BlipConfig(text_config={**size, **text, "pad_token_id": 0}, vision_config={**size, **vision})
    ids = torch.randint(5, 1000, (ROWS, 24))
    return BlipForConditionalGeneration(config), {
        "pixel_values": torch.randn(ROWS, 3, 64, 64),
        "input_ids": ids,
        "labels": ids,
    }


def donut():
    encoder = DonutSwinConfig(
        image_size=[64, 48], patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    decoder = MBartConfig(
        vocab_size=1000, d_model=32, decoder_layers=2, decoder_ffn_dim=64, decoder_attention_heads=4,
        max_position_embeddings=64, is_decoder=True, add_cross_attention=True,
    )  # fmt: skip
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 2, 1
    labels = torch.randint(5, 1000, (ROWS, 32))
    labels[:, 24:] = -100
    return VisionEncoderDecoderModel(config), {"pixel_values": torch.randn(ROWS, 3, 64, 48), "labels": labels}


def sam():
    vision = SamVisionConfig(
        hidden_size=64, output_channels=32, num_hidden_layers=2, num_attention_heads=2, image_size=128, patch_size=16,
        mlp_dim=128, window_size=4, global_attn_indexes=[1], num_pos_feats=16,
    )  # fmt: skip
    prompt = SamPromptEncoderConfig(hidden_size=32, image_size=128, patch_size=16, mask_input_channels=4)
    mask = SamMaskDecoderConfig(
        hidden_size=32, mlp_dim=64, num_hidden_layers=2, num_attention_heads=4, attention_downsample_rate=2,
        iou_head_hidden_dim=32,
    )  # fmt: skip
    model = SamModel(SamConfig(vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=mask))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("mask_decoder"))
    boxes = torch.tensor([[[10.0, 10.0, 90.0, 100.0]]]).repeat(ROWS, 1, 1)
    return model, {"pixel_values": torch.randn(ROWS, 3, 128, 128), "input_boxes": boxes, "multimask_output": False}


def dbrx():
    attention = {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 500000.0}
    experts = {"ffn_hidden_size": 128, "moe_num_experts": 8, "moe_top_k": 2}
    config = DbrxConfig(
        d_model=64, n_heads=4, n_layers=2, max_seq_len=256, vocab_size=1000, attn_config=attention, ffn_config=experts
    )
    ids = torch.randint(0, 1000, (ROWS, 128))
    return DbrxForCausalLM(config), {"input_ids": ids, "labels": ids}


model, batch = {"blip": blip, "donut": donut, "sam": sam, "dbrx": dbrx}[sys.argv[1]]()
model.to(device).train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
for _ in range(STEPS):
    inputs = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    outputs = model(**inputs)
    if sys.argv[1] == "sam":
        target = torch.randint(0, 2, outputs.pred_masks.shape).float().to(device)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs.pred_masks, target)
    else:
        loss = outputs.loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
