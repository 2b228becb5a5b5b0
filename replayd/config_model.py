"""The settings of the daemon as a model: their names, defaults and bounds, and what each of them is built into.

What stands below a key is what `replayd default-config` says of it. Knows neither file nor command line.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from replayd.addresses import OFF, bindable, collide, http_address, ingest_bindable, is_public
from replayd.config_choices import Limiter, MinSizeLimiter, PlainSelector, QueueLimiter, Section, Selector, StackLimiter
from replayd.config_units import as_bytes, as_seconds
from replayd.extensions import InsertOnSample, PriorityDiffusion
from replayd.journal import JournalOptions
from replayd.limits import CHECKPOINT_INTERVAL_S, LEASE_S, NAME_BYTES
from replayd.table import Table
from replayd.table_arguments import check_extension, check_extensions_together
from replayd_client.specs import TensorSpec
from replayd_client.structure import Structure


def _path_component(part: Any) -> str | int:
    if isinstance(part, bool) or not isinstance(part, str | int) or (isinstance(part, int) and part < 0):
        raise ValueError(f"expected a key of a map (a string) or an index of a list (an integer ≥ 0), got {part!r}")
    return part


class ColumnConfig(Section):
    """One column of a signature. `path` lists its components: `[]` is a bare array, `["obs", "pos", 0]` a nested one.

    `shape` is that of the item's column, its leading axis being the number of rows; -1 leaves a dimension free.
    """

    path: list[Annotated[Any, AfterValidator(_path_component)]]
    """Where in the nest it is."""
    dtype: Literal[
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64", "complex64", "complex128", "bytes", "str",
    ]  # fmt: skip
    """Type of its values; values of "bytes" and "str" have any length."""
    shape: list[Annotated[int, Field(ge=-1)]]
    """Shape, rows first; -1: any number."""

    def spec(self) -> TensorSpec:
        """The column as a spec of its shape and dtype, without its path."""
        return TensorSpec(tuple(None if size == -1 else size for size in self.shape), self.dtype)


def _signature(columns: Sequence[ColumnConfig]) -> Any:
    """The nest of specs with these columns. Raises ValueError if their paths are not those of one nest."""
    return Structure.from_paths(column.path for column in columns).rebuild([column.spec() for column in columns])


def _is_one_nest(columns: list[ColumnConfig]) -> list[ColumnConfig]:
    _signature(columns)
    return columns


def _table_name(name: str) -> str:
    if not 1 <= len(name.encode()) <= NAME_BYTES.value or not name.isprintable():
        raise ValueError(f"expected 1 to {NAME_BYTES.value} bytes of printable UTF-8, got {name!r}")
    if "=" in name:
        raise ValueError(f"a name has no '=', got {name!r}; is a comma missing, as in \"replay,sampler=fifo\"?")
    return name


class ExtensionConfig(Section):
    """One extension of a table: a shipped one by name, or a class of an importable module as `package.module:Class`."""

    type: str
    """A shipped one (priority_diffusion, insert_on_sample), or package.module:Class."""
    options: dict[str, Any] = Field({}, examples=[{"decay": 0.5}])
    """What its class takes."""

    def build(self) -> object:
        """Make the extension. Raises ValueError for whatever is wrong, also if foreign code raised it."""
        kind = _SHIPPED_EXTENSIONS.get(self.type)
        if kind is None:
            module, colon, name = self.type.partition(":")
            if not colon:
                raise ValueError(
                    f"expected {', '.join(_SHIPPED_EXTENSIONS)} or package.module:Class, got {self.type!r}"
                )
            with self._foreign(" cannot be loaded"):
                kind = getattr(import_module(module), name)
        with self._foreign(""):
            made = kind(**self.options)
            check_extension(made)
        return made

    @contextmanager
    def _foreign(self, what: str) -> Iterator[None]:
        """Make a fault of the configuration of whatever foreign code raises: a SystemExit must not end us, either."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ValueError(f"extension {self.type!r}{what}: {_told(error)}") from error

    @model_validator(mode="after")
    def _judge(self) -> Self:
        self.build()
        return self


def _told(error: BaseException) -> str:
    """What foreign code raised, on one line; its text is foreign code too."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_SHIPPED_EXTENSIONS: dict[str, Callable[..., object]] = {
    "priority_diffusion": PriorityDiffusion,
    "insert_on_sample": InsertOnSample,
}


class TableConfig(Section):
    """One table. A preset settles sampler, remover, limiter and max_times_sampled, and needs max_size."""

    name: Annotated[str, AfterValidator(_table_name)]
    """What clients call it: 1 to 128 bytes of printable UTF-8, without '='."""
    preset: Literal["queue", "stack"] | None = Field(None, examples=["queue"])
    """Settles sampler, remover, limiter and max_times_sampled, which are left out then; needs max_size."""
    sampler: Selector = PlainSelector(type="uniform")
    """Who is drawn: uniform, fifo, lifo, min_heap, max_heap, or { type = "prioritized", priority_exponent = 0.6 }."""
    remover: Selector = PlainSelector(type="fifo")
    """Who leaves a full table; the same choices."""
    max_size: int = Field(1_000_000, ge=1)
    """Items that it holds."""
    max_times_sampled: int = Field(0, ge=0)
    """After so many draws an item leaves; 0: any number of draws."""
    max_bytes: Annotated[int | None, BeforeValidator(as_bytes), Field(ge=1)] = Field(None, examples=["4GiB"])
    """Bytes that its items hold: payload, 96 a chunk, 8 a column, 200 an item; without it no limit but the server's."""
    when_full: Literal["evict", "block", "reject"] = "evict"
    """At a limit of bytes: evict (the remover makes room), block (inserts wait) or reject (they are refused)."""
    limiter: Limiter = MinSizeLimiter(type="min_size", min_size_to_sample=1)
    """Who waits when: min_size, sample_to_insert_ratio, queue, stack or rate_limiter, each with its keys."""
    signature: Annotated[list[ColumnConfig], AfterValidator(_is_one_nest)] | None = Field(
        None, examples=[[{"path": ["observation"], "dtype": "float32", "shape": [-1, 4]}]]
    )
    """What items must look like, a column each; without one, anything goes."""
    extensions: list[ExtensionConfig] = Field(
        [], examples=[[{"type": "priority_diffusion", "options": {"decay": 0.5, "distance": 2}}]]
    )
    """Foreign code that is called with each batch."""

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
        """Make the table, empty. Raises ValueError for an extension that can be made no more."""
        return Table(
            self.name,
            sampler=self.sampler.build(),
            remover=self.remover.build(),
            max_size=self.max_size,
            rate_limiter=self.limiter.build(),
            max_times_sampled=self.max_times_sampled,
            extensions=self.build_extensions(),
            signature=None if self.signature is None else _signature(self.signature),
            max_bytes=self.max_bytes,
            when_full=self.when_full,
        )

    def build_extensions(self) -> list[object]:
        """Make the table's extensions, new ones each time. Raises ValueError that names the table."""
        try:
            return [extension.build() for extension in self.extensions]
        except ValueError as error:
            raise ValueError(f"table {self.name!r}: {error}") from error

    def __str__(self) -> str:
        draws = "any number of draws" if self.max_times_sampled == 0 else f"at most {self.max_times_sampled} draw(s)"
        most = f"at most {self.max_size} items" + ("" if self.max_bytes is None else f" and {self.max_bytes} bytes")
        if self.when_full != "evict":
            most += f" (then {self.when_full})"
        return f"{most}, {draws} of each, sampler {self.sampler}, remover {self.remover}, limiter {self.limiter}" + (
            ", with a signature" if self.signature is not None else ""
        )


class ServerConfig(Section):
    """Where the daemon listens; `ingest = ""` is no PULL socket. With a seed, the same messages draw the same items."""

    listen: Annotated[str, AfterValidator(bindable)] = "tcp://127.0.0.1:7077"
    """Where requests are taken: tcp://HOST:PORT, HOST a number, `*` or localhost; or ipc://PATH."""
    ingest: Annotated[str, AfterValidator(ingest_bindable)] = "tcp://127.0.0.1:7079"
    """Where inserts by PUSH are taken, at most once each; "" for nowhere. Unless said, two ports above `listen`, or, if
    that is a path, at the path and `-ingest`."""
    seed: int | None = Field(None, ge=0, examples=[1])
    """With it the same messages draw the same items, and keys begin at 1; without, each start draws others, and gives
    items keys that none before it gave."""
    max_bytes: Annotated[int | None, BeforeValidator(as_bytes), Field(ge=1)] = Field(None, examples=["16GiB"])
    """Bytes that all tables hold together, as a table's max_bytes; each table's when_full says what happens then."""
    lease: Annotated[float, BeforeValidator(as_seconds), Field(ge=0.1, le=86400.0)] = LEASE_S
    """How long a silent writer is remembered, so that it may go on where it was."""
    insecure_public: bool = False
    """Allow addresses that other machines can reach although whoever reaches them may read and write all data."""

    @model_validator(mode="after")
    def _protect(self) -> Self:
        if collide(self.listen, self.ingest):
            raise ValueError(f"listen {self.listen} and ingest {self.ingest} need a port each, not the same one")
        return self


def _path(path: str) -> str:
    if "\0" in path:
        raise ValueError(f"expected a path, in which there is no NUL, got {path!r}")
    return path


class AccessConfig(Section):
    """Who may come in. With this section everybody needs a key, and it says what each may ask for."""

    keys: Annotated[str, AfterValidator(_path), Field(min_length=1, examples=["/etc/replayd/keys"])]
    """Directory of the keys that `replayd keys` makes. The list of who has one is read again on SIGHUP."""

    def __str__(self) -> str:
        return f"keys in {self.keys}"


class StoreConfig(Section):
    """Where what the server holds is kept on disk. `checkpoint_interval = "0s"`: a checkpoint only when asked for."""

    path: Annotated[str, AfterValidator(_path), Field(min_length=1, examples=["/var/lib/replayd/store"])]
    """Directory of the store. Without this section nothing outlives the daemon."""
    checkpoint_interval: Annotated[float, BeforeValidator(as_seconds)] = CHECKPOINT_INTERVAL_S
    """Between two checkpoints; "0s": only when asked for."""
    checkpoint_on_stop: bool = True
    """Whether the daemon's end writes a last one."""
    journal: Literal["off", "interval", "sync"] = "off"
    """What a crash may take: "off" all since the last checkpoint, "interval" the last `journal_interval`, "sync"
    nothing that was acknowledged."""
    journal_interval: Annotated[float, Field(gt=0), BeforeValidator(as_seconds)] = JournalOptions().interval_s
    """What a crash may take where the journal is "interval": it is committed twice in that time."""
    journal_max_bytes: Annotated[int, Field(ge=1 << 20), BeforeValidator(as_bytes)] = JournalOptions().max_bytes
    """With so much in the journal the next checkpoint begins, which trims it."""

    def __str__(self) -> str:
        when = [f"every {self.checkpoint_interval:g} s"] if self.checkpoint_interval else []
        when += ["at the end"] if self.checkpoint_on_stop else []
        journal = {
            "off": "",
            "sync": ", each acknowledgement",
            "interval": f", a journal of {self.journal_interval:g} s",
        }
        return f"{self.path}: checkpoints {' and '.join(when) or 'when asked for'}{journal[self.journal]}"


class HttpConfig(Section):
    """Where the status page and metrics are served: HOST:PORT, or "off"."""

    listen: Annotated[str, AfterValidator(http_address)] = "127.0.0.1:7078"
    """HOST:PORT, or "off". Unless said, one port above `server.listen`, on loopback."""

    @property
    def is_on(self) -> bool:
        """Whether anything is served."""
        return self.listen != OFF

    @property
    def address(self) -> str:
        """Where it is served if it is on, as `server.listen` writes it."""
        return f"tcp://{self.listen}"


class LogConfig(Section):
    """What is told, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is worth a line."""
    format: Literal["auto", "text", "json", "journald"] = "auto"
    """Lines of text, JSON or journal entries with fields; auto: the journal if stderr goes there, else text."""


FAULTS_OF_THE_WHOLE = "faults_of_the_whole"
"""Type of the error of a whole whose parts do not go together; its context has all such faults."""


class Config(Section):
    """The whole file."""

    server: ServerConfig = ServerConfig()
    """Where the daemon listens, and for whom."""
    http: HttpConfig = HttpConfig()
    """The status page, metrics and probes."""
    log: LogConfig = LogConfig()
    """What is told, and how."""
    access: AccessConfig | None = None
    """Who may come in."""
    store: StoreConfig | None = None
    """Where what is held is kept on disk."""
    table: list[TableConfig] = Field(default=[TableConfig(name="replay")], min_length=1)
    """A section for each table."""
    _origins: dict[tuple[str, str], str] = PrivateAttr(default_factory=dict)

    @property
    def origins(self) -> dict[tuple[str, str], str]:
        """By section and key where each setting was made, as `FILE:LINE`, a variable or an option; what nobody made,
        defaults and what follows from other settings, is not among them."""
        return self._origins

    @model_validator(mode="after")
    def _judge_whole(self) -> Self:
        if faults := [*self._public_faults(), *self._http_faults(), *self._extension_faults()]:
            raise PydanticCustomError(FAULTS_OF_THE_WHOLE, "{text}", {"text": "; ".join(faults), "faults": faults})
        addresses = [self.server.listen, self.server.ingest, *([self.http.address] if self.http.is_on else [])]
        if self.server.insecure_public and not any(map(is_public, addresses)):
            warnings.warn(
                f"insecure_public changes nothing: {self.server.listen} cannot be reached from other machines; "
                'listen = "tcp://0.0.0.0:PORT" (--listen) can',
                stacklevel=2,
            )
        return self

    def _public_faults(self) -> Iterator[str]:
        server = self.server
        public = [address for address in (server.listen, server.ingest) if is_public(address)]
        if public and self.access is None and not server.insecure_public:
            yield (
                f"{' and '.join(public)} can be reached from other machines, and nobody needs a key: anybody there "
                "could read and write all data. `[access] keys` settles who may; server.insecure_public = true "
                "(--insecure-public) says that it is meant"
            )

    def _http_faults(self) -> Iterator[str]:
        http, server = self.http, self.server
        if not http.is_on:
            return
        if any(collide(http.address, other) for other in (server.listen, server.ingest)):
            yield f"http.listen {http.listen} needs a port of its own"
        if is_public(http.address) and not server.insecure_public:
            yield (
                f"http.listen {http.listen} can be reached from other machines, and there is no "
                "authentication: anybody there could read how the daemon is. server.insecure_public = true "
                "(--insecure-public) says that it is meant"
            )

    def _extension_faults(self) -> Iterator[str]:
        try:
            check_extensions_together({table.name: table.build_extensions() for table in self.table})
        except ValueError as error:
            yield str(error)


def _sections() -> dict[str, type[Section]]:
    found: dict[str, type[Section]] = {}
    for name, field in Config.model_fields.items():
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        found.update((name, kind) for kind in kinds if issubclass(kind, Section) and name != "table")
    return found


SECTIONS: dict[str, type[Section]] = _sections()
"""The model of each section that stands in the file once, by its name there."""
