"""Runs the parts that a user brings (vitscale.plan.parts): imports, builds and tries them."""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import inspect
import linecache
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitscale.plan import parts
from vitscale.plan.config import TrainConfig
from vitscale.plan.fields import DEFAULTS
from vitscale.plan.metrics import Metric
from vitscale.plan.spelling import shown
from vitscale.train.sources.images import Images

PREFIX = "vitscale_part_"


class _Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules of sources from memory, each below a package of its digest, so that a process
    can have several versions of a module.
    """

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(PREFIX):
            return None
        digest, _, name = fullname.removeprefix(PREFIX).partition(".")
        source = parts.source_of(digest)
        if source is None:
            return None
        is_package, _ = source.modules.get(name, (True, ""))
        if name and not any(f"{module}.".startswith(f"{name}.") for module in source.modules):
            return None
        return importlib.machinery.ModuleSpec(
            fullname, self, origin=f"<{digest}>/{name}.py", is_package=is_package
        )

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ and module.__spec__.origin
        digest, _, name = module.__name__.removeprefix(PREFIX).partition(".")
        source = parts.source_of(digest)
        assert source is not None
        text, file = source.modules.get(name, (True, ""))[1], module.__spec__.origin
        # tracebacks and inspect show the lines
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        own = vars(builtins) | {"__import__": partial(_import, digest, source)}
        module.__dict__["__builtins__"] = own
        code = compile(text, file, "exec", dont_inherit=True)
        exec(code, module.__dict__)  # of a source that is trusted: see load


def _import(
    digest: str,
    source: parts.Source,
    name: str,
    globals: Any = None,
    locals: Any = None,
    fromlist: Any = (),
    level: int = 0,
) -> Any:
    """`import` within a source: its own modules first."""
    top = name.partition(".")[0]
    if level or not any(path.partition(".")[0] == top for path in source.modules):
        return builtins.__import__(name, globals, locals, fromlist, level)
    module = importlib.import_module(f"{PREFIX}{digest}.{name}")
    for member in fromlist or ():
        if f"{name}.{member}" in source.modules and not hasattr(module, member):
            importlib.import_module(f"{PREFIX}{digest}.{name}.{member}")
    return module if fromlist else sys.modules[f"{PREFIX}{digest}.{top}"]


sys.meta_path.append(_Importer())


@cache
def load(part: str) -> Callable[..., Any]:
    """The callable of a part. Runs its source, which must be trusted, or imports its package.

    Raises ValueError if it cannot be imported, or its package has another version.
    """
    digest = parts.digest_of(part)
    source = parts.source_of(digest)
    if (digest and source is None) or not parts.is_trusted(digest or part):
        raise ValueError(
            f"a part must be one's own, or trusted, to run, but got ({part}; --trust-parts "
            f"{source.sha256 if source else digest or part})"
        )
    match = (parts.OF_FILE if source else parts.OF_PACKAGE).fullmatch(part)
    assert match
    if source:
        name = f"{PREFIX}{digest}.{source.main}"
    else:
        name, now = match["module"], parts.named("part", f"{match['module']}:{match['name']}")
        if now != part:
            law = "the package of a part must have the version of the trial"
            raise ValueError(f"{law}, but got ({part}, and {now.partition('@')[2]} here)")
    try:
        made = getattr(importlib.import_module(name), match["name"])
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"a part must be importable, but got ({part}: {reason_of(error)})"
        ) from error
    if not callable(made):
        raise ValueError(f"a part must be callable, but got ({part}: {type(made).__name__})")
    callable_: Callable[..., Any] = made
    return callable_


def reason_of(error: BaseException) -> str:
    """An exception of a part in one line, with the last line of its source that was run."""
    where, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith(PREFIX):
            where = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


def made(config: TrainConfig, field: str, *given: Any, data_root: Path | None = None) -> Any:
    """What the part of a field makes: a model, an optimizer, or a function of what it gets later.

    `given` is what it gets by position. By name it gets those fields of the config that its
    signature names, `lr` as the peak, and its arguments in `own`. Raises ValueError in one line for
    whatever it raises.
    """
    part = getattr(config, field)
    function = load(part)
    later = field in parts.CALLED_LATER and not inspect.isclass(function)
    arguments = _arguments(config, field, function, data_root)
    if later:
        return partial(function, **arguments)
    try:
        return function(*given, **arguments)
    except (Exception, SystemExit) as error:
        listed = ", ".join(f"{name}={shown(value)}" for name, value in arguments.items())
        raise ValueError(
            f"a part must work with its arguments, but got ({part}: {listed}; {reason_of(error)})"
        ) from error


def _arguments(
    config: TrainConfig, field: str, function: Callable[..., Any], data_root: Path | None
) -> dict[str, Any]:
    own, part = config.own_arguments, getattr(config, field)
    names = list(inspect.signature(function).parameters.values())
    is_class = inspect.isclass(function)
    position = 0 if is_class and field in parts.CALLED_LATER else len(parts.PARTS[field])
    arguments: dict[str, Any] = {}
    of_file = bool(parts.digest_of(part))
    for parameter in names[position:]:
        name = parameter.name
        if name in own:
            arguments[name] = own[name]
        elif name == "data_root":
            arguments[name] = data_root
        elif name in DEFAULTS and (of_file or name in FOR_PACKAGES):
            arguments[name] = config.peak_lr if name == "lr" else getattr(config, name)
        elif parameter.kind is parameter.VAR_KEYWORD:  # passed on to what is not seen from here
            passed = {"num_classes": config.num_classes} if field == "model" else {}
            of_others = _named_by(config, [other for other in parts.PARTS if other != field])
            arguments |= {**passed, **{n: v for n, v in own.items() if n not in of_others}}
        elif parameter.kind is parameter.VAR_POSITIONAL:
            continue
        elif parameter.default is parameter.empty:
            raise ValueError(
                "each argument of a part without a default must be a field or in own, but got "
                f"({part}: no {name})"
            )
    return arguments


def _named_by(config: TrainConfig, fields: Iterable[str]) -> set[str]:
    """The parameters that the parts of these fields name."""
    of_fields = [part for field, part in parts.parts_of(config).items() if field in fields]
    return {
        name
        for part in of_fields
        for name, parameter in inspect.signature(load(part)).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }


def check_own(config: TrainConfig) -> None:
    """Raises ValueError for an argument in `own` that no part takes. Those of a package are known
    only here, where it is imported.
    """
    given = parts.parts_of(config)
    kinds = {
        parameter.kind
        for part in given.values()
        for parameter in inspect.signature(load(part)).parameters.values()
    }
    unknown = config.own_arguments.keys() - _named_by(config, given)
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise ValueError(
            f"an argument in own must be one of {', '.join(map(parts.name_of, given.values()))}, "
            f"but got ({', '.join(sorted(unknown))})"
        )


# A package gives names such as `depth` meanings and defaults of its own: what it shall get is in
# `own`, except for these.
FOR_PACKAGES = ("num_classes", "lr", "resolution", "channels")


def build_own_model(config: TrainConfig) -> nn.Module:
    """The model of a part. Raises ValueError unless it is an nn.Module with parameters."""
    model = made(config, "model")
    if not isinstance(model, nn.Module) or not any(True for _ in model.parameters()):
        raise ValueError(
            "a model must be a torch.nn.Module with parameters, but got "
            f"({config.model}: {type(model).__name__})"
        )
    return model


def build_own_optimizer(groups: list[dict[str, Any]], config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer of a part. Raises ValueError unless it is a torch.optim.Optimizer."""
    optimizer = made(config, "optimizer", groups)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            "an optimizer must be a torch.optim.Optimizer, but got "
            f"({config.optimizer}: {type(optimizer).__name__})"
        )
    if hasattr(optimizer, "train") and hasattr(optimizer, "eval"):
        raise ValueError(
            "an optimizer must train and evaluate the same weights, but got one with two modes "
            f"({config.optimizer})"
        )
    return optimizer


@cache
def own_loss(config: TrainConfig) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of a part: logits (B, classes) and targets -> nats (B,)."""
    function = made(config, "loss")
    if isinstance(function, nn.Module) and any(True for _ in function.parameters()):
        raise ValueError(f"a loss must have no parameters, but got ({config.loss})")

    def values(logits: Tensor, targets: Tensor) -> Tensor:
        losses: Tensor = function(logits, targets)
        if losses.shape != logits.shape[:1]:
            raise ValueError(
                "a loss must give one value per sample, of the shape (B,), but got "
                f"({config.loss}: {tuple(losses.shape)} for a batch of {len(logits)})"
            )
        return losses

    return values


def own_augment(config: TrainConfig, images: Tensor, seeds: list[int]) -> Tensor:
    """Images (b, C, R, R) in [0, 1], changed by a part. `seeds` determine its generator."""
    state = int(np.random.default_rng(seeds).integers(2**63))
    generator = torch.Generator(images.device).manual_seed(state)
    changed: Tensor = _augment(config)(images, generator)
    if (got := _form(changed)) != (before := _form(images)):
        raise ValueError(
            "an augmentation must keep shape, type and device of a batch, but got "
            f"({config.augment}: {got} for {before})"
        )
    return changed


def _form(images: object) -> str:
    if not torch.is_tensor(images):
        return type(images).__name__
    return f"{tuple(images.shape)} {str(images.dtype).removeprefix('torch.')} {images.device}"


@cache
def _augment(config: TrainConfig) -> Callable[[Tensor, torch.Generator], Tensor]:
    function: Callable[[Tensor, torch.Generator], Tensor] = made(config, "augment")
    return function


@cache
def own_metrics(config: TrainConfig) -> Callable[[Tensor, Tensor], Mapping[str, Tensor]]:
    """The metrics of a part: logits (B, classes) and labels (B,) -> name -> values (B,)."""
    function, declared = made(config, "metrics"), parts.metrics_of(config.metrics)
    names = [metric.name for metric in declared]

    def values(logits: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        by_name: Mapping[str, Tensor] = function(logits, labels)
        shapes = {name: tuple(tensor.shape) for name, tensor in by_name.items()}
        if shapes != dict.fromkeys(names, (len(logits),)):
            raise ValueError(
                f"metrics must give ({', '.join(names)}), each of the shape (B,), but got "
                f"({config.metrics}: {shapes} for a batch of {len(logits)})"
            )
        return by_name

    return values


def check_bounds(metric: Metric, value: float, config: TrainConfig) -> None:
    """Raises ValueError for a finite value of a part's metric beyond its declared bounds."""
    low, high = metric.bounds
    if value < low or value > high:
        raise ValueError(
            f"{low:g} <= {metric.name} <= {high:g} must hold, as declared, but got "
            f"({config.metrics}: {value:g})"
        )


class OwnImages:
    """A dataset that a part reads: the name of a split -> images and labels.

    Images are uint8 (N, H, W), (N, H, W, C) or (N, C, H, W), and labels integers (N,).
    """

    classes = None

    def __init__(self, config: TrainConfig, root: Path | None) -> None:
        self.config, self.root = config, root

    @property
    def splits(self) -> tuple[str, ...]:
        """Those that the config reads; a part has no list."""
        return ("train", *self.config.evals)

    def read(self, split: str) -> Images:
        """Raises ValueError for anything else than the part must give."""
        part, read = self.config.dataset, made(self.config, "dataset", split, data_root=self.root)
        try:
            pixels, labels = (torch.as_tensor(np.asarray(values)) for values in read)
            if pixels.ndim == 3:
                pixels = pixels[:, None]
            elif pixels.shape[1] != self.config.channels:
                pixels = pixels.permute(0, 3, 1, 2)
            fits = pixels.ndim == 4 and pixels.shape[1] == self.config.channels
            fits &= pixels.dtype == torch.uint8 and labels.shape == pixels.shape[:1]
            fits &= not labels.is_floating_point()
        except (TypeError, ValueError, IndexError, RuntimeError) as error:
            raise ValueError(
                f"a dataset must give images and labels, but got ({part}, {split}: {error})"
            ) from None
        if not fits:
            raise ValueError(
                f"a dataset must give uint8 images of {self.config.channels} channels and integer "
                f"labels, but got ({part}, {split}: {pixels.dtype} {tuple(pixels.shape)}, "
                f"{labels.dtype} {tuple(labels.shape)})"
            )
        return Images(labels.long(), pixels.contiguous())


def check_logits(logits: object, config: TrainConfig, num: int) -> None:
    """Raises ValueError unless a model gave logits (num, classes)."""
    if not torch.is_tensor(logits) or logits.shape != (num, config.num_classes):
        got = tuple(logits.shape) if torch.is_tensor(logits) else type(logits).__name__
        raise ValueError(
            f"a model must give logits of the shape (B, {config.num_classes}), but got "
            f"({config.model}: {got} for a batch of {num})"
        )
