"""Parts of a training that a user brings: a model, an optimizer, a loss, ...

A field such as `model` may name a callable in a file, "parts/tiny.py:Tiny", relative to the study
file, or in an installed package, "package.module:Class". In a config the name has the digest of the
source, "tiny.py:Tiny@0123456789abcdef", or the version of the package: another source is another
trial. The source is the file and the files of the project that it imports. It is read here and
never run; vitscale.train.parts runs it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from vitscale.plan.metrics import METRICS, Metric
from vitscale.plan.spelling import did_you_mean, shown

# field -> what its callable gets by position; a class of `loss`, `augment` or `metrics` is made
# first, and its instance gets that
PARTS: dict[str, tuple[str, ...]] = {
    "dataset": ("split",),
    "augment": ("images", "generator"),
    "model": (),
    "optimizer": ("groups",),
    "loss": ("logits", "targets"),
    "metrics": ("logits", "targets"),
}
CALLED_LATER = ("augment", "loss", "metrics")
TRAINED = ("model", "optimizer", "loss")  # on which the weights after a step depend
Scalar = int | float | bool | str
# values of a field that have a colon and are no part
OTHERS = re.compile("(timm|torchvision):.*")
OF_FILE = re.compile(r"(?P<file>[^:@\0]+\.py):(?P<name>[A-Za-z_]\w*)(@(?P<digest>[0-9a-f]{16}))?")
OF_PACKAGE = re.compile(
    r"(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)(@(?P<version>[\w.+!-]+))?"
)
MOST_FILES, MOST_BYTES = 200, 4 * 2**20  # of a source
REQUIRED, UNREAD = object(), object()  # in place of a default: there is none; it is no constant

# the study file, where it is not the script that runs
study_file: ContextVar[Path | None] = ContextVar("study_file", default=None)
# registers the source with a digest, if the store of the study that starts has it
in_store: ContextVar[Callable[[str], object] | None] = ContextVar("in_store", default=None)


class Source(NamedTuple):
    """The files of a part. A module without a file is a folder."""

    main: str  # dotted name of the module with the callable
    modules: Mapping[str, tuple[bool, str]]  # dotted name -> (whether it is a package, its text)

    def encoded(self) -> bytes:
        """As a file of the store."""
        return json.dumps({"main": self.main, "modules": self.modules}, sort_keys=True).encode()

    @property
    def sha256(self) -> str:
        """64 hex digits; the first 16 are the digest in the names of its parts."""
        return hashlib.sha256(self.encoded()).hexdigest()


_sources: dict[str, Source] = {}  # by digest
_trusted: set[str] = set()  # digests of sources, and parts of packages, that may run
_read: dict[Path, tuple[dict[Path, tuple[int, int]], str]] = {}  # file -> (its files, digest)
_signatures: dict[str, dict[str, Any]] = {}


def is_part(value: object) -> bool:
    """Whether the value of a field names a part."""
    return isinstance(value, str) and ":" in value and not OTHERS.fullmatch(value)


def parts_of(config: Any) -> dict[str, str]:
    """Field -> part, of the fields of a config that name one."""
    return {name: value for name in PARTS if is_part(value := getattr(config, name))}


def digest_of(part: str) -> str:
    """The digest of a part of a file; empty for one of a package."""
    match = OF_FILE.fullmatch(part)
    return match["digest"] or "" if match else ""


def name_of(part: str) -> str:
    """A part without digest or version."""
    return part.partition("@")[0]


def named(field: str, part: str) -> str:
    """The part with its digest or version. Reads its files.

    Raises ValueError for a name that is no part's, files that cannot be read, or a callable that is
    not in the file.
    """
    if match := OF_FILE.fullmatch(part):
        if match["digest"]:
            return part
        digest = _digest_of_file(part, match["file"])
        whole = f"{Path(match['file']).name}:{match['name']}@{digest}"
        signature(field, whole)  # the callable must be there
        return whole
    if match := OF_PACKAGE.fullmatch(part):
        if match["version"]:
            return part
        whole = f"{part}@{_version(part, match['module'])}"
        _trusted.add(whole)  # the user's own code names it
        return whole
    raise ValueError(
        f"{field} must name a part as 'folder/file.py:Name' or 'package.module:Name', but got "
        f"({field}={shown(part)})"
    )


@functools.cache  # a failure is not kept
def _version(part: str, module: str) -> str:
    """The version of a package, for which all that are installed are looked through."""
    top = module.partition(".")[0]
    if top == "torch":
        return importlib.metadata.version("torch").partition("+")[0]
    names = importlib.metadata.packages_distributions().get(top)
    if not names:
        is_file = any((folder / f"{module}.py").is_file() for folder in _folders())
        hint = f"; a file is named as {module}.py:{part.partition(':')[2]}" if is_file else ""
        raise ValueError(
            f"the package of a part must be installed, but got ({part}: no {top}){hint}"
        )
    return importlib.metadata.version(names[0])


def _folders() -> list[Path]:
    """The folders in which the file of a part is looked for: that of the study file, then the
    current one.
    """
    main = study_file.get() or getattr(sys.modules["__main__"], "__file__", None)
    return [*([Path(main).resolve().parent] if main else []), Path.cwd()]


def _digest_of_file(part: str, name: str) -> str:
    path = next((p for folder in _folders() if (p := folder / name).is_file()), None)
    if path is None:
        where = " or ".join(dict.fromkeys(map(str, _folders())))
        raise ValueError(f"the file of a part must exist, but got ({part}: not in {where})")
    path = path.resolve()
    stamps, digest = _read.get(path, ({}, ""))
    if not stamps or any(_stamp(file) != stamp for file, stamp in stamps.items()):
        source, files = read_source(path, _folders()[0])
        digest = register(source)
        _trusted.add(digest)  # it is among the user's own files
        _read[path] = {file: _stamp(file) for file in files}, digest
    return digest


def _stamp(file: Path) -> tuple[int, int]:
    try:
        state = os.stat(file)
    except OSError:
        return 0, 0
    return state.st_mtime_ns, state.st_size


# ---- sources


def register(source: Source) -> str:
    """Keeps a source for this process; returns its digest. It may not run before `trust`."""
    digest = source.sha256[:16]
    _sources.setdefault(digest, source)
    return digest


def source_of(digest: str) -> Source | None:
    """The source with a digest, if this process has it, or the store of the study that starts."""
    if digest and digest not in _sources and (read := in_store.get()):
        read(digest)
    return _sources.get(digest)


def trust(keys: Iterable[str]) -> None:
    """Lets sources, by digest, and parts of packages run in this process."""
    _trusted.update(keys)


def is_trusted(key: str) -> bool:
    """Whether a source or a part of a package may run: the user's own files have or name it, or
    the user trusts it.
    """
    return key in _trusted


def decoded(content: bytes, digest: str) -> Source:
    """The source in a file of a store. Raises ValueError unless it has the digest."""
    if hashlib.sha256(content).hexdigest()[:16] != digest:
        raise ValueError(f"the source of a part must be whole, but got another ({digest})")
    plain = json.loads(content)
    return Source(plain["main"], {n: (bool(p), str(t)) for n, (p, t) in plain["modules"].items()})


def read_source(path: Path, beside: Path) -> tuple[Source, list[Path]]:
    """The source of a file, and its files, with those that would be among them if they existed;
    `beside` is the folder of the study file.

    Modules are looked for as Python would if the study were run from its folder: in the folder of
    the file (above its package, if it is in one), in that of the study, above `studies/`, and in
    folders of PYTHONPATH and of editable packages. What is in none is an installed package, whose
    source is not the part's. Raises ValueError for a file that is no Python or uses sys.path, and
    for more files or bytes than a part has.
    """
    root, parents = path.parent, [path.stem]
    while (root / "__init__.py").is_file():
        parents.insert(0, root.name)
        root = root.parent
    roots = [root, beside, *([beside.parent] if beside.name == "studies" else [])]
    main, files, absent = ".".join(parents), dict[str, Path](), set[Path]()
    modules: dict[str, tuple[bool, str]] = {}
    waiting = [*_with_parents(main)]
    while waiting:
        name = waiting.pop()
        if name in modules or name.partition(".")[0] == "vitscale":
            continue
        file = path if name == main else _file_of(name, roots)
        if file is None:
            for folder in roots:
                place = folder.joinpath(*name.split("."))
                absent |= {place, place.with_name(f"{place.name}.py")}
            continue
        is_package, text = file.name == "__init__.py", _text(file)
        modules[name], files[name] = (is_package, text), file
        size = sum(len(text) for _, text in modules.values())
        if len(modules) > MOST_FILES or size > MOST_BYTES:
            law = f"a part must have at most {MOST_FILES} files and {MOST_BYTES} bytes"
            raise ValueError(f"{law}, but got ({path}: {len(modules)} files, {size} bytes)")
        tree = _parsed(text, file)
        _check_path(tree, file)
        for imported in _imports(tree, name, is_package, file):
            waiting += _with_parents(imported)
            top = imported.partition(".")[0]
            is_there = any((folder / top).is_dir() for folder in roots) or _file_of(top, roots)
            if not is_there and (outside := _folder_of(top)):
                roots.append(outside)
        for imported, line in _imported_by_call(tree):
            if _file_of(imported, roots) is not None:
                law = "a part must import files of the project by `import`, which can be read"
                raise ValueError(f"{law}, but got ({file}, line {line}: {shown(imported)})")
    return Source(main, modules), [*files.values(), *absent]


def _folder_of(name: str) -> Path | None:
    """The folder on Python's path in which a module lies that is not installed."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # without a spec, such as __main__
        return None
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    place = Path(next(filter(None, places), ""))
    is_installed = bool({"site-packages", "dist-packages"} & {*place.parts})
    is_installed |= place.is_relative_to(sysconfig.get_path("stdlib"))
    if name == "vitscale" or is_installed or not place.is_absolute():
        return None
    if place.suffix not in ("", ".py"):
        return None
    return place.parent.parent if place.name == "__init__.py" else place.parent


def _with_parents(name: str) -> list[str]:
    pieces = name.split(".")
    return [".".join(pieces[: i + 1]) for i in range(len(pieces))]


def _file_of(name: str, roots: Iterable[Path]) -> Path | None:
    for root in roots:
        place = root.joinpath(*name.split("."))
        for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if file.is_file():
                return file.resolve()
    return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"the file of a part must be readable, but got ({file}: {error})"
        ) from None


def _parsed(text: str, file: Path | str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
        raise ValueError(
            f"the file of a part must be Python, but got ({file}{where}: {reason})"
        ) from None


def _imports(tree: ast.Module, module: str, is_package: bool, file: Path) -> Iterator[str]:
    """Dotted names of the modules that a module may import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            package = module.split(".") if is_package else module.split(".")[:-1]
            if node.level > len(package):
                law = "a relative import must be within a package (folders with an __init__.py)"
                raise ValueError(f"{law}, but got ({file}, line {node.lineno})")
            before = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*before, *([node.module] if node.module else [])])
            yield from ([base] if base else [])
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _imported_by_call(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """(name, line) of modules that are imported by a function, as far as they are written out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            by, name = ast.unparse(node.func), node.args[0].value
            if by.endswith(("import_module", "__import__")) and isinstance(name, str):
                yield name, node.lineno


def _check_path(tree: ast.Module, file: Path) -> None:
    """Raises ValueError for a module that names sys.path, where files outside its source lie."""
    for node in ast.walk(tree):
        is_path = isinstance(node, ast.Attribute) and node.attr == "path"
        is_path = is_path and ast.unparse(node) == "sys.path"
        if isinstance(node, ast.ImportFrom) and node.module == "sys":
            is_path = any(alias.name == "path" for alias in node.names)
        if is_path:
            law = "a part must not use sys.path: its source is what it imports without"
            raise ValueError(f"{law}, but got ({file}, line {getattr(node, 'lineno', 0)})")


# ---- what a callable asks for


def signature(field: str, part: str) -> dict[str, Any] | None:
    """Parameter -> default, of those that are given by name: a constant, REQUIRED or UNREAD.

    None for a part of a package, and for one whose source this process does not have. Raises
    ValueError if the file does not define the callable.
    """
    source = source_of(digest_of(part))
    if source is None:
        return None
    key = f"{field} {part}"
    if key not in _signatures:
        match = OF_FILE.fullmatch(part)
        assert match
        _signatures[key] = _signature(field, name_of(part), match["name"], source)
    return _signatures[key]


def _signature(field: str, part: str, name: str, source: Source) -> dict[str, Any]:
    definition = _definition(name, source)
    if definition is None:
        law = "a part must be a class or a function that its file defines"
        kinds = ast.ClassDef | ast.FunctionDef
        there = [n.name for n in _main_of(source).body if isinstance(n, kinds)]
        raise ValueError(f"{law}, but got ({part}: no {name} in it){did_you_mean(name, there)}")
    position = len(PARTS[field])
    if isinstance(definition, ast.ClassDef):
        function = _init_of(definition, source)
        if function is None:
            return _fields_of(definition)
        position = 1 + (0 if field in CALLED_LATER else position)
    else:
        function = definition
    given = function.args
    defaults = [REQUIRED] * (len(given.posonlyargs) + len(given.args) - len(given.defaults))
    defaults += [_constant(node) for node in given.defaults]
    names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    if len(names) < position and given.vararg is None:
        law = f"a part of the field {field} must take ({', '.join(PARTS[field])}) by position"
        raise ValueError(f"{law}, but got ({part}: {len(names)} parameters)")
    by_name = dict(zip(names[position:], defaults[position:], strict=True))
    for argument, node in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        by_name[argument.arg] = REQUIRED if node is None else _constant(node)
    return by_name


def _main_of(source: Source) -> ast.Module:
    return _parsed(source.modules[source.main][1], source.main)


def _definition(name: str, source: Source) -> ast.ClassDef | ast.FunctionDef | None:
    for node in _main_of(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    return None


def _init_of(node: ast.ClassDef, source: Source) -> ast.FunctionDef | None:
    """The __init__ of a class, its own or that of a base class in the same file."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return part
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id != node.name:
            definition = _definition(base.id, source)
            if isinstance(definition, ast.ClassDef) and (init := _init_of(definition, source)):
                return init
    return None


def _fields_of(node: ast.ClassDef) -> dict[str, Any]:
    """Those of a dataclass with their defaults; none of another class."""
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return {}
    fields = [
        n for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    ]
    return {
        ast.unparse(n.target): REQUIRED if n.value is None else _constant(n.value) for n in fields
    }


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return UNREAD


# ---- metrics of one's own

Function = TypeVar("Function", bound=Callable[..., Any])


def reports(*metrics: Metric) -> Callable[[Function], Function]:
    """Declares the columns that a callable of the field `metrics` gives, as a decorator.

    The callable maps logits (B, classes) and labels (B,) to a dictionary of values (B,), with the
    names of the metrics. A column is their mean over an evaluation set. The declaration is read and
    not run: numbers must be written out, `math.inf` included.
    """

    def unchanged(function: Function) -> Function:
        return function

    return unchanged


def metrics_of(part: str) -> tuple[Metric, ...]:
    """The metrics that a part declares; none where its source is not at hand.

    Raises ValueError for a declaration that cannot be read.
    """
    source = source_of(digest_of(part))
    if source is None:
        return ()
    if part not in _metrics:
        definition = _definition(name_of(part).rpartition(":")[2], source)
        assert definition is not None  # see `named`
        _metrics[part] = tuple(_declared(definition, part))
    return _metrics[part]


_metrics: dict[str, tuple[Metric, ...]] = {}


def _declared(definition: ast.ClassDef | ast.FunctionDef, part: str) -> Iterator[Metric]:
    calls = [
        node
        for node in definition.decorator_list
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("reports")
    ]
    if not calls or not calls[0].args:
        law = "a part of the field metrics must be decorated by @reports(Metric(...), ...)"
        raise ValueError(f"{law}, but got ({name_of(part)})")
    for node in calls[0].args:
        try:
            assert isinstance(node, ast.Call) and not node.args
            given = {str(word.arg): _number(word.value) for word in node.keywords}
            if "decimals" not in given and 0 < given["near"] < 1:  # a tenth of what is near is seen
                given["decimals"] = 1 + math.ceil(-math.log10(given["near"]))
            metric = Metric(**given)
            assert re.fullmatch("[a-z][a-z0-9_]*", metric.name) and metric.name not in METRICS
            assert metric.unit.strip(), "a unit must have a name"
        except (ValueError, TypeError, KeyError, AssertionError, SyntaxError) as error:
            law = "a metric must be Metric(name=..., ...) with constants, a unit and its own name"
            raise ValueError(
                f"{law}, but got ({name_of(part)}: {shown(ast.unparse(node))}; {error})"
            ) from None
        yield metric


def _number(node: ast.expr) -> Any:
    """The value of a constant; infinity may be `math.inf`, also within a tuple."""
    if isinstance(node, ast.Tuple):
        return tuple(map(_number, node.elts))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    return math.inf if ast.unparse(node) == "math.inf" else ast.literal_eval(node)


# ---- arguments of one's own


def read_own(text: str) -> dict[str, Scalar]:
    """The arguments in "depth=2,act='gelu'". Raises ValueError for another text."""
    try:
        (call,) = ast.parse(f"f({text})").body
        assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
        assert not call.value.args and isinstance(call.value.func, ast.Name)
        values = {str(word.arg): ast.literal_eval(word.value) for word in call.value.keywords}
        assert all(word.arg for word in call.value.keywords)
    except (SyntaxError, ValueError, TypeError, AssertionError, RecursionError, MemoryError):
        raise ValueError(
            f"own must be like {{'dim': 64}}, or 'dim=64', but got (own={shown(text)})"
        ) from None
    return values


def takes(field: str, part: str, name: str) -> bool:
    """Whether a callable asks for a field of the config, as far as this process can know."""
    accepted = signature(field, part)
    return accepted is None or name in accepted
