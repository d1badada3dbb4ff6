"""The plug-in makes the backend known to SGLang, and says or refuses where it can't."""

import os
import subprocess

import fleet

START = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(name)s: %(message)s")
import host_sglang
host_sglang.load(bootstrap_port=1, backend="kvferry")
"""
REPORT = """
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.arg_groups.choices import DISAGG_TRANSFER_BACKEND_CHOICES as choices
from sglang.srt.disaggregation import decode, utils
print("choices", choices)
for name in ("kvferry", "nixl", "mooncake"):
    try:
        made = decode.get_kv_class(utils.TransferBackend(name), utils.KVClassType.MANAGER)
        print(name, "is", made.__module__, made.__name__)
    except ValueError as error:
        print(name, "refused:", error)
"""


def run(site, python, code, **environment):
    made = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(fleet.HERE)])} | environment)
    return made.returncode, made.stdout + made.stderr


def test_the_entry_point_is_enough(site, sglang_python):
    code, text = run(site, sglang_python, START + REPORT)
    assert code == 0, text
    assert "'kvferry'" in text.split("choices", 1)[1].splitlines()[0]
    assert "kvferry is kvferry.sglang.manager KvferryKVManager" in text
    assert "mooncake is sglang.srt.disaggregation.mooncake.conn MooncakeKVManager" in text
    assert "INFO kvferry.sglang.plugin: kvferry" in text and "release timer off" in text


def test_alias_takes_the_name_over(site, sglang_python):
    code, text = run(site, sglang_python, START + REPORT, KVFERRY_SGLANG_ALIAS="nixl")
    assert code == 0, text
    assert "nixl is kvferry.sglang.manager KvferryKVManager" in text
    assert "and alias 'nixl'" in text


def test_alias_of_another_name_ends_the_process(site, sglang_python):
    code, text = run(site, sglang_python, START + REPORT, KVFERRY_SGLANG_ALIAS="mooncake")
    assert code != 0
    assert "kvferry can stand under one of the names nixl, mori" in text


OTHER_PLUGIN = """
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
HookRegistry.register("sglang.srt.disaggregation.utils.get_kv_class",
                      lambda original, backend, kind: object, HookType.AROUND)
"""


def test_a_hook_without_effect_is_refused(site, sglang_python):
    """The control of the check: another plug-in's hook hides kvferry's."""
    late = OTHER_PLUGIN.replace("HookRegistry.register", "register = lambda: HookRegistry.register")
    code, text = run(site, sglang_python, START + late + """
import kvferry.sglang.plugin as plugin
before = plugin.verify_after
plugin.verify_after = lambda registry: (register(), before(registry))
""" + REPORT)
    assert code == 0, text
    assert "kvferry can't be a backend of this SGLang" in text
    assert "the hook on get_kv_class" in text and "SGLANG_PLUGINS=kvferry" in text
    assert "'kvferry'" not in text.split("choices", 1)[1].splitlines()[0]
    assert "kvferry refused:" in text


def test_a_hook_without_effect_ends_the_process_in_alias_mode(site, sglang_python):
    late = OTHER_PLUGIN.replace("HookRegistry.register", "register = lambda: HookRegistry.register")
    code, text = run(site, sglang_python, START + late + """
import kvferry.sglang.plugin as plugin
before = plugin.verify_after
plugin.verify_after = lambda registry: (register(), before(registry))
""" + REPORT, KVFERRY_SGLANG_ALIAS="nixl")
    assert code != 0
    assert "nothing is started in its place" in text


def test_processes_without_schedulers_import_little(site, sglang_python):
    without = START.replace('backend="kvferry")', 'backend="kvferry", schedulers=False)')
    code, text = run(site, sglang_python, without + """
from sglang.srt.plugins import load_plugins
load_plugins()
print("decode imported:", "sglang.srt.disaggregation.decode" in sys.modules)
""")
    assert code == 0, text
    assert "decode imported: False" in text
    assert "INFO kvferry.sglang.plugin: kvferry" in text and "release timer off" not in text
