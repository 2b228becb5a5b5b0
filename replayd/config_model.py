"""The settings of the daemon as a model: their names, defaults and bounds, and what each of them is built into.

Numbers which a rate limiter or selector judges are judged by that class itself. Knows neither file nor command line.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from replayd import rate_limiters, selectors
from replayd.addresses import OFF, bindable, collide, http_address, is_public
from replayd.extensions import InsertOnSample, PriorityDiffusion
from replayd.limits import CHECKPOINT_INTERVAL_S, LEASE_S, NAME_BYTES
from replayd.table import Table
from replayd_client.specs import TensorSpec
from replayd_client.structure import Structure


class Section(BaseModel):
    """A table of the file. Keys it does not know are faults: a misspelt setting must not be a default in disguise."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Choice(Section):
    """A table with a `type`, which says what its other keys are."""

    type: str

    def build(self) -> object:
        """What this section stands for, new. Raises ValueError for numbers which the class of that refuses."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _judge(self) -> Self:
        self.build()
        return self

    def __str__(self) -> str:
        settings = ", ".join(f"{key}={value}" for key, value in self if key != "type" and value is not None)
        return f"{self.type}({settings})" if settings else self.type


class PlainSelector(_Choice):
    """A selector without settings. As a string, `"uniform"`, it is short for `{ type = "uniform" }`."""

    type: Literal["uniform", "fifo", "lifo", "min_heap", "max_heap"]

    def build(self) -> selectors.Selector:
        return _PLAIN_SELECTORS[self.type]()


_PLAIN_SELECTORS: dict[str, type[selectors.Selector]] = {
    "uniform": selectors.Uniform,
    "fifo": selectors.Fifo,
    "lifo": selectors.Lifo,
    "min_heap": selectors.MinHeap,
    "max_heap": selectors.MaxHeap,
}


class PrioritizedSelector(_Choice):
    """Draws in proportion to priority ** `priority_exponent`, which is 0 to 3."""

    type: Literal["prioritized"]
    priority_exponent: float

    def build(self) -> selectors.Selector:
        return selectors.Prioritized(self.priority_exponent)


class MinSizeLimiter(_Choice):
    """Samples wait until the table holds `min_size_to_sample` items, at least 1; inserts never wait."""

    type: Literal["min_size"]
    min_size_to_sample: int

    def build(self) -> rate_limiters.RateLimiter:
        return rate_limiters.MinSize(self.min_size_to_sample)


def _number_or_pair(value: Any) -> Any:
    numbers = value if isinstance(value, list) else [value]
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers) or (
        isinstance(value, list) and len(value) != 2
    ):
        raise ValueError(f"expected a number or [min_diff, max_diff], got {value!r}")
    return value if not isinstance(value, list) else (float(value[0]), float(value[1]))


class SampleToInsertRatioLimiter(_Choice):
    """Keeps samples per insert near a ratio. `error_buffer`: half the width of the band, or `[min_diff, max_diff]`."""

    type: Literal["sample_to_insert_ratio"]
    samples_per_insert: float
    min_size_to_sample: int
    error_buffer: Annotated[float | tuple[float, float], BeforeValidator(_number_or_pair)]

    def build(self) -> rate_limiters.RateLimiter:
        return rate_limiters.SampleToInsertRatio(self.samples_per_insert, self.min_size_to_sample, self.error_buffer)


class QueueLimiter(_Choice):
    """One sample an insert, and at most `size` inserts ahead. Goes with fifo and max_times_sampled 1."""

    type: Literal["queue"]
    size: int = Field(ge=1)

    def build(self) -> rate_limiters.RateLimiter:
        return rate_limiters.Queue(self.size)


class StackLimiter(_Choice):
    """One sample an insert, and at most `size` inserts ahead. Goes with lifo and max_times_sampled 1."""

    type: Literal["stack"]
    size: int = Field(ge=1)

    def build(self) -> rate_limiters.RateLimiter:
        return rate_limiters.Stack(self.size)


class GeneralLimiter(_Choice):
    """The base of the others. A bound that is left out is none."""

    type: Literal["rate_limiter"]
    samples_per_insert: float
    min_size_to_sample: int
    min_diff: float | None = None
    max_diff: float | None = None

    def build(self) -> rate_limiters.RateLimiter:
        return rate_limiters.RateLimiter(self.samples_per_insert, self.min_size_to_sample, self.min_diff, self.max_diff)


def _named(value: Any) -> Any:
    """`"uniform"` is short for `{ type = "uniform" }`."""
    return {"type": value} if isinstance(value, str) else value


Selector = Annotated[PlainSelector | PrioritizedSelector, Field(discriminator="type"), BeforeValidator(_named)]
Limiter = Annotated[
    MinSizeLimiter | SampleToInsertRatioLimiter | QueueLimiter | StackLimiter | GeneralLimiter,
    Field(discriminator="type"),
    BeforeValidator(_named),
]


def _path_component(part: Any) -> str | int:
    if isinstance(part, bool) or not isinstance(part, str | int) or (isinstance(part, int) and part < 0):
        raise ValueError(f"expected a key of a map (a string) or an index of a list (an integer ≥ 0), got {part!r}")
    return part


class ColumnConfig(Section):
    """One column of a signature. `path` lists its components: `[]` is a bare array, `["obs", "pos", 0]` a nested one.

    `shape` is that of the item's column, its leading axis being the number of rows; -1 leaves a dimension free.
    """

    path: list[Annotated[Any, AfterValidator(_path_component)]]
    dtype: Literal[
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64", "complex64", "complex128", "bytes", "str",
    ]  # fmt: skip
    shape: list[Annotated[int, Field(ge=-1)]]

    def spec(self) -> TensorSpec:
        """The column as a spec of its shape and dtype, without its path."""
        return TensorSpec(tuple(None if size == -1 else size for size in self.shape), self.dtype)


def _signature(columns: Sequence[ColumnConfig]) -> Any:
    """The nest of specs with these columns. Raises ValueError if their paths are not those of one nest."""
    return Structure.from_paths(column.path for column in columns).rebuild([column.spec() for column in columns])


def _is_one_nest(columns: list[ColumnConfig]) -> list[ColumnConfig]:
    _signature(columns)
    return columns


LIMITERS: dict[str, type[Section]] = {
    "min_size": MinSizeLimiter,
    "sample_to_insert_ratio": SampleToInsertRatioLimiter,
    "queue": QueueLimiter,
    "stack": StackLimiter,
    "rate_limiter": GeneralLimiter,
}
CHOICES: dict[str, type[Section]] = {"prioritized": PrioritizedSelector, **LIMITERS}
"""The model behind each `type`; those not listed are plain selectors."""


def _table_name(name: str) -> str:
    if not 1 <= len(name.encode()) <= NAME_BYTES.value or not name.isprintable():
        raise ValueError(f"expected 1 to {NAME_BYTES.value} bytes of printable UTF-8, got {name!r}")
    if "=" in name:
        raise ValueError(f"a name has no '=', got {name!r}; is a comma missing, as in \"replay,sampler=fifo\"?")
    return name


class ExtensionConfig(Section):
    """One extension of a table: a shipped one by name, or a class of an importable module as `package.module:Class`."""

    type: str
    options: dict[str, Any] = {}

    def build(self) -> object:
        """Make the extension; what its class says about the options becomes a fault of the configuration."""
        kind = _SHIPPED_EXTENSIONS.get(self.type)
        if kind is None:
            module, colon, name = self.type.partition(":")
            if not colon:
                raise ValueError(
                    f"expected {', '.join(_SHIPPED_EXTENSIONS)} or package.module:Class, got {self.type!r}"
                )
            try:
                kind = getattr(import_module(module), name)
            except (ImportError, AttributeError) as error:
                raise ValueError(f"extension {self.type!r} cannot be loaded: {error}") from error
        try:
            return kind(**self.options)
        except TypeError as error:
            raise ValueError(f"extension {self.type!r}: {error}") from error

    @model_validator(mode="after")
    def _judge(self) -> Self:
        self.build()
        return self


_SHIPPED_EXTENSIONS: dict[str, Callable[..., object]] = {
    "priority_diffusion": PriorityDiffusion,
    "insert_on_sample": InsertOnSample,
}


class TableConfig(Section):
    """One table. A preset settles sampler, remover, limiter and max_times_sampled, and needs max_size."""

    name: Annotated[str, AfterValidator(_table_name)]
    preset: Literal["queue", "stack"] | None = None
    sampler: Selector = PlainSelector(type="uniform")
    remover: Selector = PlainSelector(type="fifo")
    max_size: int = Field(1_000_000, ge=1)
    max_times_sampled: int = Field(0, ge=0)
    limiter: Limiter = MinSizeLimiter(type="min_size", min_size_to_sample=1)
    signature: Annotated[list[ColumnConfig], AfterValidator(_is_one_nest)] | None = None
    extensions: list[ExtensionConfig] = []

    @model_validator(mode="after")
    def _apply_preset(self) -> Self:
        if self.preset is None:
            return self
        settled = {"sampler", "remover", "limiter", "max_times_sampled"} & self.model_fields_set
        if settled:
            raise ValueError(f"preset {self.preset!r} settles {', '.join(sorted(settled))}; leave it out")
        if "max_size" not in self.model_fields_set:
            raise ValueError(f"preset {self.preset!r} needs max_size: inserts wait when it is reached")
        order: Literal["fifo", "lifo"] = "fifo" if self.preset == "queue" else "lifo"
        self.sampler = self.remover = PlainSelector(type=order)
        self.max_times_sampled = 1
        limiter = QueueLimiter if self.preset == "queue" else StackLimiter
        self.limiter = limiter.model_validate({"type": self.preset, "size": self.max_size})
        return self

    @model_validator(mode="after")
    def _can_be_sampled(self) -> Self:
        least = getattr(self.limiter, "min_size_to_sample", 1)
        if least > self.max_size:
            raise ValueError(
                f"min_size_to_sample is {least} and max_size {self.max_size}: the table could never hold enough items "
                "to be sampled"
            )
        return self

    def build(self) -> Table:
        """Make the table, empty."""
        return Table(
            self.name,
            sampler=self.sampler.build(),
            remover=self.remover.build(),
            max_size=self.max_size,
            rate_limiter=self.limiter.build(),
            max_times_sampled=self.max_times_sampled,
            extensions=[extension.build() for extension in self.extensions],
            signature=None if self.signature is None else _signature(self.signature),
        )

    def __str__(self) -> str:
        draws = "any number of draws" if self.max_times_sampled == 0 else f"at most {self.max_times_sampled} draw(s)"
        return (
            f"at most {self.max_size} items, {draws} of each, sampler {self.sampler}, remover {self.remover}, "
            f"limiter {self.limiter}" + (", with a signature" if self.signature is not None else "")
        )


def _seconds(value: Any) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|h)", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f'expected a time with its unit, such as "500ms", "60s", "5min" or "1h", got {value!r}')
    return float(match[1]) * {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}[match[2]]


class ServerConfig(Section):
    """Where the daemon listens; `ingest = ""` is no PULL socket. With a seed, the same messages draw the same items."""

    listen: Annotated[str, AfterValidator(bindable)] = "tcp://127.0.0.1:7077"
    ingest: Annotated[str, AfterValidator(lambda address: address and bindable(address))] = "tcp://127.0.0.1:7079"
    seed: int | None = Field(None, ge=0)
    lease: Annotated[float, BeforeValidator(_seconds), Field(ge=0.1, le=86400.0)] = LEASE_S
    insecure_public: bool = False

    @model_validator(mode="after")
    def _protect(self) -> Self:
        if collide(self.listen, self.ingest):
            raise ValueError(f"listen {self.listen} and ingest {self.ingest} need a port each, not the same one")
        public = [address for address in (self.listen, self.ingest) if is_public(address)]
        if public and not self.insecure_public:
            raise ValueError(
                f"{' and '.join(public)} can be reached from other machines, and there is no authentication: anybody "
                "there could read and write all data. insecure_public = true (--insecure-public) says that it is meant"
            )
        return self


class StoreConfig(Section):
    """Where what the server holds is kept on disk. `checkpoint_interval = "0s"`: a checkpoint only when asked for."""

    path: Annotated[str, Field(min_length=1)]
    checkpoint_interval: Annotated[float, BeforeValidator(_seconds)] = CHECKPOINT_INTERVAL_S
    checkpoint_on_stop: bool = True

    def __str__(self) -> str:
        when = [f"every {self.checkpoint_interval:g} s"] if self.checkpoint_interval else []
        when += ["at the end"] if self.checkpoint_on_stop else []
        return f"{self.path}: checkpoints {' and '.join(when) or 'when asked for'}"


class HttpConfig(Section):
    """Where the status page and metrics are served: HOST:PORT, or "off"."""

    listen: Annotated[str, AfterValidator(http_address)] = "127.0.0.1:7078"
    _is_said: bool = PrivateAttr(default=True)

    @property
    def is_said(self) -> bool:
        """Whether somebody chose the address; where nobody did, any other will do."""
        return self._is_said

    @is_said.setter
    def is_said(self, is_said: bool) -> None:
        self._is_said = is_said

    @property
    def is_on(self) -> bool:
        """Whether anything is served."""
        return self.listen != OFF


class Config(Section):
    """The whole file."""

    server: ServerConfig = ServerConfig()
    http: HttpConfig = HttpConfig()
    store: StoreConfig | None = None
    table: list[TableConfig] = Field(default=[TableConfig(name="replay")], min_length=1)

    @model_validator(mode="after")
    def _protect_http(self) -> Self:
        server = self.server
        addresses = [server.listen, server.ingest]
        if self.http.is_on:
            address = f"tcp://{self.http.listen}"
            if any(collide(address, other) for other in addresses):
                raise ValueError(f"http.listen {self.http.listen} needs a port of its own")
            if is_public(address) and not server.insecure_public:
                raise ValueError(
                    f"http.listen {self.http.listen} can be reached from other machines, and there is no "
                    "authentication: anybody there could read how the daemon is. server.insecure_public = true "
                    "(--insecure-public) says that it is meant"
                )
            addresses.append(address)
        public = [each for each in addresses if is_public(each)]
        if server.insecure_public and not public:
            warnings.warn(
                f"insecure_public changes nothing: {server.listen} cannot be reached from other machines; "
                'listen = "tcp://0.0.0.0:PORT" (--listen) can',
                stacklevel=2,
            )
        return self

    @model_validator(mode="after")
    def _distinct_names(self) -> Self:
        names = [table.name for table in self.table]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"tables are named twice: {', '.join(map(repr, twice))}")
        return self
