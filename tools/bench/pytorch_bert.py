"""BERT with PyTorch's functions alone, on a dictionary of tensors with Hugging Face's names: what
our models are compared with, in results and in time."""

import torch
import torch.nn.functional as F

# Layers, channels, heads.
SIZES = {"bert_tiny": (2, 128, 2), "bert_base": (12, 768, 12), "bert_large": (24, 1024, 16)}
EPSILON = 1e-12


def shapes(name, vocabulary, positions=512, next_sentence=False):
    """Of every parameter, by its name."""
    layers, channels, _ = SIZES[name]
    made = {}

    def dense(prefix, outputs, inputs):
        made[prefix + ".weight"] = (outputs, inputs)
        made[prefix + ".bias"] = (outputs,)

    def norm(prefix):
        made[prefix + ".weight"] = made[prefix + ".bias"] = (channels,)

    made["bert.embeddings.word_embeddings.weight"] = (vocabulary, channels)
    made["bert.embeddings.position_embeddings.weight"] = (positions, channels)
    made["bert.embeddings.token_type_embeddings.weight"] = (2, channels)
    norm("bert.embeddings.LayerNorm")
    for i in range(layers):
        prefix = f"bert.encoder.layer.{i}."
        for which in ("query", "key", "value"):
            dense(prefix + "attention.self." + which, channels, channels)
        dense(prefix + "attention.output.dense", channels, channels)
        norm(prefix + "attention.output.LayerNorm")
        dense(prefix + "intermediate.dense", 4 * channels, channels)
        dense(prefix + "output.dense", channels, 4 * channels)
        norm(prefix + "output.LayerNorm")
    if next_sentence:
        dense("bert.pooler.dense", channels, channels)
        dense("cls.seq_relationship", 2, channels)
    dense("cls.predictions.transform.dense", channels, channels)
    norm("cls.predictions.transform.LayerNorm")
    made["cls.predictions.bias"] = (vocabulary,)
    return made


class Bert:
    """`state`: the parameters; `dropout` is only taken in `training`. `fused`: attention is
    PyTorch's own (scaled_dot_product_attention, from 2.0 on)."""

    def __init__(self, name, state, dropout=0.0, fused=False):
        self.layers, self.channels, self.heads = SIZES[name]
        self.state, self.dropout, self.training, self.fused = state, dropout, True, fused

    def dense(self, prefix, x):
        return F.linear(x, self.state[prefix + ".weight"], self.state[prefix + ".bias"])

    def norm(self, prefix, x):
        return F.layer_norm(x, (self.channels,), self.state[prefix + ".weight"],
                            self.state[prefix + ".bias"], EPSILON)

    def drop(self, x):
        return F.dropout(x, self.dropout, self.training) if self.dropout > 0 else x

    def attention(self, prefix, x, mask):
        batch, positions, _ = x.shape

        def heads(which):
            y = self.dense(prefix + "self." + which, x)
            return y.view(batch, positions, self.heads, -1).transpose(1, 2)

        query, key, value = heads("query"), heads("key"), heads("value")
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value,
                                                   None if mask is None else mask[:, None, None, :],
                                                   self.dropout if self.training else 0.0)
            return mixed.transpose(1, 2).reshape(batch, positions, self.channels)
        scores = query @ key.transpose(2, 3) / (self.channels // self.heads) ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        mixed = self.drop(F.softmax(scores, 3)) @ value
        return mixed.transpose(1, 2).reshape(batch, positions, self.channels)

    def encode(self, tokens, segments, mask):
        state, prefix = self.state, "bert.embeddings."
        x = (F.embedding(tokens, state[prefix + "word_embeddings.weight"])
             + F.embedding(segments, state[prefix + "token_type_embeddings.weight"])
             + state[prefix + "position_embeddings.weight"][:tokens.shape[1]])
        x = self.drop(self.norm(prefix + "LayerNorm", x))
        for i in range(self.layers):
            prefix = f"bert.encoder.layer.{i}."
            mixed = self.attention(prefix + "attention.", x, mask)
            mixed = self.drop(self.dense(prefix + "attention.output.dense", mixed))
            x = self.norm(prefix + "attention.output.LayerNorm", mixed + x)
            inner = F.gelu(self.dense(prefix + "intermediate.dense", x))
            inner = self.drop(self.dense(prefix + "output.dense", inner))
            x = self.norm(prefix + "output.LayerNorm", inner + x)
        return x

    def logits(self, encoded, target_positions):
        """Of the targets' positions alone, which a batch's are few of."""
        at = target_positions[:, :, None].expand(-1, -1, self.channels)
        x = F.gelu(self.dense("cls.predictions.transform.dense", encoded.gather(1, at)))
        x = self.norm("cls.predictions.transform.LayerNorm", x)
        return F.linear(x, self.state["bert.embeddings.word_embeddings.weight"],
                        self.state["cls.predictions.bias"])

    def next_sentence(self, encoded):
        return self.dense("cls.seq_relationship", torch.tanh(self.dense("bert.pooler.dense", encoded[:, 0])))

    def loss(self, batch, next_sentence=False):
        """The mean over the targets (-1: none), and the logits that it comes from."""
        encoded = self.encode(batch["tokens"], batch["segments"], batch.get("mask"))
        logits = self.logits(encoded, batch["target_positions"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), ignore_index=-1)
        if next_sentence:
            loss = loss + F.cross_entropy(self.next_sentence(encoded), batch["labels"])
        return loss, logits
