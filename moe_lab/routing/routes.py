"""`Routes`: the experts of each token of some texts, in every MoE layer.

They come from `record(model)`, from engines that return the experts they chose, and from files.
`replay` gives them to a model again.

N = tokens of all texts, L = MoE layers, K = experts of a token in a layer.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from moe_lab.errors import ModelError, RoutingError, reading
from moe_lab.routing.hook import require_routers
from moe_lab.routing.passes import transformers_model
from moe_lab.routing.rules import Routing

FORMAT = "moe_lab.routes.1"
"""The format of a file, in its metadata."""


class Routes:
    """The experts of each token of some texts, in every MoE layer.

    Args:
        token_ids: int64 [N].
        indices: per MoE layer int64 [N, K]; layers may differ in K.
        sequences: int64 [N], the number of each token's text; None: all are one text.
        positions: int64 [N], the index of each token in its text, from 0; None: counted.
        weights: per MoE layer [N, K].
        logits: per MoE layer [N, experts].
        experts: per MoE layer the number of experts, if it is known.

    Raises RoutingError for tensors that do not belong together.
    """

    def __init__(
        self,
        token_ids: Tensor,
        indices: Sequence[Tensor],
        *,
        sequences: Tensor | None = None,
        positions: Tensor | None = None,
        weights: Sequence[Tensor] | None = None,
        logits: Sequence[Tensor] | None = None,
        experts: Sequence[int] | None = None,
    ):
        if sequences is None:
            sequences = torch.zeros_like(token_ids)
        if positions is None:
            positions = _counted(sequences)
        self._of_tokens = {
            "token_ids": [token_ids.long()],
            "sequences": [sequences.long()],
            "positions": [positions.long()],
        }
        """The parts of each tensor [N]: `record` adds one for each pass."""
        self._of_layers: dict[str, list[list[Tensor]]] = {
            "indices": [[index_NK.long()] for index_NK in indices]
        }
        """The parts of each tensor [N, ...] of each MoE layer."""
        for name, by_layer in (("weights", weights), ("logits", logits)):
            if by_layer is not None:
                self._of_layers[name] = [[tensor] for tensor in by_layer]
        self.experts = None if experts is None else list(experts)
        """Per MoE layer the number of experts; None: unknown."""
        self._check()

    @classmethod
    def empty(cls) -> Routes:
        """Routes of no tokens, to which `record` adds."""
        nothing = torch.zeros(0, dtype=torch.long)
        return cls(nothing, [], weights=[], logits=[], experts=[])

    @property
    def token_ids(self) -> Tensor:
        """int64 [N]; -1 where a model was called with inputs_embeds."""
        return torch.cat(self._of_tokens["token_ids"])

    @property
    def sequences(self) -> Tensor:
        """int64 [N]: the number of each token's text."""
        return torch.cat(self._of_tokens["sequences"])

    @property
    def positions(self) -> Tensor:
        """int64 [N]: index of each token in its text, padding not counted."""
        return torch.cat(self._of_tokens["positions"])

    @property
    def indices(self) -> list[Tensor]:
        """Per MoE layer: int64 [N, K]."""
        return [torch.cat(parts) for parts in self._of_layers["indices"]]

    @property
    def weights(self) -> list[Tensor] | None:
        """Per MoE layer: [N, K]; None: unknown."""
        return self._by_layer("weights")

    @property
    def logits(self) -> list[Tensor] | None:
        """Per MoE layer: [N, experts], in the router's dtype; None: unknown."""
        return self._by_layer("logits")

    def _by_layer(self, name: str) -> list[Tensor] | None:
        if name not in self._of_layers:
            return None
        return [torch.cat(parts) for parts in self._of_layers[name]]

    def add_pass(self, token_id_N: Tensor, sequence_N: Tensor, position_N: Tensor) -> None:
        """Add the tokens of a pass, on the CPU."""
        self._of_tokens["token_ids"].append(token_id_N)
        self._of_tokens["sequences"].append(sequence_N)
        self._of_tokens["positions"].append(position_N)

    def add_decision(self, layer: int, routing: Routing) -> None:
        """Add what a MoE layer decided for the tokens of a pass; called for layers in order."""
        assert self.experts is not None
        if layer == len(self.experts):
            self.experts.append(routing.logits_TE.shape[-1])
            for by_layer in self._of_layers.values():
                by_layer.append([])
        self._of_layers["indices"][layer].append(routing.index_TK)
        self._of_layers["weights"][layer].append(routing.weights_TK)
        self._of_layers["logits"][layer].append(routing.logits_TE)

    def _check(self) -> None:
        """Raise RoutingError for tensors of other shapes, and for an index of no expert."""
        count = len(self.token_ids)
        tensors = [self.sequences, self.positions, *self.indices]
        tensors += self.weights or []
        tensors += self.logits or []
        for tensor in tensors:
            if len(tensor) != count:
                raise RoutingError(
                    f"Routes: {count:,} token_ids, and a tensor for {len(tensor):,} tokens."
                )
        for layer, index_NK in enumerate(self.indices):
            if index_NK.dim() != 2:
                raise RoutingError(
                    f"Routes: the indices of MoE layer {layer} have the shape "
                    f"{list(index_NK.shape)}, and need [tokens, experts of a token]."
                )
            if not count:
                continue
            least = int(index_NK.min())
            most = int(index_NK.max())
            if least < 0 or (self.experts is not None and most >= self.experts[layer]):
                raise RoutingError(
                    f"Routes: MoE layer {layer} has the indices {least} to {most}, which are no "
                    "numbers of experts, counted from 0."
                )

    def __len__(self) -> int:
        return sum(len(part) for part in self._of_tokens["token_ids"])

    def __repr__(self) -> str:
        k = "/".join(map(str, dict.fromkeys(index_NK.shape[1] for index_NK in self.indices)))
        texts = len(self.sequences.unique())
        return (
            f"Routes({len(self):,} tokens of {texts:,} texts, {len(self.indices)} MoE layers, "
            f"{k} experts of a token)"
        )

    def save(self, file: str | Path) -> None:
        """Write a file of safetensors."""
        from safetensors.torch import save_file

        tensors = {
            "token_ids": self.token_ids.int(),
            "sequences": self.sequences.int(),
            "positions": self.positions.int(),
        }
        for layer, index_NK in enumerate(self.indices):
            tensors[f"indices.{layer}"] = index_NK.to(torch.int16)
        for name, by_layer in (("weights", self.weights), ("logits", self.logits)):
            for layer, tensor in enumerate(by_layer or []):
                tensors[f"{name}.{layer}"] = tensor
        on_cpu = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        metadata = {"format": FORMAT, "experts": json.dumps(self.experts)}
        save_file(on_cpu, str(file), metadata=metadata)

    @classmethod
    def load(cls, file: str | Path) -> Routes:
        """Read a file of `save`. Raises ModelError for another file."""
        from safetensors import safe_open

        with (
            reading(Path(file), "Save the routes again.", raises=ModelError),
            safe_open(str(file), "pt") as opened,
        ):
            metadata = opened.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError("it has no routes")
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        by_layer: dict[str, list[Tensor]] = {}
        for name in ("indices", "weights", "logits"):
            layers = sum(key.startswith(f"{name}.") for key in tensors)
            by_layer[name] = [tensors[f"{name}.{layer}"] for layer in range(layers)]
        return cls(
            tensors["token_ids"],
            by_layer["indices"],
            sequences=tensors["sequences"],
            positions=tensors["positions"],
            weights=by_layer["weights"] or None,
            logits=by_layer["logits"] or None,
            experts=json.loads(metadata["experts"]),
        )

    @classmethod
    def join(cls, parts: Sequence[Routes]) -> Routes:
        """The routes of all texts of several, whose numbers of sequences are counted on; with the
        weights and logits that all of them have.

        Raises RoutingError for routes of other models.
        """
        if not parts:
            raise RoutingError("Routes.join needs routes.")
        if len({len(part.indices) for part in parts}) > 1:
            raise RoutingError("Routes.join: they have other numbers of MoE layers.")
        known: dict[str, Any] = {}
        for name in ("weights", "logits"):
            of_parts = [getattr(part, name) for part in parts]
            if all(by_layer is not None for by_layer in of_parts):
                known[name] = _joined_layers(of_parts)
        sequences = []
        first = 0
        for part in parts:
            sequences.append(part.sequences + first)
            if len(part):
                first += int(part.sequences.max()) + 1
        return cls(
            torch.cat([part.token_ids for part in parts]),
            _joined_layers([part.indices for part in parts]),
            sequences=torch.cat(sequences),
            positions=torch.cat([part.positions for part in parts]),
            experts=parts[0].experts,
            **known,
        )

    @classmethod
    def from_vllm(cls, output: Any, model: nn.Module) -> Routes:
        """The routes of a `RequestOutput` of vLLM, of an engine with
        `enable_return_routed_experts=True`: one text for each of its completions.

        https://docs.vllm.ai/en/latest/

        Args:
            model: the same model in transformers, which says which layers have experts.

        Raises RoutingError if the engine returned no experts, or those of another model.
        """
        prompt = list(output.prompt_token_ids)
        of_prompt = getattr(output, "prompt_routed_experts", None)
        parts = []
        for completion in output.outputs:
            if completion.routed_experts is None:
                raise RoutingError(
                    "vLLM returned no routed_experts. Start it with "
                    "LLM(..., enable_return_routed_experts=True)."
                )
            experts = np.asarray(completion.routed_experts)
            if of_prompt is not None:
                experts = np.concatenate([np.asarray(of_prompt), experts])
            parts.append(cls.of_text([*prompt, *completion.token_ids], experts, model))
        return cls.join(parts)

    @classmethod
    def from_sglang(
        cls, response: Mapping[str, Any], token_ids: Sequence[int], model: nn.Module
    ) -> Routes:
        """The routes of a response of SGLang's `generate` to a request with
        `return_routed_experts`, of a server with `--enable-return-routed-experts`.

        It has them as base64 of int32, without their shape.

        Args:
            response: with `meta_info`.
            token_ids: of the prompt and the completion.
            model: the same model in transformers, which says which layers have experts.

        Raises RoutingError if there are no experts, or those of another model.
        """
        encoded = response["meta_info"].get("routed_experts")
        if encoded is None:
            raise RoutingError(
                "SGLang returned no routed_experts. Start it with --enable-return-routed-experts, "
                "and ask with return_routed_experts=true."
            )
        flat = np.frombuffer(base64.b64decode(encoded), dtype=np.int32)
        layers = _decoder_layers(model)
        k = _experts_per_token(model)
        rows = flat.size // (layers * k)
        if rows * layers * k != flat.size:
            raise RoutingError(
                f"SGLang returned {flat.size:,} experts, which are no rows of {layers} layers with "
                f"{k} experts of a token. It runs another model."
            )
        return cls.of_text(token_ids, flat.reshape(rows, layers, k), model)

    @classmethod
    def from_json_lines(cls, file: str | Path, model: nn.Module) -> Routes:
        """The routes of a rollout: a text in each line, with `token_ids` and `routed_experts`
        [tokens, layers, K].

        Raises ModelError for a line without them, and RoutingError as `of_text`.
        """
        parts = []
        with reading(Path(file), "Write the rollout again.", raises=ModelError):
            for line in Path(file).read_text(encoding="utf-8").splitlines():
                text = json.loads(line)
                parts.append(cls.of_text(text["token_ids"], text["routed_experts"], model))
        return cls.join(parts)

    @classmethod
    def of_text(cls, token_ids: Sequence[int], experts: Any, model: nn.Module) -> Routes:
        """The routes of one text, as engines give them.

        Args:
            token_ids: of the prompt and the completion.
            experts: [tokens, layers, K], for the MoE layers or for all decoder layers, of all
                tokens but perhaps the last one, which no engine reads.

        Raises RoutingError for another shape.
        """
        index_NLK = torch.as_tensor(np.asarray(experts).astype(np.int64))
        if index_NLK.dim() != 3 or len(index_NLK) not in (len(token_ids), len(token_ids) - 1):
            raise RoutingError(
                f"Experts of the shape {list(index_NLK.shape)} for {len(token_ids):,} tokens: "
                "expected [tokens, layers, experts of a token], of all tokens or all but the last."
            )
        moe_layers = moe_layers_of(model)
        layers = index_NLK.shape[1]
        if layers == _decoder_layers(model):
            index_NLK = index_NLK[:, moe_layers]
        elif layers != len(moe_layers):
            raise RoutingError(
                f"Experts of {layers} layers, and the model has {_decoder_layers(model)} decoder "
                f"layers, {len(moe_layers)} of them with experts."
            )
        ids = torch.tensor(token_ids[: len(index_NLK)], dtype=torch.long)
        return cls(ids, list(index_NLK.unbind(dim=1)))


def moe_layers_of(model: nn.Module) -> list[int]:
    """The numbers of the decoder layers that have experts, from 0."""
    numbers = []
    for router in require_routers(model):
        found = re.search(r"\.(\d+)\.", router.name)
        assert found is not None, router.name
        numbers.append(int(found[1]))
    return numbers


def _decoder_layers(model: nn.Module) -> int:
    """The number of the model's decoder layers."""
    return transformers_model(model).config.get_text_config(decoder=True).num_hidden_layers


def _experts_per_token(model: nn.Module) -> int:
    """The number of experts of a token, of all layers."""
    config = transformers_model(model).config.get_text_config(decoder=True)
    return require_routers(model)[0].family.experts_per_token(config)


def _counted(sequence_N: Tensor) -> Tensor:
    """int64 [N]: the place of each token among those of its sequence."""
    seen: dict[int, int] = {}
    positions = []
    for sequence in sequence_N.tolist():
        position = seen.get(sequence, 0)
        positions.append(position)
        seen[sequence] = position + 1
    return torch.tensor(positions, dtype=torch.long)


def _joined_layers(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Per layer the tensors of all parts, one after the other."""
    return [torch.cat(list(of_layer)) for of_layer in zip(*parts, strict=True)]
