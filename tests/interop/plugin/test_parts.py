"""The plug-in's parts by themselves, in a process that has SGLang's files but no peer."""

import os
import pathlib
import re
import subprocess

import fleet

PREFIX = f"import sys; sys.path.insert(0, {str(fleet.HERE)!r})\n"


def run(site, python, code, **environment):
    """Runs code that asserts; returns what it printed."""
    made = subprocess.run(
        [python, "-c", PREFIX + code], capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | {"PYTHONPATH": str(site)} | environment)
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def test_every_setting_of_sglang_is_in_the_table(site, sglang_python):
    """One that SGLang adds is seen here; one that the table invents, too."""
    text = run(site, sglang_python, """
import importlib.util, pathlib
print(pathlib.Path(importlib.util.find_spec("sglang").submodule_search_locations[0]))
from kvferry.sglang.settings import SETTINGS
print("\\n".join(each.name for each in SETTINGS))
""")
    folder, *listed = text.splitlines()
    source = (pathlib.Path(folder) / "srt" / "environ.py").read_text(encoding="utf-8")
    known = set(re.findall(r"^    (SGLANG_\w*(?:DISAGG|PD_DISAGG)\w*) = Env", source, re.MULTILINE))
    assert len(known) > 20
    assert sorted(listed) == sorted(known)


def test_options_are_derived_and_the_environment_comes_first(site, sglang_python):
    run(site, sglang_python, """
import host_sglang; host_sglang.load(bootstrap_port=1, backend="kvferry")
import kvferry
from kvferry.sglang.settings import options_for
made = options_for(kvferry.Role.Prefill, {"control_host": "127.0.0.1"}, {})
assert (made.bootstrap_timeout_ms, made.transfer_timeout_ms) == (7000, 9000), made.to_dict()
assert options_for(kvferry.Role.Decode, {}, {}).bootstrap_timeout_ms == 10_000
made = options_for(kvferry.Role.Prefill, {"control_host": "127.0.0.1"},
                   {"KVFERRY_CONTROL_HOST": "127.0.0.2", "KVFERRY_TRANSFER_TIMEOUT_MS": "5"
                    "000"})
assert (made.control_host, made.transfer_timeout_ms) == ("127.0.0.2", 5000)
try:
    options_for(kvferry.Role.Decode, {}, {"KVFERRY_LEASE_MS": "0"})
except kvferry.InvalidArgument as error:
    assert "lease_ms" in str(error), error
else:
    raise AssertionError("an option out of range was taken")
""", SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT="7", SGLANG_DISAGGREGATION_WAITING_TIMEOUT="9")


def test_binding_follows_room_and_host_only(site, sglang_python):
    run(site, sglang_python, """
from kvferry.sglang.binding import derive
one = derive("Prefill-1:8998", 5)
assert len(one) == 16 and one == derive("prefill-1:18998", 5)
assert len({one, derive("prefill-1:8998", 6), derive("prefill-2:8998", 5),
            derive("[fe80::1]:8998", 5), derive("prefill-1:8998", 2**64 - 1)}) == 5
""")


def test_metadata_rows_are_checked(site, sglang_python):
    run(site, sglang_python, """
import numpy
from kvferry.sglang.metadata import MetadataError, MetadataRows
arrays = [numpy.arange(4 * n, dtype=numpy.uint8).reshape(4, n) for n in (64, 16, 3)]
def rows(arrays):
    return MetadataRows([a.ctypes.data for a in arrays], [a[0].nbytes for a in arrays],
                        [a.nbytes for a in arrays])
made = rows(arrays)
assert made.slots == 8
slots = [made.take() for _ in range(9)]
assert slots[8] is None and len(set(slots[:8])) == 8 and made.in_use == 8
before = [a.copy() for a in arrays]
made.write(5, 2)
assert made.record(2).first_token == int.from_bytes(arrays[0][2, :4].tobytes(), "little",
                                           signed=True)
made.read(5, 1)
assert all((a[1] == b[2]).all() and (a[3] == b[3]).all() for a, b in zip(arrays, before))
import ctypes
at = made.region().base + 5 * made.region().item_bytes + 64 + 8 + 70
ctypes.c_uint8.from_address(at).value ^= 1
try:
    made.read(5, 0)
except MetadataError as error:
    assert "checksum" in str(error)
else:
    raise AssertionError("a changed byte was not seen")
assert (arrays[0][0] == before[0][0]).all()
""")


MANAGER = """
import host_sglang; settings = host_sglang.load(bootstrap_port=1, backend="kvferry")
from sglang.srt.plugins import load_plugins
load_plugins()
import world
from sglang.srt.disaggregation.utils import DisaggregationMode
from kvferry.sglang.layout import Refused
from kvferry.sglang.manager import KvferryKVManager
pool, rows = world.Pool(2, 8, 64, 0, 1), world.metadata(4)
arguments = world.arguments(pool, rows, 0)
def refuse(*wanted, mode="DECODE"):
    try:
        KvferryKVManager(arguments, getattr(DisaggregationMode, mode), None)
    except Refused as error:
        assert all(each in str(error) for each in wanted), error
    else:
        raise AssertionError(f"not refused: {wanted}")
"""


def test_what_is_not_carried_is_refused_at_start(site, sglang_python):
    run(site, sglang_python, MANAGER + """
for name, value, word in (("pp_size", 2, "--pp-size"), ("attn_cp_size", 2, "context"),
                          ("enable_kv_cache_sharding", True, "sharding"),
                          ("disaggregation_decode_allocation_policy", "prefill_complete",
                           "prefill_complete")):
    before = getattr(settings, name)
    setattr(settings, name, value)
    refuse(word, "--disaggregation-transfer-backend")
    setattr(settings, name, before)
refuse("KVFERRY_BOOTSTRAP_ALLOW")
settings.device = "cuda"
import os
os.environ["KVFERRY_BOOTSTRAP_ALLOW"] = "127.0.0.1:8998"
refuse("'cuda'", "mooncake, nixl", "--device cpu")
settings.device = "cpu"
settings.attn_tp_size = 2
refuse("KVFERRY_ENGINE_EPOCH")
""")


def test_pages_are_never_left_to_a_timer(site, sglang_python):
    run(site, sglang_python, MANAGER + """
refuse("DEFERRED_DECODE_KV_RELEASE is off")
""", SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE="0",
        KVFERRY_BOOTSTRAP_ALLOW="127.0.0.1:8998")
    # Without the hook only the environment can turn the timer off.
    run(site, sglang_python, MANAGER + """
from kvferry.sglang import release_timer
assert release_timer.is_overruled()
from sglang.srt.disaggregation.decode import DecodeTransferQueue
DecodeTransferQueue.__init__ = DecodeTransferQueue.__init__.__wrapped__
assert not release_timer.is_overruled()
refuse("RELEASE_TIMEOUT=inf")
""", KVFERRY_BOOTSTRAP_ALLOW="127.0.0.1:8998")


def test_the_timer_of_other_backends_stays(site, sglang_python):
    run(site, sglang_python, MANAGER + """
from sglang.srt.disaggregation.decode import DecodeTransferQueue
import types
def timer():
    return DecodeTransferQueue(None, rows, types.SimpleNamespace(spec_algorithm=None),
                               None).deferred_kv_release_timeout
assert timer() == float("inf")
settings.disaggregation_transfer_backend = "mooncake"
assert timer() == 30.0
""")


def test_the_registry_is_not_open_to_strangers(site, sglang_python):
    run(site, sglang_python, MANAGER + """
from kvferry.sglang.bootstrap import KvferryKVBootstrapServer
try:
    KvferryKVBootstrapServer(host="0.0.0.0", port=0)
except Refused as error:
    assert "KVFERRY_CLUSTER_TOKEN_FILE" in str(error) and "127.0.0.1" in str(error)
else:
    raise AssertionError("a registry without a token listens everywhere")
""")


def test_servers_that_do_not_fit_are_named(site, sglang_python):
    run(site, sglang_python, MANAGER + """
from sglang.srt.disaggregation.common.conn import PrefillServerInfo
from kvferry.sglang.topology import Decode, expected_grants, find_fault, writer_count
def info(tp=1, **given):
    return PrefillServerInfo(**({"attn_tp_size": tp, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1,
                                 "page_size": 16, "kv_cache_dtype": "auto",
                                 "follow_bootstrap_room": True} | given))
decode = Decode(2, 16, "auto", None, True)
assert find_fault(info(), decode) is None
assert find_fault(info(4), decode) is None
assert "--page-size" in find_fault(info(page_size=32), decode)
assert "--kv-cache-dtype" in find_fault(info(kv_cache_dtype="fp8_e5m2"), decode)
assert "2 pipeline stages" in find_fault(info(pp_size=2), decode)
assert "3 (prefill) and 2 (decode)" in find_fault(info(3), decode)
assert "equal tensor-parallel sizes" in find_fault(info(4), Decode(2, 16, "auto", None, False))
assert [expected_grants(info(p), d) for p, d in ((1, 1), (1, 4), (4, 1), (2, 4))] == [1, 4, 1, 2]
assert [writer_count(info(p), d) for p, d in ((1, 1), (1, 4), (4, 1), (4, 2))] == [1, 1, 4, 2]
""")


def test_the_manual_has_the_table(site, sglang_python):
    manual = (pathlib.Path(fleet.HERE).parents[2] / "docs" / "sglang_plugin.md").read_text(
        encoding="utf-8")
    text = run(site, sglang_python, """
from kvferry.sglang.settings import SETTINGS
print("\\n".join(f"| `{each.name}` | {each.use.value} | {each.what}" for each in SETTINGS))
""")
    missing = [line for line in text.splitlines() if line not in manual]
    assert not missing, missing


def test_no_call_waits_for_a_server_that_says_nothing(site, sglang_python):
    """The order shows it: the server accepts only after the scheduler's calls have returned."""
    run(site, sglang_python, """
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
os.environ["KVFERRY_BOOTSTRAP_ALLOW"] = address = f"127.0.0.1:{port}"
""" + MANAGER + """
from kvferry.sglang.receiver import KvferryKVReceiver
manager = KvferryKVManager(arguments, DisaggregationMode.DECODE, None)
assert not manager.try_ensure_parallel_info(address)
receiver = KvferryKVReceiver(manager, address, 5)
assert receiver.poll() == 1
receiver.abort()
assert receiver.poll() == 0 and not receiver.abort_notified
try:
    receiver.failure_exception()
except Exception as error:
    assert "aborted by SGLang's decode scheduler" in error.failure_reason, error
    assert not error.is_from_another_rank
receiver.clear()
assert manager.is_abort_release_safe(5, 1)
manager.teardown()
listener.settimeout(30)
asked = listener.accept()[0].recv(4096).decode()
assert asked.startswith("GET /route?"), asked
os._exit(0)
""")


def test_rooms_that_sglang_can_not_tell_apart_are_refused(site, sglang_python):
    run(site, sglang_python, MANAGER + """
from kvferry.sglang.receiver import KvferryKVReceiver
manager = KvferryKVManager(arguments, DisaggregationMode.DECODE, None)
for room in (0, None, 2**64):
    receiver = KvferryKVReceiver(manager, "127.0.0.1:8998", room)
    assert receiver.poll() == 0
    try:
        receiver.failure_exception()
    except Exception as error:
        assert "from 1 to" in error.failure_reason, error
""", KVFERRY_BOOTSTRAP_ALLOW="127.0.0.1:8998")


def test_data_parallel_ranks_are_told_as_decode_looks_them_up(site, sglang_python):
    """SGLang's own look-up, which no backend can replace, finds what the plug-in's sender told."""
    run(site, sglang_python, """
import socket
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
import host_sglang
load = host_sglang.load
host_sglang.load = lambda bootstrap_port, **given: load(bootstrap_port=port, **given)
""" + MANAGER + """
import os, time
os.environ["KVFERRY_ENGINE_EPOCH"] = "7"
settings.num_dp_ranks = settings.dp_size = settings.attn_dp_size = 2
settings.attn_dp_rank = arguments.system_dp_rank = 1
from sglang.srt.disaggregation.common.conn import CommonKVReceiver
from kvferry.sglang.bootstrap import KvferryKVBootstrapServer
from kvferry.sglang.sender import KvferryKVSender
server = KvferryKVBootstrapServer(host="127.0.0.1", port=port)
manager = KvferryKVManager(arguments, DisaggregationMode.PREFILL, None)
assert (manager.rank.dp_rank, manager.rank.dp_size) == (1, 2)
address = f"127.0.0.1:{port}"
assert KvferryKVSender(manager, address, 5).poll() == 1
wrong = KvferryKVSender(manager, address, 4)
assert wrong.poll() == 0
try:
    wrong.failure_exception()
except Exception as error:
    assert "FORCE_QUERY_PREFILL_DP_RANK" in error.failure_reason
assert KvferryKVSender(manager, address, 6, req_has_disagg_prefill_dp_rank=True).poll() == 1
settings.load_balance_method = "round_robin"
assert KvferryKVSender(manager, address, 8).poll() == 1
end = time.monotonic() + 30
while CommonKVReceiver.query_prefill_dp_ranks(address, [8]) != {"8": 1}:
    assert time.monotonic() < end
manager.teardown()
os._exit(0)
""", SGLANG_HOST_IP="127.0.0.1")
