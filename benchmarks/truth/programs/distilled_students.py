"""A frozen BERT teaches a DistilBERT of half the depth masked words: three losses, float16 with a gradient scaler."""

import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForMaskedLM, DistilBertConfig, DistilBertForMaskedLM

teacher = BertForMaskedLM(BertConfig()).cuda().eval()
teacher.requires_grad_(False)
student = DistilBertForMaskedLM(DistilBertConfig()).cuda().train()
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4, eps=1e-6)
scaler, temperature = torch.amp.GradScaler("cuda"), 2.0
for _ in range(8):
    ids = torch.randint(1000, 30000, (32, 256)).cuda()
    chosen = torch.rand(32, 256, device="cuda") < 0.15
    labels, masked = ids.masked_fill(~chosen, -100), ids.masked_fill(chosen, 103)
    with torch.autocast("cuda", dtype=torch.float16):
        with torch.no_grad():
            known = teacher(input_ids=masked, output_hidden_states=True)
        ours = student(input_ids=masked, output_hidden_states=True)
        soft = F.kl_div(
            F.log_softmax(ours.logits.float() / temperature, -1).flatten(0, 1),
            F.softmax(known.logits.float() / temperature, -1).flatten(0, 1),
            reduction="batchmean",
        )
        hard = F.cross_entropy(ours.logits.flatten(0, 1), labels.flatten())
        cosine = 1 - F.cosine_similarity(ours.hidden_states[-1], known.hidden_states[-1], dim=-1).mean()
        loss = 5 * soft * temperature**2 + 2 * hard + cosine
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(student.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
