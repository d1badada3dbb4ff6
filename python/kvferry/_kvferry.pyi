"""Bindings over kvferry's public C++ API, under the same names.

Ids are plain integers (room, attempt, handle id, page, slot: unsigned), apart from Binding. Names of
values drop C++'s leading k: kPrefill is Role.Prefill.

Errors: where C++ returns an error value, KvferryError is raised; its attribute failure is that
value. A bad argument raises InvalidArgument, which is a KvferryError and a ValueError; an object of
a wrong type raises TypeError. What goes wrong later in a room is never raised: poll() says Failed
and failure() why.

Threads: every method may be called from any thread, those of one sender or receiver from one thread
at a time. Calls that do work release the GIL; no thread of the library ever needs it.
"""

import array
import enum
import types
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from typing_extensions import Buffer, TypeAlias

class SupportsDlpack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

# One-dimensional whole numbers: a list or tuple, or any buffer of signed or unsigned integers of 1
# to 8 bytes (numpy int32, int64, uint32, uint64, array.array ...). Each value is range-checked; the
# error names index and value.
IntList: TypeAlias = Sequence[int] | Buffer
# Memory: (pointer, bytes), anything with a contiguous buffer (bytearray, memoryview, numpy, mmap) or
# with __dlpack__ (a torch tensor).
Memory: TypeAlias = tuple[int, int] | Buffer | SupportsDlpack
# A Binding, or what it can be made of: an integer below 2**128, 16 bytes (big endian), 32
# hexadecimal digits, a uuid.UUID.
BindingLike: TypeAlias = Binding | int | bytes | str | Any

__version__: str
MAX_REGIONS: int
"""What one rank may register: 4096 regions."""
AUX_RECORD_BYTES: int
"""Bytes of an encoded AuxRecord: 64, the least item_bytes of an aux region."""

class KvPoll(enum.IntEnum):
    """Status of one room on one rank; the minimum over the ranks is the room's verdict.

    Failed, though numbered 0, is an end: a status never leaves Failed or Success.
    """

    Failed = 0
    Bootstrapping = 1
    """Peers are being resolved and sessions opened."""
    WaitingForInput = 2
    """Decode: pages may be granted. Prefill: every decode rank's grant is here."""
    Transferring = 3
    Success = 4

class Role(enum.IntEnum):
    Prefill = 0
    Decode = 1

class DType(enum.IntEnum):
    U8 = 0
    F16 = 1
    BF16 = 2
    F32 = 3
    F8E4M3 = 4
    F8E5M2 = 5

class MemoryKind(enum.IntEnum):
    Host = 0
    Device = 1

class RegionKind(enum.IntEnum):
    """What a region holds. Key, Value and Other (layouts whose K and V are not apart, as MLA) have
    one item per page; Aux and State have one item per slot."""

    Key = 0
    Value = 1
    Other = 2
    Aux = 3
    State = 4

class FailureCode(enum.IntEnum):
    """Why a call or a room failed. The numbers cross the wire and never change."""

    Unspecified = 0
    Aborted = 1
    InvalidArgument = 2
    DuplicateRoom = 3
    GrantTooLarge = 4
    WrongState = 5
    BootstrapFailed = 10
    PrefillUnknown = 11
    PeerUnreachable = 12
    PeerLost = 13
    PeerRestarted = 14
    LayoutMismatch = 15
    NumericsMismatch = 16
    SessionRefused = 17
    EngineEpochMismatch = 18
    RoomTimeout = 20
    WriteRefused = 21
    WriteTorn = 22
    WriteUnknown = 23
    DoneMismatch = 24
    AuxInvalid = 25
    RoomUnknown = 26
    OutsideGrant = 27
    QuarantineFull = 30
    TableFull = 31
    QueueFull = 32
    ShuttingDown = 33
    ControlThreadDead = 34
    FenceOverdue = 35
    OperatingSystem = 36
    Malformed = 37
    Unauthorized = 38
    Conflict = 39

class FailureWhere(enum.IntEnum):
    """Where the cause lies, seen from who reports it first."""

    Local = 0
    Path = 1
    Peer = 2

class Failure:
    """First cause of a failure; the same on every rank of a room. Equal by value; picklable.

    str(failure) is "code at where (peer P, rank R): what".
    """

    def __init__(
        self,
        code: FailureCode = FailureCode.Unspecified,
        where: FailureWhere = FailureWhere.Local,
        what: str = "",
        peer: str = "",
        rank: int = -1,
    ) -> None: ...
    @property
    def code(self) -> FailureCode: ...
    @property
    def where(self) -> FailureWhere: ...
    @property
    def what(self) -> str:
        """One sentence without a newline; where something can be done, it says what."""

    @property
    def peer(self) -> str:
        """Endpoint or name of the peer concerned; empty when there is none."""

    @property
    def rank(self) -> int:
        """Global rank that reported the first cause; -1 when unknown."""

    @property
    def http_status(self) -> int:
        """HTTP code that a server answers for this failure."""

    def __eq__(self, other: object, /) -> bool: ...

class KvferryError(Exception):
    """A call was refused. str() is the failure's text."""

    failure: Failure

class InvalidArgument(KvferryError, ValueError):
    """A KvferryError whose code is FailureCode.InvalidArgument."""

class Binding:
    """128 bits that name one request; a retry draws a new one (Binding.random()).

    Only equality matters. Zero means none. Hashable; picklable.
    """

    def __init__(self, value: BindingLike = 0) -> None:
        """From an integer from 0 to 2**128 - 1, 16 bytes (big endian), 32 hexadecimal digits, a
        uuid.UUID or another Binding. Raises InvalidArgument for another value."""

    @staticmethod
    def random() -> Binding:
        """128 random bits of the operating system, never zero."""

    @property
    def high(self) -> int: ...
    @property
    def low(self) -> int: ...
    def is_zero(self) -> bool: ...
    def to_hex(self) -> str:
        """32 lower-case hexadecimal digits; also str()."""

    def __int__(self) -> int: ...
    def __bytes__(self) -> bytes:
        """16 bytes, big endian."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

class Region:
    """Registered memory: item_count items of item_bytes each, back to back.

    Ownership: holds a reference to the memory's object, and so does a KvManager that was made with
    it, until it is destroyed. Meanwhile a bytearray can't be resized nor a mmap closed (BufferError).
    Memory given as (pointer, bytes) is the caller's to keep.
    """

    def __init__(
        self,
        kind: RegionKind,
        layer: int,
        memory: Memory,
        *,
        item_bytes: int,
        item_count: int | None = None,
        memory_kind: MemoryKind | None = None,
        memory_fd: int = -1,
        memory_fd_offset: int = 0,
    ) -> None:
        """layer: global layer number, 0 for aux. item_bytes: bytes of one page (or slot).
        item_count: pages (or slots), by default as many as fit.

        memory_kind: by default Device for a DLPack object of a device that the host can't read, else
        Host. A manager refuses device memory when it is made, and says what can move it.
        memory_fd, memory_fd_offset: the sealed memfd that the memory is mapped from and where in it
        it lies (SharedPool.region() fills them); -1: none.

        Raises InvalidArgument for memory that is too small, not contiguous, or empty."""

    @property
    def kind(self) -> RegionKind: ...
    @property
    def layer(self) -> int: ...
    @property
    def base(self) -> int:
        """Address of the first byte."""

    @property
    def item_bytes(self) -> int: ...
    @property
    def item_count(self) -> int: ...
    @property
    def memory_kind(self) -> MemoryKind: ...
    @property
    def memory_fd(self) -> int: ...
    @property
    def memory_fd_offset(self) -> int: ...
    @property
    def readonly(self) -> bool:
        """Whether the memory may only be read: good for pages and state of a prefill rank only."""

class RankCoordinates:
    """This process's place in its engine. tp splits heads, pp splits layers, dp is a whole replica."""

    def __init__(
        self,
        tp_rank: int = 0,
        tp_size: int = 1,
        pp_rank: int = 0,
        pp_size: int = 1,
        dp_rank: int = 0,
        dp_size: int = 1,
    ) -> None: ...
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    dp_rank: int
    dp_size: int
    def __eq__(self, other: object, /) -> bool: ...

class Numerics:
    """What must match for the bits to be equal, beyond the layout. A difference warns, and refuses
    the pair only with Options.require_identical."""

    def __init__(
        self,
        kernel_library: str = "",
        threads: int = 0,
        prefill_chunk_tokens: int = 0,
        flags: str = "",
    ) -> None: ...
    kernel_library: str
    threads: int
    prefill_chunk_tokens: int
    flags: str
    def __eq__(self, other: object, /) -> bool: ...

class KvArgs:
    """What one rank of an engine tells kvferry about itself once, at start."""

    def __init__(
        self,
        role: Role = Role.Prefill,
        *,
        instance: str = "",
        engine_epoch: int = 0,
        rank: RankCoordinates = ...,
        model_fingerprint: str = "",
        page_size_tokens: int = 0,
        total_layers: int = 0,
        total_kv_heads: int = 0,
        head_dim: int = 0,
        dtype: DType = DType.F16,
        layers: tuple[int, int] = (0, 0),
        heads: tuple[int, int] = (0, 0),
        vocab_size: int = 0,
        regions: Sequence[Region] = (),
        numerics: Numerics = ...,
    ) -> None: ...
    role: Role
    instance: str
    """Name of the engine instance in the registry; empty: one is drawn."""
    engine_epoch: int
    """Equal on all ranks of one launch; 0: draw one (one rank only)."""
    rank: RankCoordinates
    model_fingerprint: str
    """Opaque; pairs with unequal ones are refused."""
    page_size_tokens: int
    total_layers: int
    total_kv_heads: int
    head_dim: int
    dtype: DType
    layers: tuple[int, int]
    """Half-open range of the layers that this rank holds."""
    heads: tuple[int, int]
    """Half-open range of the KV heads that this rank holds."""
    vocab_size: int
    """0: the first token in aux is not checked."""
    regions: list[Region]
    """Order matters and is the same on both sides. An item of a K or V region is
    [page_size_tokens][heads of this rank][head_dim]. Reading gives a new list; assign the whole."""
    numerics: Numerics

class AuxRecord:
    """First token and side data of one room, written by prefill, read by decode after Success."""

    def __init__(
        self,
        first_token: int = -1,
        first_logprob: float = 0.0,
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
    ) -> None: ...
    first_token: int
    first_logprob: float
    prompt_tokens: int
    cached_tokens: int
    def __eq__(self, other: object, /) -> bool: ...

class OptionRow:
    """One option of Options: name, unit ("ms", "bytes", ""), help and default (as text)."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def help(self) -> str: ...
    @property
    def default(self) -> str: ...

class Options:
    """Every limit and deadline of the library, each with its unit in its name; option_rows() lists
    them. Each option is an attribute of type int, bool, str or list[str].

    A value is range-checked when it is set (InvalidArgument names option, value and range); what
    depends on more than one option is checked by validate() and when a manager is made. An unknown
    name raises InvalidArgument (AttributeError for an attribute) with the nearest names.
    """

    def __init__(self, values: Mapping[str, Any] | Options | None = None, /, **options: Any) -> None:
        """Defaults, changed by values, changed by options."""

    def set(self, name: str, value: Any) -> None:
        """value: as the option's type, or the text that the command line takes."""

    def get(self, name: str) -> int | bool | str | list[str]: ...
    def to_dict(self) -> dict[str, int | bool | str | list[str]]: ...
    def validate(self) -> None:
        """Raises InvalidArgument that says what to change."""
    # One attribute per option follows here, for example:
    transport: str
    bootstrap_addresses: list[str]
    bootstrap_timeout_ms: int
    curve: bool

class MetricSample:
    """One counter or gauge; docs/metrics.md has the names."""

    @property
    def name(self) -> str:
        """Without the "kvferry_" prefix."""

    @property
    def labels(self) -> str:
        """Prometheus syntax without braces; may be empty."""

    @property
    def value(self) -> float: ...
    @property
    def is_counter(self) -> bool: ...

class ReadinessCheck:
    """One of the things that must be sound for this server to take requests."""

    @property
    def name(self) -> str: ...
    @property
    def ok(self) -> bool: ...
    @property
    def detail(self) -> str:
        """What is wrong; empty when ok."""

class PairState:
    """One prefill and one decode process that have a session, or want one."""

    @property
    def peer(self) -> str:
        """Endpoint."""

    @property
    def instance(self) -> str:
        """The peer's instance name; empty while unknown."""

    @property
    def ready(self) -> bool: ...
    @property
    def reason(self) -> str:
        """Last cause when not ready."""

    @property
    def last_heard_ms(self) -> int:
        """Age of the last sign of life; -1: never."""

    @property
    def path(self) -> str:
        """Prefill: how its bytes travel, "shm" or "tcp"; empty without a session."""

    @property
    def path_why(self) -> str:
        """Why not a path that was preferred."""

class ReleasedPages:
    """Pages and slots that left a grant or a source hold and are the caller's again."""

    @property
    def owner(self) -> int:
        """KvReceiver.id() or KvSender.id()."""

    @property
    def room(self) -> int: ...
    @property
    def binding(self) -> Binding: ...
    @property
    def pages(self) -> array.array[int]:
        """array('I'). Decode: granted pages. Prefill: pages given to send()."""

    @property
    def aux_slot(self) -> int:
        """-1: none."""

    @property
    def state_slots(self) -> array.array[int]:
        """array('I')."""

class SharedPool:
    """Memory for the pages of an engine that other processes of this host may read in place: a
    sealed memfd. A prefill engine that keeps its regions here lets the shm transport copy straight
    out of it; other memory goes through process_vm_readv or tcp.

    Has the buffer protocol: memoryview(pool), numpy.frombuffer(pool, ...). The memory stays while a
    view, a region of it or a manager of such a region lives.
    """

    def __init__(self, bytes: int, *, huge_pages: bool = False) -> None:
        """At least so many zeroed bytes, rounded up to whole pages. Raises KvferryError that names
        what the host lacks (huge_pages needs vm.nr_hugepages)."""

    @staticmethod
    def create(bytes: int, *, huge_pages: bool = False) -> SharedPool:
        """As SharedPool(); C++'s name."""

    @property
    def base(self) -> int:
        """Address of the first byte."""

    @property
    def bytes(self) -> int: ...
    @property
    def fd(self) -> int:
        """Owned by the pool."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def region(
        self, kind: RegionKind, layer: int, *, offset: int, item_bytes: int, item_count: int
    ) -> Region:
        """A region of item_count x item_bytes bytes from offset (bytes) on, with its memory_fd.
        Raises InvalidArgument when it does not lie within the pool."""

class KvManager:
    """One per rank and process: owns the protocol's thread, the control link, the transport and
    every room's state. Senders and receivers are thin handles into it, and keep it alive.

    No call waits for a peer or a socket, apart from stop(), which joins the manager's threads and
    ends within Options.stop_timeout_ms however many peers are dead; destruction and the
    interpreter's exit call it. A forked child can't use its parent's manager: every call there
    raises KvferryError (WrongState), and destroying it there does nothing.
    """

    def __init__(self, args: KvArgs, options: Options | Mapping[str, Any] | None = None) -> None:
        """Validates, binds, registers at the bootstrap servers (in the background) and starts the
        threads. args and options are copied; the memory of args.regions is kept referenced."""

    @staticmethod
    def create(args: KvArgs, options: Options | Mapping[str, Any] | None = None) -> KvManager:
        """As KvManager(); C++'s name."""

    def poll_many(self, ids: Buffer, statuses: Buffer) -> None:
        """Fills statuses[i] with the status of handle ids[i], without allocating.

        ids: one-dimensional, contiguous, uint64 (KvSender.id(), KvReceiver.id()). statuses: as long
        as ids, contiguous, writable, uint8 or uint32 (numpy.empty(n, "u1")). An id that is unknown or
        was cleared reads Failed. A receiver's Success passes its pages as poll() does."""

    def take_changed(self) -> array.array[int] | None:
        """The handles with a new status since the last call, in order, as array('Q') that
        poll_many() takes; one perhaps more than once. None: look at every handle once (the first
        call, too many changes, or the manager has stopped)."""

    def take_released(self) -> list[ReleasedPages]:
        """Pages released since the last call, in order. The caller owns them from here on."""

    def event_fd(self) -> int:
        """Readable (poll, level-triggered) while take_released() has something or a status changed
        since the last drain_event_fd(). Owned by the manager."""

    def drain_event_fd(self) -> None: ...
    def keep_paired(self, bootstrap_address: str) -> None:
        """Opens sessions to every prefill rank that this registry (host:port) lists, ahead of any
        room, and keeps them open. Decode only."""

    def pairs(self) -> list[PairState]: ...
    def metrics(self) -> list[MetricSample]: ...
    def dump_status(self) -> str:
        """Rooms, sessions, grants and queues as one JSON object, in text."""

    def readiness(self) -> list[ReadinessCheck]:
        """Each check with its state; take new requests only while all are ok."""

    def readiness_problems(self) -> list[str]:
        """The details of those that are not ok."""

    def args(self) -> KvArgs:
        """A copy, with what create drew (instance, engine_epoch)."""

    def options(self) -> Options:
        """A copy."""

    def control_endpoint(self) -> str:
        """host:port that peers dial."""

    def write_aux(self, aux_slot: int, room: int, binding: BindingLike, record: AuxRecord) -> None:
        """Writes the record, with room, binding and CRC, into a slot of this rank's aux region.
        Prefill only; before the last send()."""

    def read_aux(self, aux_slot: int, room: int, binding: BindingLike) -> AuxRecord:
        """Reads and checks a record. Decode only; after Success. Raises KvferryError (AuxInvalid)."""

    def stop(self) -> None:
        """Fails all rooms with ShuttingDown, ends all sessions and joins the threads. Idempotent.
        The regions' memory stays referenced until the manager is destroyed."""

    def __enter__(self) -> KvManager: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        """Calls stop()."""

class KvSender:
    """Prefill side of one room on one rank. Destroying it is clear()."""

    def __init__(self, manager: KvManager, room: int, binding: BindingLike) -> None:
        """Opens the room here. A second open with the same room and binding is Failed with
        DuplicateRoom while the first has no terminal status."""

    def init(self, page_count: int, aux_slot: int = -1) -> None:
        """How many pages will be sent in all (0: aux only), and the aux slot that holds the record
        by the time of the last send(); -1: this rank sends no aux."""

    def send(self, pages: IntList, state_slots: IntList = ()) -> None:
        """Sends the next chunk: pages of this rank's regions, in prompt order; they go to the next
        pages of the grant, past its decode prefix. The call that brings the sum to page_count is the
        last: aux and state follow it (with page_count 0: one call without pages).

        Ownership: the pages belong to kvferry until KvManager.take_released() hands them back; the
        engine may go on reading them. The list itself is copied."""

    def poll(self) -> KvPoll:
        """A load."""

    def landed_bytes(self) -> int:
        """Bytes of this room known to be at their target so far; a load."""

    def decode_prefix_pages(self) -> int:
        """Pages that decode already has; 0 before WaitingForInput."""

    def abort(self, reason: str = "aborted by the caller") -> None:
        """Fails the room on all ranks at once with Aborted. Its pages come back later."""

    def clear(self) -> None:
        """Drops the handle. An unfinished room is aborted; what is owed to peers goes on."""

    def failure(self) -> Failure | None:
        """First cause, once poll() is Failed."""

    def id(self) -> int:
        """Names this handle in poll_many() and ReleasedPages; never reused, also not by a receiver."""

class KvReceiver:
    """Decode side of one room on one rank. Destroying it is clear()."""

    def __init__(self, manager: KvManager, room: int, binding: BindingLike) -> None:
        """Opens the room here; as KvSender()."""

    def init(
        self, bootstrap_address: str, prefill_instance: str = "", prefill_dp_rank: int = 0
    ) -> None:
        """Where the prefill ranks of this room are found: a registry (host:port, checked against
        bootstrap_addresses and bootstrap_allow) and the instance in it; empty: the only one that it
        lists. prefill_dp_rank chooses the replica."""

    def send_metadata(
        self,
        pages: IntList,
        aux_slot: int = -1,
        state_slots: IntList = (),
        decode_prefix_tokens: int = 0,
        expected_grants: int = 1,
    ) -> None:
        """Grants pages to the prefill ranks. Page i of the prompt, past the prefix, lands in
        pages[i]. decode_prefix_tokens: prompt tokens that are here already, a multiple of the page
        size. expected_grants: how many decode ranks grant to the same senders (all ranks of this
        engine). May be called before WaitingForInput; it is kept until then.

        Ownership: pages, aux slot and state slots belong to kvferry from here on. They become the
        caller's when poll() (or poll_many()) returns Success, else they come back through
        KvManager.take_released()."""

    def poll(self) -> KvPoll:
        """A load. The first call that returns Success passes the pages to the caller."""

    def abort(self, reason: str = "aborted by the caller") -> None:
        """Fails the room on all ranks at once with Aborted; its pages stay in quarantine until
        fenced."""

    def clear(self) -> None:
        """Drops the handle: aborts an unfinished room; pages of a Success that was never read come
        back through KvManager.take_released()."""

    def failure(self) -> Failure | None:
        """First cause, once poll() is Failed."""

    def id(self) -> int:
        """As KvSender.id()."""

    def attempt(self) -> int:
        """Which life of the room this is, drawn when its pages are granted; 0 until then."""

class BootstrapServerOptions:
    """host: address to bind. port: 0: any free one. cluster_token_file: empty: no HMAC, loopback
    only. max_superseded: incarnations remembered as replaced."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        cluster_token_file: str = "",
        max_rows: int = 65536,
        max_body_bytes: int = 65536,
        max_superseded: int = 65536,
    ) -> None: ...
    host: str
    port: int
    cluster_token_file: str
    max_rows: int
    max_body_bytes: int
    max_superseded: int

class BootstrapServer:
    """The registry of a fleet: an HTTP service in which ranks register their addresses and public
    keys under a lease, and in which decode finds the prefill ranks of a room. It has threads of its
    own and never sees KV data. Stopped by stop(), by destruction and at the interpreter's exit."""

    def __init__(self, options: BootstrapServerOptions | None = None) -> None:
        """Binds and starts to serve. Raises KvferryError when the address can't be bound."""

    @staticmethod
    def start(options: BootstrapServerOptions | None = None) -> BootstrapServer:
        """As BootstrapServer(); C++'s name."""

    def address(self) -> str:
        """host:port."""

    def stop(self) -> None:
        """Idempotent; joins its threads."""

    def __enter__(self) -> BootstrapServer: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        """Calls stop()."""

def option_rows() -> list[OptionRow]:
    """One row per option of Options."""

def is_terminal(status: KvPoll) -> bool:
    """Whether this is Failed or Success."""

def holds_pages(kind: RegionKind) -> bool:
    """Whether such a region has one item per page."""

def dtype_bytes(dtype: DType) -> int:
    """Bytes of one element."""

def http_status(code: FailureCode) -> int:
    """HTTP code that a server answers for this failure: 499 for Aborted, 4xx for a caller's mistake,
    5xx for what routers should count against the server."""
