"""`moe-lab-eval`: lm-eval's own command, which knows `--model moe_lab`."""

from __future__ import annotations

import sys

from moe_lab.config.progress import bars_of_libraries_hidden
from moe_lab.errors import MoeLabError


def main() -> None:
    """Run lm-eval's command line with the model `moe_lab` (`moe_lab.api.lm.PretrainedLM`).

        moe-lab-eval --model moe_lab --model_args pretrained=my/model,method=roe,n=8 --tasks arc_easy --limit 50

    `pretrained` and `peft` are folders or hub ids. Arguments, output and exit code are those of `lm_eval`, whose own
    command imports no packages of others; a wrong method or key is one message and exit code 2.
    """
    from lm_eval.__main__ import cli_evaluate

    import moe_lab.api.lm  # noqa: F401 - registers the model

    try:
        with bars_of_libraries_hidden():
            cli_evaluate()
    except MoeLabError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
