"""Every setting of a run in one frozen value, checked whole when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hvdtrain.errors import ConfigError
from hvdtrain.wording import did_you_mean

Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(BaseModel):
    """Settings of one run; each field is also an option of ``hvdtrain train`` (``--global-batch-size 64``).

    Raises:
        ConfigError: One message that names every problem, with rule and value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    # How long. Neither epochs nor max_steps means one epoch.
    epochs: Count | None = Field(None, description="passes over the training data")
    max_steps: CountOrZero | None = Field(None, description="optimizer updates at most")
    max_time_s: Positive | None = Field(None, description="seconds of training at most")
    steps_per_epoch: Count | None = Field(None, description="updates that make an epoch of a stream")

    # How much per update. Any that suffice; the rest follow.
    global_batch_size: Count | None = Field(None, description="samples per update, over all ranks")
    batch_size: Count | None = Field(None, description="samples per rank and backward pass, at most")
    backward_passes_per_step: Count | None = Field(None, description="backward passes per update")

    # The update.
    optimizer: Literal["sgd", "adam", "adamw", "lamb"] = Field("sgd", description="update rule")
    learning_rate: NotNegative = Field(0.01, description="base learning rate")
    weight_decay: NotNegative = Field(0.0, description="weight decay, as the optimizer defines it")
    momentum: Fraction = Field(0.0, description="momentum of sgd")
    nesterov: bool = Field(False, description="Nesterov's momentum in sgd")
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), description="decay rates of adam's means")
    epsilon: Positive = Field(1e-8, description="added to adam's denominator")
    clip_norm: Positive | None = Field(None, description="largest global norm of the gradient")

    # The learning rate, a function of samples seen.
    warmup_epochs: NotNegative = Field(0.0, description="epochs of linear warm-up")
    decay: Literal["constant", "linear", "cosine", "step", "plateau"] = Field(
        "constant", description="course of the rate after warm-up"
    )
    decay_epochs: Positive | None = Field(
        None,
        description="epochs from start to the end of decay (linear, cosine) or per drop (step)",
    )
    decay_factor: Annotated[float, Field(gt=0, le=1)] = Field(0.1, description="factor of each drop (step, plateau)")
    final_learning_rate: NotNegative = Field(0.0, description="rate where linear and cosine end")
    plateau_patience: CountOrZero = Field(2, description="evaluations without gain before a drop")
    lr_scaling: Literal["none", "linear", "sqrt"] = Field(
        "none", description="scale the rate by global batch over base batch"
    )
    base_batch_size: Count | None = Field(None, description="global batch that learning_rate is for")

    # Numbers and randomness.
    precision: Literal["fp32", "bf16"] = Field("fp32", description="arithmetic of the forward pass")
    compression: Literal["none", "fp16"] = Field("none", description="gradients on the wire")
    compile: bool = Field(False, description="compile the loss (PyTorch)")
    seed: CountOrZero = Field(0, description="seed of weights, order, augmentation and dropout")
    shuffle: bool = Field(True, description="visit the samples in a new order each epoch")
    data_workers: CountOrZero = Field(0, description="threads that load samples, beside the reader")

    # What is written, and when.
    noise_scale: bool = Field(False, description="estimate how large a global batch pays")
    log_every_steps: Count = Field(10, description="updates per row of metrics")
    eval_every_epochs: Count = Field(1, description="epochs between evaluations")
    save_every_steps: Count | None = Field(None, description="updates between checkpoints")
    save_every_epochs: Count | None = Field(None, description="epochs between checkpoints")
    save_every_minutes: Positive | None = Field(None, description="minutes between checkpoints")
    keep_last: Count | None = Field(None, description="newest checkpoints kept; all when not given")
    keep_best: str | None = Field(None, description="metric whose best checkpoint is kept")

    # When to stop, and what counts as a fault.
    early_stop_patience: Count | None = Field(None, description="evaluations without gain before the end")
    stall_timeout_s: Positive = Field(600.0, description="seconds in which no rank moves before the job ends")
    check_replicas_every_steps: Count | None = Field(None, description="updates between checks of replicas")
    on_nonfinite: Literal["raise", "skip"] = Field("raise", description="what an infinite gradient does")

    def __init__(self, **values: Any) -> None:
        """Check all values together."""
        problems = _combination_problems({**_DEFAULTS, **values})
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems = [_problem(detail) for detail in error.errors()] + problems
        if problems:
            raise ConfigError(_message(problems))

    def replace(self, **values: Any) -> TrainConfig:
        """Return a copy with ``values`` in place of these settings, checked anew."""
        return TrainConfig(**{**self.model_dump(exclude_unset=True), **values})


def _combination_problems(values: Mapping[str, Any]) -> list[str]:
    problems = []
    if values["nesterov"] and values["momentum"] == 0:
        problems.append("nesterov needs a momentum above 0, got momentum=0.0")
    if values["lr_scaling"] != "none" and values["base_batch_size"] is None:
        problems.append(f"lr_scaling={values['lr_scaling']!r} needs base_batch_size, got None")
    if values["decay"] == "step" and values["decay_epochs"] is None:
        problems.append("decay='step' needs decay_epochs, got None")
    return problems


def _message(problems: list[str]) -> str:
    ends = [text if text.endswith("?") else f"{text}." for text in problems]
    if len(ends) == 1:
        return f"TrainConfig: {ends[0]}"
    return f"TrainConfig: {len(ends)} problems:" + "".join(f"\n  {text}" for text in ends)


def _problem(detail: Mapping[str, Any]) -> str:
    name = ".".join(str(part) for part in detail["loc"] if not str(part).startswith("function"))
    value, context = detail["input"], detail.get("ctx", {})
    rules = {
        "greater_than_equal": "must be at least {ge}",
        "greater_than": "must be greater than {gt}",
        "less_than_equal": "must be at most {le}",
        "less_than": "must be less than {lt}",
        "literal_error": "must be one of {expected}",
        "finite_number": "must be finite",
    }
    kind = detail["type"]
    if kind == "extra_forbidden":
        hint = did_you_mean(name, TrainConfig.model_fields)
        return f"unknown setting {name!r}, got {value!r}{'.' if hint else ''}{hint}"
    rule = rules.get(kind, "").format(**context) or _plain(detail["msg"])
    choices = get_args(TrainConfig.model_fields[name].annotation) if kind == "literal_error" else ()
    hint = _REASONS.get((name, str(value))) or did_you_mean(value, choices, cutoff=0.4)
    return f"{name} {rule}, got {value!r}{'.' if hint else ''}{hint}"


def _plain(message: str) -> str:
    return message.replace("Input should be", "must be").removesuffix(".")


#: Why a value that one would expect is none of the choices.
_REASONS = {("compression", "bf16"): " Horovod 0.28.1 reduces no bfloat16"}

_DEFAULTS = {name: field.default for name, field in TrainConfig.model_fields.items()}
