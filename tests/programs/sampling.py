"""Temperature, top-k and nucleus sampling with noise that is given, by the Gumbel trick."""

import numpy as np
import torch
import torch.nn.functional as F


def top_k_top_p_filtering(logits, top_k=0, top_p=0.0, filter_value=-float("Inf")):
    logits = logits.clone()
    if top_k > 0:
        indices_to_remove = logits < torch.topk(logits, top_k)[0][..., -1, None]
        logits[indices_to_remove] = filter_value
    if top_p > 0.0:
        sorted_logits, sorted_indices = torch.sort(logits, descending=True)
        cumulative_probs = torch.cumsum(F.softmax(sorted_logits, dim=-1), dim=-1)
        sorted_indices_to_remove = cumulative_probs > top_p
        sorted_indices_to_remove[..., 1:] = sorted_indices_to_remove[..., :-1].clone()
        sorted_indices_to_remove[..., 0] = 0
        indices_to_remove = sorted_indices_to_remove.scatter(-1, sorted_indices, sorted_indices_to_remove)
        logits = logits.masked_fill(indices_to_remove, filter_value)
    return logits


def run(prepare):
    rng = np.random.default_rng(64)
    table = torch.from_numpy(rng.normal(size=(10, 10)).astype(np.float32) * 2)
    token, chosen, probabilities = torch.tensor([0, 3]), [], []
    for step in range(20):
        logits = table[token] / 0.8
        logits = top_k_top_p_filtering(logits, top_k=5 if step % 2 else 0, top_p=0.9)
        probs = F.softmax(logits, dim=-1)
        uniform = torch.from_numpy(rng.random((2, 10)).astype(np.float32)).clamp(1e-6, 1 - 1e-6)
        gumbel = -torch.log(-torch.log(uniform))
        token = (torch.log(probs + 1e-20) + gumbel).argmax(dim=-1)
        chosen.append(token)
        probabilities.append(probs.max(dim=-1).values)
    return torch.stack(chosen), torch.stack(probabilities)
