"""The model provider `moe_lab` of inspect_ai, by the entry point `inspect_ai`.

inspect eval task.py --model moe_lab/<path> -M method=roe -M n=8
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

from inspect_ai.model import (
    ChatMessage,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from lm_eval.api.instance import Instance

from moe_lab.api.lm_eval_model import LmEvalModel
from moe_lab.errors import ConfigError
from moe_lab.models.tokenizer import with_template

GENERATION = {
    "max_tokens": "max_gen_toks",
    "stop_seqs": "until",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
}
"""Settings of a generation, and lm-eval's names of them."""
OF_INSPECT = {
    "adaptive_connections",
    "attempt_timeout",
    "batch",
    "cache",
    "fail_on_refusal",
    "max_connections",
    "max_retries",
    "max_tool_output",
    "stream_idle_timeout",
    "system_message",
    "timeout",
}
"""Settings that inspect_ai itself follows, or that say nothing about a local model."""
NEW_TOKENS = 256
"""New tokens of an answer without `max_tokens`, as in lm-eval."""


@dataclass
class _Asked:
    """A prompt that waits for its answer."""

    request: Instance
    text: str | None = None


@modelapi(name="moe_lab")
class MoeLabAPI(ModelAPI):
    """Answers inspect_ai's chats under a method, with the tokenizer's chat template.

    Chats that are asked at the same time are answered in one batch.

    Args:
        model_name: hub id or folder; `tiny` is the embedded model.
        config: of inspect_ai.
        model_args: `-M <key>=<value>`: arguments of `LmEvalModel`, the method's keys among them.

    Raises ConfigError for an unknown key, and for tools and settings of a generation that do not
    act here.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        **model_args: Any,
    ):
        super().__init__(model_name, base_url, api_key, config=config or GenerateConfig())
        pretrained = None if model_name == "tiny" else model_name
        self._lm = LmEvalModel(pretrained, **model_args)
        with_template(self._lm.tokenizer)
        self._lock = threading.Lock()
        self._waiting: list[_Asked] = []

    async def generate(
        self, input: list[ChatMessage], tools: list[Any], tool_choice: Any, config: GenerateConfig
    ) -> ModelOutput:
        if tools:
            raise ConfigError("moe_lab calls no tools. Use a task without them.")
        messages = [{"role": message.role, "content": message.text} for message in input]
        tokenizer = self._lm.tokenizer
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        settings = generation_settings(config)
        request = Instance("generate_until", {}, (prompt, settings), 0)
        asked = _Asked(request)
        self._waiting.append(asked)
        text = await asyncio.to_thread(self._answer, asked)
        prompt_tokens = len(tokenizer(prompt, add_special_tokens=False).input_ids)
        answer_tokens = len(tokenizer(text, add_special_tokens=False).input_ids)
        is_cut = answer_tokens >= settings["max_gen_toks"]
        output = ModelOutput.from_content(
            self.model_name, text, stop_reason="max_tokens" if is_cut else "stop"
        )
        output.usage = ModelUsage(
            input_tokens=prompt_tokens,
            output_tokens=answer_tokens,
            total_tokens=prompt_tokens + answer_tokens,
        )
        return output

    def _answer(self, asked: _Asked) -> str:
        """The answer to a prompt. Whoever comes first answers all that wait, in one batch."""
        with self._lock:
            if asked.text is None:
                batch = list(self._waiting)
                self._waiting.clear()
                texts = self._lm.generate_until([waiting.request for waiting in batch])
                for waiting, text in zip(batch, texts, strict=True):
                    waiting.text = text
        assert asked.text is not None
        return asked.text


def generation_settings(config: GenerateConfig) -> dict[str, Any]:
    """inspect_ai's settings as lm-eval's. Raises ConfigError for one that does not act here."""
    settings: dict[str, Any] = {"until": [], "max_gen_toks": NEW_TOKENS}
    for name, value in config.model_dump(exclude_none=True).items():
        if name in GENERATION:
            settings[GENERATION[name]] = value
        elif name not in OF_INSPECT and not (name == "num_choices" and value == 1):
            raise ConfigError(
                f"{name}={value} has no effect on a model of moe_lab. Leave it out. Settings: "
                f"{', '.join(GENERATION)}."
            )
    settings["do_sample"] = settings.get("temperature", 0) > 0
    return settings
