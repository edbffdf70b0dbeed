"""BERT as a module of PyTorch's own layers, whose state_dict has the names and shapes of Hugging
Face's BertForMaskedLM, or BertForPreTraining, with the output tied to the table of tokens."""

import torch
import torch.nn.functional as F
from torch import nn

# Layers, channels, heads.
SIZES = {"bert_tiny": (2, 128, 2), "bert_base": (12, 768, 12), "bert_large": (24, 1024, 16)}


def group(**modules):
    return nn.ModuleDict(modules)


class Bert(nn.Module):
    def __init__(self, name, vocabulary, positions=512, next_sentence=False):
        super().__init__()
        layers, channels, self.heads = SIZES[name]

        def norm():
            return nn.LayerNorm(channels, eps=1e-12)

        def dense(inputs=channels, outputs=channels):
            return nn.Linear(inputs, outputs)

        def block():
            attention = {"self": group(query=dense(), key=dense(), value=dense()),
                         "output": group(dense=dense(), LayerNorm=norm())}
            return group(attention=nn.ModuleDict(attention),
                         intermediate=group(dense=dense(channels, 4 * channels)),
                         output=group(dense=dense(4 * channels, channels), LayerNorm=norm()))

        embeddings = group(word_embeddings=nn.Embedding(vocabulary, channels),
                           position_embeddings=nn.Embedding(positions, channels),
                           token_type_embeddings=nn.Embedding(2, channels), LayerNorm=norm())
        self.bert = group(embeddings=embeddings,
                          encoder=group(layer=nn.ModuleList(block() for _ in range(layers))))
        predictions = group(transform=group(dense=dense(), LayerNorm=norm()))
        predictions.register_parameter("bias", nn.Parameter(torch.zeros(vocabulary)))
        self.cls = group(predictions=predictions)
        self.next_sentence = next_sentence
        if next_sentence:
            self.bert["pooler"] = group(dense=dense())
            self.cls["seq_relationship"] = dense(channels, 2)

    def attention(self, layer, x, mask):
        batch, positions, channels = x.shape
        query, key, value = (layer["self"][which](x).view(batch, positions, self.heads, -1).transpose(1, 2)
                             for which in ("query", "key", "value"))
        scores = query @ key.transpose(2, 3) / (channels // self.heads) ** 0.5
        weights = F.softmax(scores.masked_fill(~mask[:, None, None, :], float("-inf")), 3)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, positions, channels)
        return layer["output"]["LayerNorm"](layer["output"]["dense"](mixed) + x)

    def forward(self, tokens, segments, mask):
        """Logits of every position, and of the second objective or None."""
        tables = self.bert["embeddings"]
        x = tables["word_embeddings"](tokens) + tables["token_type_embeddings"](segments)
        x = tables["LayerNorm"](x + tables["position_embeddings"].weight[:tokens.shape[1]])
        for layer in self.bert["encoder"]["layer"]:
            x = self.attention(layer["attention"], x, mask)
            inner = F.gelu(layer["intermediate"]["dense"](x))
            x = layer["output"]["LayerNorm"](layer["output"]["dense"](inner) + x)
        side = None
        if self.next_sentence:
            side = self.cls["seq_relationship"](torch.tanh(self.bert["pooler"]["dense"](x[:, 0])))
        predictions = self.cls["predictions"]
        x = predictions["transform"]["LayerNorm"](F.gelu(predictions["transform"]["dense"](x)))
        return F.linear(x, tables["word_embeddings"].weight, predictions.bias), side
