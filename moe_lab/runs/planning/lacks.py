"""Why a configuration cannot run: everything that it lacks, not only the first error."""

from moe_lab.config.schema import Config
from moe_lab.errors import MoeLabError
from moe_lab.methods import get_method
from moe_lab.methods.method import Method
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.runs.checks import check_code_execution, check_router
from moe_lab.runs.model_files import facts_of
from moe_lab.tasks.judges import judges_of
from moe_lab.tasks.loading import load_tasks


def lacks_of(config: Config, error: MoeLabError) -> list[str]:
    """Why a configuration cannot run: `error`, which preparing it raised, then all other reasons.

    The model, its tokenizer, the tasks, the judges and the method's own data are checked one by
    one. A reason that another one contains is left out.
    """
    method = get_method(config.method.name)(config.method)
    reasons = [str(error)]
    for check in CHECKS:
        try:
            check(config, method)
        except MoeLabError as lack:
            if not any(str(lack) in reason for reason in reasons):
                reasons.append(str(lack))
    return reasons


def _check_router(config: Config, method: Method) -> None:
    check_router(method, facts_of(config))


def _check_model(config: Config, method: Method) -> None:
    method.check(facts_of(config))


def _check_tokenizer(config: Config, method: Method) -> None:
    load_tokenizer(config.model, offline=config.offline)


def _check_tasks(config: Config, method: Method) -> None:
    check_code_execution(config, load_tasks(config))


def _check_judges(config: Config, method: Method) -> None:
    for judge in judges_of(config, load_tasks(config)):
        judge.check()


def _check_data(config: Config, method: Method) -> None:
    method.data_identity(config, facts_of(config))


CHECKS = (
    _check_router,
    _check_model,
    _check_tokenizer,
    _check_tasks,
    _check_judges,
    _check_data,
)
