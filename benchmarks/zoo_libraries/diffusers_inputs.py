"""Options and inputs of classes of diffusers whose parameters' names do not tell their shapes.

Sizes are small, of our own choice; what belongs together follows the signature of each `forward` (diffusers 0.39).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, randn

Inputs = dict[str, Any]
Own = tuple[dict[str, Any], Callable[[], Inputs]]
"""Options of a class, and what makes the arguments of its `forward`."""
TWO_STAGES = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 32}


def _time() -> Tensor:
    return torch.tensor([5])


def _words(width: int, length: int = 8) -> Tensor:
    return randn(1, length, width)


def _mask(length: int = 8) -> Tensor:
    return torch.ones(1, length)


def _latents(*shape: int, **more: Any) -> Inputs:
    """A noisy sample, its time and the embedding of a text."""
    return {"hidden_states": randn(1, *shape), "timestep": _time(), "encoder_hidden_states": _words(32), **more}


def _control(sample: Tensor) -> Inputs:
    return {"hidden_states": sample, "controlnet_cond": sample.clone(), "timestep": _time()}


def _heads(number: int, width: int, name: str = "num_attention_heads") -> dict[str, int]:
    return {name: number, "attention_head_dim": width}


OWN: dict[str, Own] = {
    "AllegroTransformer3DModel": (
        {**_heads(2, 96), "in_channels": 4, "num_layers": 1, "cross_attention_dim": 192, "caption_channels": 32,
         "sample_height": 8, "sample_width": 8, "sample_frames": 2},
        lambda: _latents(4, 2, 8, 8, attention_mask=torch.ones(1, 2, 8, 8), encoder_attention_mask=_mask(),
                         image_rotary_emb=(((torch.ones(32, 32), torch.ones(32, 32)),) * 3,
                                           (torch.zeros(1, 32, dtype=torch.long),) * 3)),
    ),
    "AutoencoderDC": (
        {"encoder_block_out_channels": (32, 64), "decoder_block_out_channels": (32, 64), "latent_channels": 4,
         "encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1),
         "encoder_block_types": ("ResBlock", "EfficientViTBlock"), "encoder_qkv_multiscales": ((), (5,)),
         "decoder_block_types": ("ResBlock", "EfficientViTBlock"), "decoder_qkv_multiscales": ((), (5,))},
        lambda: {"sample": randn(1, 3, 32, 32)},
    ),
    "CogVideoXTransformer3DModel": (
        {**_heads(2, 32), "in_channels": 4, "out_channels": 4, "num_layers": 2, "text_embed_dim": 32,
         "sample_width": 8, "sample_height": 8, "sample_frames": 5, "max_text_seq_length": 8},
        lambda: _latents(2, 4, 8, 8),
    ),
    "CogView4Transformer2DModel": (
        {**_heads(2, 40), "in_channels": 4, "out_channels": 4, "num_layers": 2, "text_embed_dim": 32},
        lambda: _latents(4, 16, 16, **{name: torch.tensor([[16.0, 16.0]])
                                       for name in ("original_size", "target_size", "crop_coords")}),
    ),
    "CogView3PlusTransformer2DModel": (
        {**_heads(2, 40), "in_channels": 4, "num_layers": 2, "text_embed_dim": 32},
        lambda: _latents(4, 16, 16, **{name: torch.tensor([[16.0, 16.0]])
                                       for name in ("original_size", "target_size", "crop_coords")}),
    ),
    "ConsisIDTransformer3DModel": (
        {**_heads(2, 32), "in_channels": 4, "out_channels": 4, "num_layers": 2, "text_embed_dim": 32,
         "sample_width": 8, "sample_height": 8, "sample_frames": 5, "max_text_seq_length": 8},
        lambda: _latents(2, 4, 8, 8),
    ),
    "CosmosTransformer3DModel": (
        {**_heads(2, 32), "in_channels": 4, "out_channels": 4, "num_layers": 2, "text_embed_dim": 32,
         "max_size": (4, 16, 16), "adaln_lora_dim": 16},
        lambda: _latents(4, 2, 16, 16, padding_mask=torch.zeros(1, 1, 16, 16)),
    ),
    "Flux2Transformer2DModel": (
        {**_heads(2, 128), "in_channels": 16, "num_layers": 1, "num_single_layers": 1, "joint_attention_dim": 32},
        lambda: _latents(64, 16, img_ids=torch.zeros(64, 4), txt_ids=torch.zeros(8, 4), guidance=torch.ones(1)),
    ),
    "FluxControlNetModel": (
        {**_heads(2, 128), "in_channels": 16, "num_layers": 1, "num_single_layers": 1, "joint_attention_dim": 32,
         "pooled_projection_dim": 32},
        lambda: {**_control(randn(1, 64, 16)), "encoder_hidden_states": _words(32), "pooled_projections": randn(1, 32),
                 "img_ids": torch.zeros(64, 3), "txt_ids": torch.zeros(8, 3)},
    ),
    "HunyuanDiT2DModel": (
        {**_heads(2, 32), "in_channels": 4, "patch_size": 2, "sample_size": 16, "hidden_size": 64, "num_layers": 2,
         "cross_attention_dim": 32, "cross_attention_dim_t5": 32, "pooled_projection_dim": 32, "text_len": 8,
         "text_len_t5": 8, "use_style_cond_and_image_meta_size": False},
        lambda: _latents(4, 16, 16, text_embedding_mask=_mask(), encoder_hidden_states_t5=_words(32),
                         text_embedding_mask_t5=_mask(), timestep=torch.ones(1),
                         image_rotary_emb=(torch.ones(64, 32), torch.zeros(64, 32))),
    ),
    "LTXVideoTransformer3DModel": (
        {**_heads(2, 32), "in_channels": 8, "out_channels": 8, "cross_attention_dim": 64, "num_layers": 2,
         "caption_channels": 32},
        lambda: _latents(32, 8, encoder_attention_mask=_mask(), num_frames=2, height=4, width=4,
                         rope_interpolation_scale=(1.0, 1.0, 1.0)),
    ),
    "LatteTransformer3DModel": (
        {**_heads(2, 32), "in_channels": 4, "out_channels": 8, "num_layers": 2, "patch_size": 2, "sample_size": 16,
         "norm_type": "ada_norm_single", "num_embeds_ada_norm": 1000, "cross_attention_dim": 64,
         "caption_channels": 32, "video_length": 4},
        lambda: _latents(4, 4, 16, 16),
    ),
    "Lumina2Transformer2DModel": (
        {"sample_size": 16, "in_channels": 4, "hidden_size": 96, "num_layers": 2, "num_attention_heads": 3,
         "num_kv_heads": 1, "axes_dim_rope": (8, 12, 12), "cap_feat_dim": 32},
        lambda: _latents(4, 16, 16, encoder_attention_mask=_mask().bool()),
    ),
    "PixArtTransformer2DModel": (
        {**_heads(2, 32), "num_layers": 2, "cross_attention_dim": 64, "caption_channels": 32, "sample_size": 16},
        lambda: _latents(4, 16, 16, added_cond_kwargs={"resolution": None, "aspect_ratio": None}),
    ),
    "PriorTransformer": (
        {**_heads(2, 32), "num_layers": 2, "embedding_dim": 32, "num_embeddings": 8},
        lambda: {"hidden_states": randn(1, 32), "timestep": _time(), "proj_embedding": randn(1, 32),
                 "encoder_hidden_states": _words(32)},
    ),
    "QwenImageTransformer2DModel": (
        {**_heads(2, 128), "in_channels": 16, "out_channels": 4, "num_layers": 2, "joint_attention_dim": 32},
        lambda: _latents(64, 16, encoder_hidden_states_mask=_mask(), img_shapes=[[(1, 8, 8)]]),
    ),
    "SD3ControlNetModel": (
        {**_heads(2, 32), "sample_size": 16, "in_channels": 4, "num_layers": 2, "joint_attention_dim": 32,
         "caption_projection_dim": 64, "pooled_projection_dim": 32, "out_channels": 4},
        lambda: {**_control(randn(1, 4, 16, 16)), "encoder_hidden_states": _words(32),
                 "pooled_projections": randn(1, 32)},
    ),
    "SanaTransformer2DModel": (
        {**_heads(2, 32), "in_channels": 4, "out_channels": 4, "num_layers": 2, "num_cross_attention_heads": 2,
         "cross_attention_head_dim": 32, "cross_attention_dim": 64, "caption_channels": 32, "sample_size": 16},
        lambda: _latents(4, 16, 16),
    ),
    "SanaVideoTransformer3DModel": (
        {**_heads(2, 24), "in_channels": 4, "out_channels": 4, "num_layers": 2, "num_cross_attention_heads": 2,
         "cross_attention_head_dim": 24, "cross_attention_dim": 48, "caption_channels": 32, "sample_size": 16},
        lambda: _latents(4, 2, 16, 16),
    ),
    "StableAudioDiTModel": (
        {**_heads(2, 32), "in_channels": 4, "out_channels": 4, "num_layers": 2, "num_key_value_attention_heads": 1,
         "cross_attention_dim": 32, "cross_attention_input_dim": 32, "global_states_input_dim": 32},
        lambda: _latents(4, 64, global_hidden_states=randn(1, 1, 32),
                         rotary_embedding=(torch.ones(65, 16), torch.zeros(65, 16))),
    ),
    "Transformer2DModel": (
        {**_heads(2, 32), "in_channels": 32, "num_layers": 2, "cross_attention_dim": 32},
        lambda: {"hidden_states": randn(1, 32, 16, 16), "encoder_hidden_states": _words(32)},
    ),
    "TransformerTemporalModel": (
        {**_heads(2, 32), "in_channels": 32, "num_layers": 2},
        lambda: {"hidden_states": randn(4, 32, 8, 8), "num_frames": 4},
    ),
    "UNet1DModel": (
        {"block_out_channels": (32, 64), "in_channels": 14, "out_channels": 14, "norm_num_groups": 8, "act_fn": "swish",
         "down_block_types": ("DownResnetBlock1D",) * 2, "up_block_types": ("UpResnetBlock1D",),
         "mid_block_type": "MidResTemporalBlock1D", "out_block_type": "OutConv1DBlock", "layers_per_block": 1,
         "time_embedding_type": "positional", "use_timestep_embedding": True, "freq_shift": 1.0},
        lambda: {"sample": randn(1, 14, 64), "timestep": _time()},
    ),
    "UNet3DConditionModel": (
        {**TWO_STAGES, "cross_attention_dim": 32, "attention_head_dim": 16,
         "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
         "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D")},
        lambda: {"sample": randn(1, 4, 2, 16, 16), "timestep": _time(), "encoder_hidden_states": _words(32)},
    ),
    "UNetMotionModel": (
        {**TWO_STAGES, "cross_attention_dim": 32, "num_attention_heads": 2,
         "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
         "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion")},
        lambda: {"sample": randn(1, 4, 2, 16, 16), "timestep": _time(), "encoder_hidden_states": randn(2, 8, 32)},
    ),
    "UNetSpatioTemporalConditionModel": (
        {"block_out_channels": (32, 64), "layers_per_block": 1, "cross_attention_dim": 32, "num_attention_heads": 2,
         "num_frames": 2, "addition_time_embed_dim": 32, "projection_class_embeddings_input_dim": 96,
         "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
         "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal")},
        lambda: {"sample": randn(1, 2, 8, 16, 16), "timestep": _time(), "encoder_hidden_states": _words(32, 1),
                 "added_time_ids": torch.ones(1, 3)},
    ),
    "UVit2DModel": (
        {"hidden_size": 64, "cond_embed_dim": 32, "encoder_hidden_size": 32, "in_channels": 32, "vocab_size": 100,
         "codebook_size": 99, "block_out_channels": 32, "num_res_blocks": 1, "block_num_heads": 2,
         "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "micro_cond_encode_dim": 32,
         "micro_cond_embed_dim": 160, "sample_size": 8},
        lambda: {"input_ids": torch.randint(0, 90, (1, 8, 8)), "encoder_hidden_states": _words(32),
                 "pooled_text_emb": randn(1, 32), "micro_conds": torch.ones(1, 5)},
    ),
    "WanVACETransformer3DModel": (
        {**_heads(2, 32), "in_channels": 4, "out_channels": 4, "text_dim": 32, "freq_dim": 32, "ffn_dim": 64,
         "num_layers": 2, "vace_layers": [0], "vace_in_channels": 12, "cross_attn_norm": True},
        lambda: _latents(4, 2, 16, 16, control_hidden_states=randn(1, 12, 2, 16, 16)),
    ),
    "ZImageTransformer2DModel": (
        {"in_channels": 4, "dim": 128, "n_layers": 2, "n_refiner_layers": 1, "n_heads": 1, "n_kv_heads": 1,
         "cap_feat_dim": 32},
        lambda: {"x": [randn(4, 1, 16, 16)], "t": torch.ones(1), "cap_feats": [randn(8, 32)]},
    ),
}  # fmt: skip
