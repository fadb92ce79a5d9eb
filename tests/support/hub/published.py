"""What is published with the models in conf/model: config.json, older spellings of keys
included, and GPT-OSS's template.

Keys that have the default of transformers' configuration are left out, but for DeepSeek's.
"""

import json
from pathlib import Path

FOLDER = Path(__file__).with_name("configs")
PUBLISHED = {
    file.stem: json.loads(file.read_text(encoding="utf-8")) for file in FOLDER.glob("*.json")
}
"""config.json by option of conf/model."""
PUBLISHED |= dict.fromkeys(("olmoe-base", "olmoe-0125-instruct"), PUBLISHED["olmoe"])

GPT_OSS_TOKENS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>")
"""Special tokens other than the beginning, end and padding."""
GPT_OSS_TEMPLATE = (FOLDER / "gpt-oss.jinja").read_text(encoding="utf-8")
"""The published chat template without tools and earlier reasoning."""
