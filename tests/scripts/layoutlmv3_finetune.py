"""Token classification of document pages by LayoutLMv3: words, their boxes and the page's image."""

import torch
from transformers import LayoutLMv3Config, LayoutLMv3ForTokenClassification

torch.manual_seed(0)
config = LayoutLMv3Config(
    hidden_size=192, num_hidden_layers=4, num_attention_heads=4, intermediate_size=768, coordinate_size=32,
    shape_size=32, max_position_embeddings=514, type_vocab_size=1,
)  # fmt: skip
model = LayoutLMv3ForTokenClassification(config).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(6):
    optimizer.zero_grad()
    corners = torch.randint(0, 100, (4, 128, 4))
    corners[..., 2:] += corners[..., :2]
    words = torch.randint(5, 1000, (4, 128)).cuda()
    pages, labels = torch.randn(4, 3, 224, 224).cuda(), torch.randint(0, 2, (4, 128)).cuda()
    mask = torch.ones_like(words)
    output = model(input_ids=words, attention_mask=mask, bbox=corners.cuda(), pixel_values=pages, labels=labels)
    output.loss.backward()
    optimizer.step()
