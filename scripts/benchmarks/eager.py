"""The same model in plain PyTorch, one operation after the other: what the engine is measured against."""

import torch
from torch import Tensor
from torch.nn import functional as F

from graphslice.batch import GraphBatch
from graphslice.nn import GraphTransformer
from graphslice.ops import path_bias, read_out

MIXERS = ("softmax", "slice-ascend", "slice-quantile")


def standardised(model: GraphTransformer, batch: GraphBatch) -> Tensor:
    """What ``model.standardised(batch)`` computes, for one of :data:`MIXERS`.

    As the published code does it: the bias is copied for every layer, every layer takes its
    softmax, and sorts with :func:`torch.sort`.
    """
    config = model.config

    def dropout(x: Tensor, p: float) -> Tensor:
        return F.dropout(x, p, model.training)

    x = dropout(model.atoms(batch), config.input_dropout)
    size, width, channels = x.shape
    lengths = batch.row_lengths
    valid = torch.arange(width, device=x.device) < lengths[:, None]
    with torch.autocast(x.device.type, enabled=False):  # as PairEncoder.forward does
        values = model.pairs.path_values(batch)
    bias = path_bias.reference(values, batch.path_types, lengths)

    def layer_norm(x: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
        return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    def by_head(x: Tensor) -> Tensor:
        return x.view(size, width, config.heads, -1).transpose(1, 2)

    for block in model.blocks:
        normed, mixer = layer_norm(x, block.mixer_norm), block.mixer
        scores = bias.clone()
        if config.mixer == "softmax":
            scores = (
                scores
                + by_head(mixer.query(normed))
                @ by_head(mixer.key(normed)).transpose(2, 3)
                * (channels / config.heads) ** -0.5
            )
        attn_weights = torch.softmax(scores.masked_fill(~valid[:, None, None], -torch.inf), dim=-1)
        mixed = dropout(attn_weights, config.attention_dropout) @ by_head(mixer.value(normed))
        mixed = mixed.transpose(1, 2).reshape(size, width, channels)
        if config.mixer == "slice-ascend":
            mixed = torch.sort(mixed.masked_fill(~valid[:, :, None], torch.inf), dim=1).values
            mixed = mixed.masked_fill(~valid[:, :, None], 0)
        if config.mixer == "slice-quantile":
            maxima = mixed.masked_fill(~valid[:, :, None], -torch.inf).amax(dim=1, keepdim=True)
            mixed = torch.where(mixer.local_channels, mixed, maxima)
        x = x + dropout(mixer.output(mixed), config.dropout)
        hidden = F.gelu(block.ffn.expand(layer_norm(x, block.ffn_norm)))
        x = x + dropout(block.ffn.contract(hidden), config.dropout)
    return model.head(read_out.reference(layer_norm(x, model.norm), lengths, model.readouts))
