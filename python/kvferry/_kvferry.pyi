"""
Bindings over kvferry's public C++ API, under the same names.

Ids are plain integers (room, attempt, handle id, page, slot: unsigned), apart from Binding. Names of
values drop C++'s leading k: kPrefill is Role.Prefill.

Errors: where C++ returns an error value, KvferryError is raised; its attribute failure is that value. A
bad argument raises InvalidArgument, which is a KvferryError and a ValueError; an object of a wrong type
raises TypeError. What goes wrong later in a room is never raised: poll() says Failed and failure() why.

Threads: every method may be called from any thread, those of one sender or receiver from one thread at a
time. Calls that do work release the GIL; no thread of the library ever needs it.
"""

import array
from collections.abc import Mapping, Sequence
import enum
import types
from typing import Any, Protocol

from typing_extensions import Buffer, TypeAlias


class SupportsDlpack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

__version__: str

# Numpy's arrays declare a buffer to type checkers from Python 3.12 on only; DLPack they do in any.
ArrayBuffer: TypeAlias = Buffer | SupportsDlpack
# One-dimensional whole numbers: a list or tuple, or any buffer of signed or unsigned integers of 1 to
# 8 bytes (numpy int32, int64, uint32, uint64, array.array ...). The error for a value that is out of
# range names index and value.
IntList: TypeAlias = Sequence[int] | ArrayBuffer
# Memory: (pointer, bytes), anything with a contiguous buffer (bytearray, memoryview, numpy, mmap) or
# with __dlpack__ (a torch tensor).
Memory: TypeAlias = tuple[int, int] | ArrayBuffer
# A Binding, or what one can be made of: an integer below 2**128, 16 bytes (big endian), 32 hexadecimal
# digits, a uuid.UUID.
BindingLike: TypeAlias = Binding | int | bytes | str | Any
# An option's value, or the text that the command line takes for it.
OptionValue: TypeAlias = bool | int | str | Sequence[str] | Any

class KvPoll(enum.IntEnum):
    """
    Status of one room on one rank; the minimum over the ranks is the room's verdict.

    Failed, though numbered 0, is an end: a status never leaves Failed or Success.
    """

    Failed = 0

    Bootstrapping = 1
    """Peers are being resolved and sessions opened."""

    WaitingForInput = 2
    """
    Decode: pages may be granted. Prefill: every decode rank's grant is here.
    """

    Transferring = 3

    Success = 4

def is_terminal(status: KvPoll) -> bool:
    """Whether this is Failed or Success."""

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
    """
    What a region holds.

    Key, Value and Other (layouts whose K and V are not apart, as MLA) have one item per page; Aux and
    State have one item per slot.
    """

    Key = 0

    Value = 1

    Other = 2

    Aux = 3

    State = 4

def dtype_bytes(dtype: DType) -> int:
    """Bytes of one element."""

def holds_pages(kind: RegionKind) -> bool:
    """Whether such a region has one item per page."""

class FailureWhere(enum.IntEnum):
    """Where the cause lies, seen from who reports it first."""

    Local = 0

    Path = 1

    Peer = 2

class FailureCode(enum.IntEnum):
    """
    Why a call or a room failed. The numbers cross the wire and never change.
    """

    Unspecified = 0
    """A code that this version does not know."""

    Aborted = 1
    """abort() was called on this or on another rank."""

    InvalidArgument = 2

    DuplicateRoom = 3
    """Room and binding are still open here."""

    GrantTooLarge = 4
    """The page list is over the limit of one control message."""

    WrongState = 5
    """The call does not fit the room's state."""

    BootstrapFailed = 10
    """The bootstrap server is unreachable or answered nonsense."""

    PrefillUnknown = 11
    """The registry has no such prefill instance or rank."""

    PeerUnreachable = 12
    """No session within the deadline."""

    PeerLost = 13
    """The session ended: its connection was gone past its grace, or silence."""

    PeerRestarted = 14
    """Another incarnation answers at the peer's endpoint."""

    LayoutMismatch = 15
    """The text names the field and both values."""

    NumericsMismatch = 16
    """As LayoutMismatch, only when identity is required."""

    SessionRefused = 17
    """Version, role or authentication."""

    EngineEpochMismatch = 18
    """Ranks of two launches of an engine were mixed."""

    RoomTimeout = 20
    """The room's deadline passed; the text names the state that it was in."""

    WriteRefused = 21
    """The target refused a write."""

    WriteTorn = 22
    """Some bytes of a write landed and no more will."""

    WriteUnknown = 23
    """A write's outcome is not known by its deadline."""

    DoneMismatch = 24
    """Counts differ from what was granted or landed."""

    AuxInvalid = 25
    """Aux length, CRC, room, binding or token."""

    RoomUnknown = 26
    """A grant whose room was not opened here in time."""

    OutsideGrant = 27
    """A landing or send outside the granted pages."""

    QuarantineFull = 30

    TableFull = 31

    QueueFull = 32

    ShuttingDown = 33

    ControlThreadDead = 34

    FenceOverdue = 35

    OperatingSystem = 36
    """A system call failed; the text has the call and the reason."""

    Malformed = 37
    """Peer input that could not be parsed."""

    Unauthorized = 38

    Conflict = 39
    """
    Registry: the rank has another owner, or the incarnation was superseded.
    """

class Failure:
    """
    First cause of a failure; the same on every rank of a room.

    Equal by value; picklable. str(failure) is "code at where (peer P, rank R): what".
    """

    def __init__(self, code: FailureCode = FailureCode.Unspecified, where: FailureWhere = FailureWhere.Local, what: str = '', peer: str = '', rank: int = -1) -> None: ...

    @property
    def code(self) -> FailureCode: ...

    @property
    def where(self) -> FailureWhere: ...

    @property
    def what(self) -> str:
        """
        One sentence without a newline; where something can be done, it says what.
        """

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

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

    def __getstate__(self) -> tuple[FailureCode, FailureWhere, str, str, int]: ...

    def __setstate__(self, arg: tuple[FailureCode, FailureWhere, str, str, int], /) -> None: ...

class KvferryError(Exception):
    """
    A call was refused. str() is the failure's text, failure the failure itself.
    """

    failure: Failure

class InvalidArgument(KvferryError, ValueError):
    """A KvferryError whose code is FailureCode.InvalidArgument."""

def http_status(code: FailureCode) -> int:
    """
    HTTP code that a server answers for this failure.

    499 for Aborted, 4xx for a caller's mistake, 5xx for what routers should count against the server.
    """

class Binding:
    """
    128 bits that name one request; a retry draws a new one (Binding.random()).

    Only equality matters. Zero means none. Hashable; picklable.
    """

    def __init__(self, value: BindingLike = 0) -> None:
        """
        From an integer from 0 to 2**128 - 1, 16 bytes (big endian), 32 hexadecimal digits, a uuid.UUID or
        another Binding. Raises InvalidArgument for another value.
        """

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

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

    def __int__(self) -> int: ...

    def __bytes__(self) -> bytes:
        """16 bytes, big endian."""

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __getstate__(self) -> tuple[int, int]: ...

    def __setstate__(self, arg: tuple[int, int], /) -> None: ...

class AuxRecord:
    """
    First token and side data of one room, written by prefill, read by decode after Success.
    """

    def __init__(self, first_token: int = -1, first_logprob: float = 0.0, prompt_tokens: int = 0, cached_tokens: int = 0) -> None: ...

    @property
    def first_token(self) -> int: ...

    @first_token.setter
    def first_token(self, arg: int, /) -> None: ...

    @property
    def first_logprob(self) -> float: ...

    @first_logprob.setter
    def first_logprob(self, arg: float, /) -> None: ...

    @property
    def prompt_tokens(self) -> int: ...

    @prompt_tokens.setter
    def prompt_tokens(self, arg: int, /) -> None: ...

    @property
    def cached_tokens(self) -> int: ...

    @cached_tokens.setter
    def cached_tokens(self, arg: int, /) -> None: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class OptionRow:
    """One option of Options: name, unit ("ms", "bytes", ""), help, default."""

    @property
    def name(self) -> str: ...

    @property
    def unit(self) -> str: ...

    @property
    def help(self) -> str: ...

    @property
    def default(self) -> str:
        """As text."""

def option_rows() -> list[OptionRow]:
    """One row per option of Options."""

class Options:
    """
    Every limit and deadline of the library, each with its unit in its name.

    A value is range-checked when it is set (InvalidArgument names option, value and range); what depends on
    more than one option is checked by validate() and when a manager is made. An unknown name raises
    InvalidArgument (AttributeError for an attribute) with the nearest names.
    """

    def __init__(self, values: Options | Mapping[str, OptionValue] | None = None, /, **options: OptionValue) -> None:
        """Defaults, changed by values, changed by options."""

    def set(self, name: str, value: OptionValue) -> None:
        """value: as the option's type, or the text that the command line takes."""

    def get(self, name: str) -> OptionValue: ...

    def to_dict(self) -> dict[str, OptionValue]: ...

    def validate(self) -> None:
        """Raises InvalidArgument that says what to change."""

    def __setattr__(self, name: str, value: OptionValue, /) -> None: ...

    @property
    def bootstrap_timeout_ms(self) -> int:
        """From opening a room until it waits for input (ms). Default: 10000."""

    @bootstrap_timeout_ms.setter
    def bootstrap_timeout_ms(self, value: int, /) -> None: ...

    @property
    def input_timeout_ms(self) -> int:
        """Waiting for the caller's metadata or first send (ms). Default: 300000."""

    @input_timeout_ms.setter
    def input_timeout_ms(self, value: int, /) -> None: ...

    @property
    def transfer_timeout_ms(self) -> int:
        """From the first transfer until the room's end (ms). Default: 120000."""

    @transfer_timeout_ms.setter
    def transfer_timeout_ms(self, value: int, /) -> None: ...

    @property
    def unopened_room_timeout_ms(self) -> int:
        """How long a grant waits for its sender (ms). Default: 30000."""

    @unopened_room_timeout_ms.setter
    def unopened_room_timeout_ms(self, value: int, /) -> None: ...

    @property
    def max_rooms(self) -> int:
        """Open rooms (rooms). Default: 65536."""

    @max_rooms.setter
    def max_rooms(self, value: int, /) -> None: ...

    @property
    def max_unopened_grants(self) -> int:
        """Grants that wait for their sender (grants). Default: 4096."""

    @max_unopened_grants.setter
    def max_unopened_grants(self, value: int, /) -> None: ...

    @property
    def max_ended_senders(self) -> int:
        """
        Senders that ended before any grant, remembered for a late grant (senders). Default: 4096.
        """

    @max_ended_senders.setter
    def max_ended_senders(self, value: int, /) -> None: ...

    @property
    def fence_timeout_ms(self) -> int:
        """A later fence is counted and makes readiness fall (ms). Default: 2000."""

    @fence_timeout_ms.setter
    def fence_timeout_ms(self, value: int, /) -> None: ...

    @property
    def quarantine_max_pages(self) -> int:
        """
        Pages of failed rooms that are not fenced yet; new rooms are refused at this many (pages). Default: 1048576.
        """

    @quarantine_max_pages.setter
    def quarantine_max_pages(self, value: int, /) -> None: ...

    @property
    def max_grant_slots(self) -> int:
        """Grants at one time, per session (slots). Default: 8192."""

    @max_grant_slots.setter
    def max_grant_slots(self, value: int, /) -> None: ...

    @property
    def max_tombstones(self) -> int:
        """Finished attempts remembered, per session (attempts). Default: 65536."""

    @max_tombstones.setter
    def max_tombstones(self, value: int, /) -> None: ...

    @property
    def write_timeout_ms(self) -> int:
        """A posted write without outcome becomes unknown (ms). Default: 30000."""

    @write_timeout_ms.setter
    def write_timeout_ms(self, value: int, /) -> None: ...

    @property
    def source_hold_timeout_ms(self) -> int:
        """
        After a failure, how long sources wait for their tickets before the sender gives up (ms). Default: 5000.
        """

    @source_hold_timeout_ms.setter
    def source_hold_timeout_ms(self, value: int, /) -> None: ...

    @property
    def max_inflight_bytes(self) -> int:
        """Posted, not completed, per session (bytes). Default: 67108864."""

    @max_inflight_bytes.setter
    def max_inflight_bytes(self, value: int, /) -> None: ...

    @property
    def max_queued_writes(self) -> int:
        """
        Waiting for max_inflight_bytes, per session; further ones are refused and counted (writes). Default: 4194304.
        """

    @max_queued_writes.setter
    def max_queued_writes(self, value: int, /) -> None: ...

    @property
    def heartbeat_interval_ms(self) -> int:
        """Between two heartbeats to a peer (ms). Default: 250."""

    @heartbeat_interval_ms.setter
    def heartbeat_interval_ms(self, value: int, /) -> None: ...

    @property
    def heartbeat_timeout_ms(self) -> int:
        """Silence that ends a session (ms). Default: 3000."""

    @heartbeat_timeout_ms.setter
    def heartbeat_timeout_ms(self, value: int, /) -> None: ...

    @property
    def session_grace_ms(self) -> int:
        """How long a session outlives its connection (ms). Default: 2000."""

    @session_grace_ms.setter
    def session_grace_ms(self, value: int, /) -> None: ...

    @property
    def redial_min_ms(self) -> int:
        """First pause before a peer is dialled again (ms). Default: 20."""

    @redial_min_ms.setter
    def redial_min_ms(self, value: int, /) -> None: ...

    @property
    def redial_max_ms(self) -> int:
        """Longest pause before a peer is dialled again (ms). Default: 2000."""

    @redial_max_ms.setter
    def redial_max_ms(self, value: int, /) -> None: ...

    @property
    def hello_timeout_ms(self) -> int:
        """From dialling until the session lives (ms). Default: 5000."""

    @hello_timeout_ms.setter
    def hello_timeout_ms(self, value: int, /) -> None: ...

    @property
    def retransmit_min_ms(self) -> int:
        """First pause before a message is repeated (ms). Default: 100."""

    @retransmit_min_ms.setter
    def retransmit_min_ms(self, value: int, /) -> None: ...

    @property
    def retransmit_max_ms(self) -> int:
        """Longest pause before a message is repeated (ms). Default: 2000."""

    @retransmit_max_ms.setter
    def retransmit_max_ms(self, value: int, /) -> None: ...

    @property
    def send_window_messages(self) -> int:
        """Sent, not acknowledged, per peer (messages). Default: 1024."""

    @send_window_messages.setter
    def send_window_messages(self, value: int, /) -> None: ...

    @property
    def max_queued_messages(self) -> int:
        """Waiting for the send window, per peer (messages). Default: 65536."""

    @max_queued_messages.setter
    def max_queued_messages(self, value: int, /) -> None: ...

    @property
    def max_peers(self) -> int:
        """Peers with a session or wanted (peers). Default: 1024."""

    @max_peers.setter
    def max_peers(self, value: int, /) -> None: ...

    @property
    def pause_threshold_ms(self) -> int:
        """
        After a longer turn the inbox is drained before timers are run (ms). Default: 500.
        """

    @pause_threshold_ms.setter
    def pause_threshold_ms(self, value: int, /) -> None: ...

    @property
    def lane_failure_limit(self) -> int:
        """
        Lane failures within session_grace_ms that end a session (failures). Default: 6.
        """

    @lane_failure_limit.setter
    def lane_failure_limit(self, value: int, /) -> None: ...

    @property
    def control_host(self) -> str:
        """Address that the control link binds (address). Default: 127.0.0.1."""

    @control_host.setter
    def control_host(self, value: str, /) -> None: ...

    @property
    def control_port(self) -> int:
        """Port of the control link, 0: any free one (port). Default: 0."""

    @control_port.setter
    def control_port(self, value: int, /) -> None: ...

    @property
    def advertise_host(self) -> str:
        """
        Address told to peers, for control and data, empty: the bound one (address). Default: empty.
        """

    @advertise_host.setter
    def advertise_host(self, value: str, /) -> None: ...

    @property
    def advertise_port(self) -> int:
        """
        Port of the control link told to peers, 0: the bound one (port). Default: 0.
        """

    @advertise_port.setter
    def advertise_port(self, value: int, /) -> None: ...

    @property
    def advertise_data_port(self) -> int:
        """Port of tcp lanes told to peers, 0: the bound one (port). Default: 0."""

    @advertise_data_port.setter
    def advertise_data_port(self, value: int, /) -> None: ...

    @property
    def curve(self) -> bool:
        """
        Encrypt and authenticate the control link; false only on loopback. Default: true.
        """

    @curve.setter
    def curve(self, value: bool, /) -> None: ...

    @property
    def control_frame_bytes(self) -> int:
        """Messages of one turn sent as one frame (bytes). Default: 65536."""

    @control_frame_bytes.setter
    def control_frame_bytes(self, value: int, /) -> None: ...

    @property
    def control_message_max_bytes(self) -> int:
        """Longest message of the control link (bytes). Default: 4194304."""

    @control_message_max_bytes.setter
    def control_message_max_bytes(self, value: int, /) -> None: ...

    @property
    def control_queue_max_bytes(self) -> int:
        """Encoded and waiting, per peer (bytes). Default: 16777216."""

    @control_queue_max_bytes.setter
    def control_queue_max_bytes(self, value: int, /) -> None: ...

    @property
    def handshake_timeout_ms(self) -> int:
        """CURVE handshake of a new connection (ms). Default: 5000."""

    @handshake_timeout_ms.setter
    def handshake_timeout_ms(self, value: int, /) -> None: ...

    @property
    def transport(self) -> str:
        """Auto (shm where it works, else tcp), shm or tcp (name). Default: auto."""

    @transport.setter
    def transport(self, value: str, /) -> None: ...

    @property
    def data_host(self) -> str:
        """
        Address that data lanes bind, empty: control_host (address). Default: empty.
        """

    @data_host.setter
    def data_host(self, value: str, /) -> None: ...

    @property
    def data_port(self) -> int:
        """Port of the data lanes, 0: any free one (port). Default: 0."""

    @data_port.setter
    def data_port(self, value: int, /) -> None: ...

    @property
    def lanes_per_peer(self) -> int:
        """Data connections to one peer (lanes). Default: 2."""

    @lanes_per_peer.setter
    def lanes_per_peer(self, value: int, /) -> None: ...

    @property
    def data_frame_bytes(self) -> int:
        """Data of one frame on a lane (bytes). Default: 1048576."""

    @data_frame_bytes.setter
    def data_frame_bytes(self, value: int, /) -> None: ...

    @property
    def data_frame_writes(self) -> int:
        """Writes of one frame on a lane (writes). Default: 128."""

    @data_frame_writes.setter
    def data_frame_writes(self, value: int, /) -> None: ...

    @property
    def lane_poll_us(self) -> int:
        """
        Tcp: polling for more after bytes have moved, before the thread sleeps; 0: none (us). Default: 200.
        """

    @lane_poll_us.setter
    def lane_poll_us(self, value: int, /) -> None: ...

    @property
    def lane_heartbeat_ms(self) -> int:
        """Between two heartbeats on an idle lane (ms). Default: 750."""

    @lane_heartbeat_ms.setter
    def lane_heartbeat_ms(self, value: int, /) -> None: ...

    @property
    def lane_timeout_ms(self) -> int:
        """Silence that ends a lane (ms). Default: 3000."""

    @lane_timeout_ms.setter
    def lane_timeout_ms(self, value: int, /) -> None: ...

    @property
    def max_lane_strangers(self) -> int:
        """
        Data connections that have not proved themselves; further ones are dropped and counted (connections). Default: 256.
        """

    @max_lane_strangers.setter
    def max_lane_strangers(self, value: int, /) -> None: ...

    @property
    def page_digests(self) -> bool:
        """
        Prefill: a digest with each write; one that lands altered fails its room. Default: false.
        """

    @page_digests.setter
    def page_digests(self, value: bool, /) -> None: ...

    @property
    def receive_threads(self) -> int:
        """Decode: threads that move bytes into the pages (threads). Default: 2."""

    @receive_threads.setter
    def receive_threads(self, value: int, /) -> None: ...

    @property
    def shm_folder(self) -> str:
        """
        Where the shm socket of a decode lies; both processes must see it; empty: runtime folder (folder). Default: empty.
        """

    @shm_folder.setter
    def shm_folder(self, value: str, /) -> None: ...

    @property
    def shm_lanes(self) -> int:
        """Prefill: rings of one shm session (rings). Default: 1."""

    @shm_lanes.setter
    def shm_lanes(self, value: int, /) -> None: ...

    @property
    def shm_ring_entries(self) -> int:
        """
        Prefill: writes under way in one ring, a power of two (writes). Default: 4096.
        """

    @shm_ring_entries.setter
    def shm_ring_entries(self, value: int, /) -> None: ...

    @property
    def max_queued_calls(self) -> int:
        """API calls and completions not yet processed (calls). Default: 262144."""

    @max_queued_calls.setter
    def max_queued_calls(self, value: int, /) -> None: ...

    @property
    def stop_timeout_ms(self) -> int:
        """A stop of the manager, with every peer dead (ms). Default: 1000."""

    @stop_timeout_ms.setter
    def stop_timeout_ms(self, value: int, /) -> None: ...

    @property
    def thread_stall_ms(self) -> int:
        """
        A thread at one turn for so long makes readiness fall (ms). Default: 1000.
        """

    @thread_stall_ms.setter
    def thread_stall_ms(self, value: int, /) -> None: ...

    @property
    def thread_dead_ms(self) -> int:
        """
        A thread at one turn for so long is taken for dead: every room fails (ms). Default: 5000.
        """

    @thread_dead_ms.setter
    def thread_dead_ms(self, value: int, /) -> None: ...

    @property
    def bootstrap_addresses(self) -> list[str]:
        """Registries of this fleet (host:port,...). Default: empty."""

    @bootstrap_addresses.setter
    def bootstrap_addresses(self, value: list[str], /) -> None: ...

    @property
    def bootstrap_allow(self) -> list[str]:
        """
        Further registries a request may name; *:port is any host (host:port,...). Default: empty.
        """

    @bootstrap_allow.setter
    def bootstrap_allow(self, value: list[str], /) -> None: ...

    @property
    def cluster_token_file(self) -> str:
        """
        First line: the cluster token; second, optional: the next (path). Default: empty.
        """

    @cluster_token_file.setter
    def cluster_token_file(self, value: str, /) -> None: ...

    @property
    def lease_ms(self) -> int:
        """Time a registration holds unless renewed (ms). Default: 3000."""

    @lease_ms.setter
    def lease_ms(self, value: int, /) -> None: ...

    @property
    def http_try_timeout_ms(self) -> int:
        """One try of a registry request (ms). Default: 1000."""

    @http_try_timeout_ms.setter
    def http_try_timeout_ms(self, value: int, /) -> None: ...

    @property
    def http_total_timeout_ms(self) -> int:
        """All tries of a registry request (ms). Default: 5000."""

    @http_total_timeout_ms.setter
    def http_total_timeout_ms(self, value: int, /) -> None: ...

    @property
    def require_identical(self) -> bool:
        """
        Refuse a pair whose numerics (kernels, threads, chunking) differ. Default: false.
        """

    @require_identical.setter
    def require_identical(self, value: bool, /) -> None: ...

class SharedPool:
    """
    Memory for the pages of an engine that other processes of this host may read in place.

    A sealed memfd. A prefill engine that keeps its regions here lets the shm transport copy straight out of
    it; other memory goes through process_vm_readv or tcp.

    Has the buffer protocol: memoryview(pool), numpy.frombuffer(pool, ...). The memory stays while a view, a
    region of it or a manager of such a region lives.
    """

    def __init__(self, bytes: int, *, huge_pages: bool = False) -> None:
        """
        At least so many zeroed bytes, rounded up to whole pages.

        Raises KvferryError that names what the host lacks (huge_pages needs vm.nr_hugepages).
        """

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

    def region(self, kind: RegionKind, layer: int, *, offset: int, item_bytes: int, item_count: int) -> Region:
        """
        A region of item_count x item_bytes bytes from offset (bytes) on, with its memory_fd.

        Raises InvalidArgument when it does not lie within the pool.
        """

    def __buffer__(self, flags: int, /) -> memoryview: ...

MAX_REGIONS: int = 4096

AUX_RECORD_BYTES: int = 64

class Region:
    """
    Registered memory: item_count items of item_bytes each, back to back.

    Ownership: holds a reference to the memory's object, and so does a KvManager that was made with it, until
    it is destroyed. Meanwhile a bytearray can't be resized nor a mmap closed (BufferError). Memory given as
    (pointer, bytes) is the caller's to keep.
    """

    def __init__(self, kind: RegionKind, layer: int, memory: Memory, *, item_bytes: int, item_count: int | None = None, memory_kind: MemoryKind | None = None, memory_fd: int = -1, memory_fd_offset: int = 0) -> None:
        """
        layer: global layer number, 0 for aux. item_bytes: bytes of one page (or slot).
        item_count: pages (or slots), by default as many as fit.

        memory_kind: by default Device for a DLPack object of a device that the host can't read, else Host. A
        manager refuses device memory when it is made, and says what can move it.
        memory_fd, memory_fd_offset: the sealed memfd that the memory is mapped from and where in it it lies
        (SharedPool.region() fills them); -1: none.

        Raises InvalidArgument for memory that is too small, not contiguous, or empty.
        """

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
        """
        Whether the memory may only be read: good for pages and state of a prefill rank only.
        """

    def __repr__(self) -> str: ...

class RankCoordinates:
    """
    This process's place in its engine. tp splits heads, pp layers, dp is a whole replica.
    """

    def __init__(self, tp_rank: int = 0, tp_size: int = 1, pp_rank: int = 0, pp_size: int = 1, dp_rank: int = 0, dp_size: int = 1) -> None: ...

    @property
    def tp_rank(self) -> int: ...

    @tp_rank.setter
    def tp_rank(self, arg: int, /) -> None: ...

    @property
    def tp_size(self) -> int: ...

    @tp_size.setter
    def tp_size(self, arg: int, /) -> None: ...

    @property
    def pp_rank(self) -> int: ...

    @pp_rank.setter
    def pp_rank(self, arg: int, /) -> None: ...

    @property
    def pp_size(self) -> int: ...

    @pp_size.setter
    def pp_size(self, arg: int, /) -> None: ...

    @property
    def dp_rank(self) -> int: ...

    @dp_rank.setter
    def dp_rank(self, arg: int, /) -> None: ...

    @property
    def dp_size(self) -> int: ...

    @dp_size.setter
    def dp_size(self, arg: int, /) -> None: ...

    def __eq__(self, other: object, /) -> bool: ...

class Numerics:
    """
    What must match for the bits to be equal, beyond the layout.

    A difference warns, and refuses the pair only with Options.require_identical.
    """

    def __init__(self, kernel_library: str = '', threads: int = 0, prefill_chunk_tokens: int = 0, flags: str = '') -> None: ...

    @property
    def kernel_library(self) -> str: ...

    @kernel_library.setter
    def kernel_library(self, arg: str, /) -> None: ...

    @property
    def flags(self) -> str: ...

    @flags.setter
    def flags(self, arg: str, /) -> None: ...

    def __eq__(self, other: object, /) -> bool: ...

    @property
    def threads(self) -> int: ...

    @threads.setter
    def threads(self, arg: int, /) -> None: ...

    @property
    def prefill_chunk_tokens(self) -> int: ...

    @prefill_chunk_tokens.setter
    def prefill_chunk_tokens(self, arg: int, /) -> None: ...

class KvArgs:
    """What one rank of an engine tells kvferry about itself once, at start."""

    def __init__(self, role: Role = Role.Prefill, *, instance: str = '', engine_epoch: int = 0, rank: RankCoordinates | None = None, model_fingerprint: str = '', page_size_tokens: int = 0, total_layers: int = 0, total_kv_heads: int = 0, head_dim: int = 0, dtype: DType = DType.F16, layers: tuple[int, int] = (0, 0), heads: tuple[int, int] = (0, 0), vocab_size: int = 0, regions: Sequence[Region] = (), numerics: Numerics | None = None) -> None: ...

    @property
    def role(self) -> Role: ...

    @role.setter
    def role(self, arg: Role, /) -> None: ...

    @property
    def instance(self) -> str:
        """Name of the engine instance in the registry; empty: one is drawn."""

    @instance.setter
    def instance(self, arg: str, /) -> None: ...

    @property
    def engine_epoch(self) -> int:
        """Equal on all ranks of one launch; 0: draw one (one rank only)."""

    @engine_epoch.setter
    def engine_epoch(self, arg: int, /) -> None: ...

    @property
    def rank(self) -> RankCoordinates: ...

    @rank.setter
    def rank(self, arg: RankCoordinates, /) -> None: ...

    @property
    def model_fingerprint(self) -> str:
        """Opaque; pairs with unequal ones are refused."""

    @model_fingerprint.setter
    def model_fingerprint(self, arg: str, /) -> None: ...

    @property
    def page_size_tokens(self) -> int: ...

    @page_size_tokens.setter
    def page_size_tokens(self, arg: int, /) -> None: ...

    @property
    def total_layers(self) -> int: ...

    @total_layers.setter
    def total_layers(self, arg: int, /) -> None: ...

    @property
    def total_kv_heads(self) -> int: ...

    @total_kv_heads.setter
    def total_kv_heads(self, arg: int, /) -> None: ...

    @property
    def head_dim(self) -> int: ...

    @head_dim.setter
    def head_dim(self, arg: int, /) -> None: ...

    @property
    def dtype(self) -> DType: ...

    @dtype.setter
    def dtype(self, arg: DType, /) -> None: ...

    @property
    def layers(self) -> tuple[int, int]:
        """Half-open range of the layers of this rank."""

    @layers.setter
    def layers(self, arg: tuple[int, int], /) -> None: ...

    @property
    def heads(self) -> tuple[int, int]:
        """Half-open range of the KV heads of this rank."""

    @heads.setter
    def heads(self, arg: tuple[int, int], /) -> None: ...

    @property
    def vocab_size(self) -> int:
        """0: the first token in aux is not checked."""

    @vocab_size.setter
    def vocab_size(self, arg: int, /) -> None: ...

    @property
    def numerics(self) -> Numerics: ...

    @numerics.setter
    def numerics(self, arg: Numerics, /) -> None: ...

    @property
    def regions(self) -> tuple[Region, ...]:
        """
        Order matters and is the same on both sides.

        An item of a K or V region is [page_size_tokens][heads of this rank][head_dim]. Takes any sequence.
        """

    @regions.setter
    def regions(self, arg: Sequence[Region], /) -> None: ...

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
        """
        Prefill: how its bytes travel, "shm" or "tcp"; empty without a session.
        """

    @property
    def path_why(self) -> str:
        """Why not a path that was preferred."""

class ReleasedPages:
    """
    Pages and slots that left a grant or a source hold and are the caller's again.
    """

    @property
    def owner(self) -> int:
        """KvReceiver.id() or KvSender.id()."""

    @property
    def room(self) -> int: ...

    @property
    def binding(self) -> Binding: ...

    @property
    def pages(self) -> array.array[int]:
        """
        array('I'), made anew. Decode: granted pages. Prefill: pages given to send().
        """

    @property
    def aux_slot(self) -> int:
        """-1: none."""

    @property
    def state_slots(self) -> array.array[int]:
        """array('I'), made anew."""

class KvManager:
    """
    One per rank and process: owns the protocol's thread, the control link, the transport and every room's
    state. Senders and receivers are thin handles into it, and keep it alive.

    No call waits for a peer or a socket, apart from stop(), which joins the manager's threads and ends within
    Options.stop_timeout_ms however many peers are dead; destruction and the interpreter's exit call it. A
    forked child can't use its parent's manager: every call there raises KvferryError (WrongState), and
    destroying it there does nothing.
    """

    def __init__(self, args: KvArgs, options: Options | Mapping[str, OptionValue] | None = None) -> None:
        """
        Validates, binds, registers at the bootstrap servers (in the background), starts the threads.

        args and options are copied; the memory of args.regions is kept referenced.
        """

    @staticmethod
    def create(args: KvArgs, options: Options | Mapping[str, OptionValue] | None = None) -> KvManager:
        """As KvManager(); C++'s name."""

    def keep_paired(self, bootstrap_address: str) -> None:
        """
        Opens sessions to every prefill rank that this registry (host:port) lists and keeps them open.

        Ahead of any room. Decode only.
        """

    def stop(self) -> None:
        """
        Fails all rooms with ShuttingDown, ends all sessions and joins the threads. Idempotent.

        The regions' memory stays referenced until the manager is destroyed.
        """

    def __enter__(self) -> KvManager: ...

    def __exit__(self, exc_type: type[BaseException] | None = None, exc_value: BaseException | None = None, traceback: types.TracebackType | None = None) -> None:
        """Calls stop()."""

    def poll_many(self, ids: ArrayBuffer, statuses: ArrayBuffer) -> None:
        """
        Fills statuses[i] with the status of handle ids[i], without allocating.

        ids: one-dimensional, contiguous, uint64 (KvSender.id(), KvReceiver.id()). statuses: as long as ids,
        contiguous, writable, uint8 or uint32 (numpy.empty(n, "u1")). An id that is unknown or was cleared reads
        Failed. A receiver's Success passes its pages as poll() does.
        """

    def take_changed(self) -> array.array[int] | None:
        """
        The handles with a new status since the last call, in order.

        As array('Q'), which poll_many() takes; one handle perhaps more than once. None: look at every handle once
        (the first call, too many changes, or the manager has stopped).
        """

    def take_released(self) -> list[ReleasedPages]:
        """
        Pages released since the last call, in order. The caller owns them from here on.
        """

    def event_fd(self) -> int:
        """
        A file descriptor for schedulers that sleep when idle; the manager's own.

        Readable (poll, level-triggered) while take_released() has something or a status changed since the last
        drain_event_fd().
        """

    def drain_event_fd(self) -> None: ...

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
        """
        Writes the record, with room, binding and CRC, into a slot of this rank's aux region.

        Prefill only; before the last send().
        """

    def read_aux(self, aux_slot: int, room: int, binding: BindingLike) -> AuxRecord:
        """
        Reads and checks a record. Decode only; after Success.

        Raises KvferryError (AuxInvalid) for one that is not whole.
        """

class KvSender:
    """Prefill side of one room on one rank. Destroying it is clear()."""

    def __init__(self, manager: KvManager, room: int, binding: BindingLike) -> None:
        """
        Opens the room here.

        A second open with the same room and binding is Failed with DuplicateRoom while the first has no terminal
        status.
        """

    def abort(self, reason: str = 'aborted by the caller') -> None:
        """
        Fails the room on all ranks at once with Aborted. Its pages come back later.
        """

    def clear(self) -> None:
        """
        Drops the handle. An unfinished room is aborted; what is owed to peers goes on.

        A receiver's pages of a Success that was never read come back through KvManager.take_released().
        """

    def failure(self) -> Failure | None:
        """First cause, once poll() is Failed."""

    def id(self) -> int:
        """
        Names this handle in poll_many() and ReleasedPages.

        Never reused, by a sender or by a receiver.
        """

    def init(self, page_count: int, aux_slot: int = -1) -> None:
        """
        How many pages will be sent in all (0: aux only), and the aux slot that holds the record.

        By the time of the last send(); -1: this rank sends no aux.
        """

    def send(self, pages: IntList, state_slots: IntList = ()) -> None:
        """
        Sends the next chunk: pages of this rank's regions, in prompt order.

        They go to the next pages of the grant, past its decode prefix. The call that brings the sum to page_count
        is the last: aux and state follow it (with page_count 0: one call without pages).

        Ownership: the pages belong to kvferry until KvManager.take_released() hands them back; the engine may go
        on reading them. The list itself is copied.
        """

    def poll(self) -> KvPoll:
        """A load."""

    def landed_bytes(self) -> int:
        """Bytes of this room known to be at their target so far; a load."""

    def decode_prefix_pages(self) -> int:
        """Pages that decode already has; 0 before WaitingForInput."""

class KvReceiver:
    """Decode side of one room on one rank. Destroying it is clear()."""

    def __init__(self, manager: KvManager, room: int, binding: BindingLike) -> None:
        """
        Opens the room here.

        A second open with the same room and binding is Failed with DuplicateRoom while the first has no terminal
        status.
        """

    def abort(self, reason: str = 'aborted by the caller') -> None:
        """
        Fails the room on all ranks at once with Aborted. Its pages come back later.
        """

    def clear(self) -> None:
        """
        Drops the handle. An unfinished room is aborted; what is owed to peers goes on.

        A receiver's pages of a Success that was never read come back through KvManager.take_released().
        """

    def failure(self) -> Failure | None:
        """First cause, once poll() is Failed."""

    def id(self) -> int:
        """
        Names this handle in poll_many() and ReleasedPages.

        Never reused, by a sender or by a receiver.
        """

    def init(self, bootstrap_address: str, prefill_instance: str = '', prefill_dp_rank: int = 0) -> None:
        """
        Where the prefill ranks of this room are found.

        A registry (host:port, checked against bootstrap_addresses and bootstrap_allow) and the instance in it;
        empty: the only one that it lists. prefill_dp_rank chooses the replica.
        """

    def send_metadata(self, pages: IntList, aux_slot: int = -1, state_slots: IntList = (), decode_prefix_tokens: int = 0, expected_grants: int = 1) -> None:
        """
        Grants pages to the prefill ranks. Page i of the prompt, past the prefix, lands in pages[i].

        decode_prefix_tokens: prompt tokens that are here already, a multiple of the page size. expected_grants:
        how many decode ranks grant to the same senders (all ranks of this engine). May be called before
        WaitingForInput; it is kept until then.

        Ownership: pages, aux slot and state slots belong to kvferry from here on. They become the caller's when
        poll() (or poll_many()) returns Success, else they come back through KvManager.take_released().
        """

    def poll(self) -> KvPoll:
        """
        A load. The first call that returns Success passes the pages to the caller.
        """

    def attempt(self) -> int:
        """
        Which life of the room this is, drawn when its pages are granted; 0 until then.
        """

class BootstrapServerOptions:
    """
    host: address to bind. port: 0: any free one. cluster_token_file: empty: no HMAC, loopback only.

    max_superseded: incarnations remembered as replaced.
    """

    def __init__(self, host: str = '127.0.0.1', port: int = 0, cluster_token_file: str = '', max_rows: int = 65536, max_body_bytes: int = 65536, max_superseded: int = 65536) -> None: ...

    @property
    def host(self) -> str: ...

    @host.setter
    def host(self, arg: str, /) -> None: ...

    @property
    def cluster_token_file(self) -> str: ...

    @cluster_token_file.setter
    def cluster_token_file(self, arg: str, /) -> None: ...

    @property
    def port(self) -> int: ...

    @port.setter
    def port(self, arg: int, /) -> None: ...

    @property
    def max_rows(self) -> int: ...

    @max_rows.setter
    def max_rows(self, arg: int, /) -> None: ...

    @property
    def max_body_bytes(self) -> int: ...

    @max_body_bytes.setter
    def max_body_bytes(self, arg: int, /) -> None: ...

    @property
    def max_superseded(self) -> int: ...

    @max_superseded.setter
    def max_superseded(self, arg: int, /) -> None: ...

class BootstrapServer:
    """
    The registry of a fleet, in which decode finds the prefill ranks of a room.

    An HTTP service in which ranks register their addresses and public keys under a lease. It has threads of
    its own and never sees KV data. Stopped by stop(), by destruction and at the interpreter's exit.
    """

    def __init__(self, options: BootstrapServerOptions | None = None) -> None:
        """
        Binds and starts to serve. Raises KvferryError when the address can't be bound.
        """

    @staticmethod
    def start(options: BootstrapServerOptions | None = None) -> BootstrapServer:
        """As BootstrapServer(); C++'s name."""

    def address(self) -> str:
        """host:port."""

    def stop(self) -> None:
        """Idempotent; joins its threads."""

    def __enter__(self) -> BootstrapServer: ...

    def __exit__(self, exc_type: type[BaseException] | None = None, exc_value: BaseException | None = None, traceback: types.TracebackType | None = None) -> None:
        """Calls stop()."""
