"""DeepSeekMoE written out from its paper's equations, slowly and in float64, over
the published parameter names.

One sequence, no cache, one expert after another. Nothing here is shared with
`moe_lab` or transformers.

S = positions, H = hidden size, D = size of a head.
"""

import math

import numpy as np

Array = np.ndarray


class Reference:
    """The model of a checkpoint: `config` as in config.json, `weights` by name."""

    def __init__(self, config: dict, weights: dict[str, Array]):
        self.config = config
        self.weights = {name: weight.astype(np.float64) for name, weight in weights.items()}

    def layers(self, token_S: list[int]) -> list[Array]:
        """Hidden states [S, H]: the embeddings, then after each layer."""
        states = [self.weights["model.embed_tokens.weight"][token_S]]
        for layer in range(self.config["num_hidden_layers"]):
            states.append(self.layer(layer, states[-1]))
        return states

    def logits(self, token_S: list[int]) -> Array:
        """[S, vocabulary]"""
        hidden_SH = self.norm("model.norm.weight", self.layers(token_S)[-1])
        return hidden_SH @ self.weights["lm_head.weight"].T

    def layer(self, layer: int, hidden_SH: Array) -> Array:
        """Equations 1 and 2: attention and feed-forward, each with its residual."""
        prefix = f"model.layers.{layer}."
        normed_SH = self.norm(f"{prefix}input_layernorm.weight", hidden_SH)
        attended_SH = hidden_SH + self.attention(f"{prefix}self_attn.", normed_SH)
        normed_SH = self.norm(f"{prefix}post_attention_layernorm.weight", attended_SH)
        dense = layer < self.config["first_k_dense_replace"]
        feed_forward = self.mlp if dense else self.experts
        return attended_SH + np.stack([feed_forward(f"{prefix}mlp.", row_H) for row_H in normed_SH])

    def norm(self, name: str, hidden_SH: Array) -> Array:
        mean_square = (hidden_SH**2).mean(axis=-1, keepdims=True)
        return hidden_SH / np.sqrt(mean_square + self.config["rms_norm_eps"]) * self.weights[name]

    def attention(self, prefix: str, hidden_SH: Array) -> Array:
        """Causal attention, one head and one position after another."""
        heads = self.config["num_attention_heads"]
        size = hidden_SH.shape[1] // heads
        query, key, value = (
            hidden_SH @ self.weights[f"{prefix}{name}_proj.weight"].T for name in "qkv"
        )
        out_SH = np.zeros_like(hidden_SH)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            q_SD = [self.rotate(row, position) for position, row in enumerate(query[:, part])]
            k_SD = [self.rotate(row, position) for position, row in enumerate(key[:, part])]
            for position in range(len(hidden_SH)):
                scores = [
                    q_SD[position] @ k_SD[past] / math.sqrt(size) for past in range(position + 1)
                ]
                weights = softmax(np.array(scores))
                out_SH[position, part] = weights @ value[: position + 1, part]
        return out_SH @ self.weights[f"{prefix}o_proj.weight"].T

    def rotate(self, vector_D: Array, position: int) -> Array:
        """RoPE in the published layout: dimension i turns with dimension i + D/2."""
        half = len(vector_D) // 2
        out_D = np.empty_like(vector_D)
        for i in range(half):
            angle = position * self.config["rope_theta"] ** (-2 * i / len(vector_D))
            a = vector_D[i]
            b = vector_D[i + half]
            out_D[i] = a * math.cos(angle) - b * math.sin(angle)
            out_D[i + half] = b * math.cos(angle) + a * math.sin(angle)
        return out_D

    def mlp(self, prefix: str, hidden_H: Array) -> Array:
        gate = self.weights[f"{prefix}gate_proj.weight"]
        up = self.weights[f"{prefix}up_proj.weight"]
        down = self.weights[f"{prefix}down_proj.weight"]
        gated = gate @ hidden_H
        return down @ (gated / (1 + np.exp(-gated)) * (up @ hidden_H))

    def experts(self, prefix: str, hidden_H: Array) -> Array:
        """Equations 9 to 11: the shared experts, and the top-k routed experts weighted
        by their share of a softmax."""
        scores_E = softmax(self.weights[f"{prefix}gate.weight"] @ hidden_H)
        chosen = sorted(range(len(scores_E)), key=lambda expert: -scores_E[expert])
        chosen = chosen[: self.config["num_experts_per_tok"]]
        total = sum(scores_E[expert] for expert in chosen) if self.config["norm_topk_prob"] else 1.0
        shared = self.config["n_shared_experts"] is not None
        out_H = (
            self.mlp(f"{prefix}shared_experts.", hidden_H) if shared else np.zeros_like(hidden_H)
        )
        for expert in chosen:
            out_H = out_H + scores_E[expert] / total * self.mlp(
                f"{prefix}experts.{expert}.", hidden_H
            )
        return out_H


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()
