"""Options by attribute, keyword, mapping and name."""

import pathlib

import pytest

import kvferry
import ranks


def test_every_row_is_an_attribute():
    options = kvferry.Options()
    rows = kvferry.option_rows()
    assert len(rows) > 50
    assert list(options.to_dict()) == [row.name for row in rows]
    for row in rows:
        value = getattr(options, row.name)
        assert value == options.get(row.name)
        setattr(options, row.name, value)
        text = {bool: str(value).lower(), list: ",".join(value) if value == [] else None}
        assert row.default == text.get(type(value), str(value))


def test_all_ways_to_set():
    options = kvferry.Options({"transport": "tcp", "lease_ms": 500}, lease_ms=600, curve=False)
    assert (options.transport, options.lease_ms, options.curve) == ("tcp", 600, False)
    options.bootstrap_addresses = ["h1:1", "h2:2"]
    assert options.get("bootstrap_addresses") == ["h1:1", "h2:2"]
    options.set("bootstrap_addresses", "h3:3")
    assert options.bootstrap_addresses == ["h3:3"]
    options.set("lease_ms", "700")
    options.set("page_digests", "yes")
    assert (options.lease_ms, options.page_digests) == (700, True)
    options.shm_folder = pathlib.Path("/run/kv")
    assert options.shm_folder == "/run/kv"
    copy = kvferry.Options(options, transport="shm")
    assert (copy.lease_ms, copy.transport, options.transport) == (700, "shm", "tcp")
    assert kvferry.Options(options.to_dict()).to_dict() == options.to_dict()


def test_unknown_names():
    nearest = r"unknown option 'leas_ms': the nearest are lease_ms"
    for call in (lambda: kvferry.Options(leas_ms=1), lambda: kvferry.Options({"leas_ms": 1}),
                 lambda: kvferry.Options().set("leas_ms", 1), lambda: kvferry.Options().get("leas_ms")):
        with pytest.raises(kvferry.InvalidArgument, match=nearest):
            call()
    with pytest.raises(AttributeError, match=nearest):
        kvferry.Options().leas_ms = 1
    with pytest.raises(AttributeError):
        kvferry.Options().leas_ms
    with pytest.raises(ValueError, match="unknown option 'qqqq': option_rows"):
        kvferry.Options(qqqq=1)


def test_bad_values():
    cases = [
        ({"lease_ms": 5}, "option lease_ms: '5' is not a whole number from 100 to 86400000 ms"),
        ({"lease_ms": -1}, "option lease_ms: '-1' is not a whole number"),
        ({"lease_ms": True}, "option lease_ms: 'true' is not a whole number"),
        ({"curve": 7}, "option curve: '7' is neither true nor false"),
        ({"bootstrap_addresses": ["nowhere"]}, "option bootstrap_addresses: 'nowhere' is not host:port"),
        ({"transport": "a\nb"}, "option transport: the text has control characters"),
    ]
    for values, words in cases:
        with pytest.raises(kvferry.InvalidArgument, match=words):
            kvferry.Options(values)
    with pytest.raises(TypeError, match="option lease_ms: a bool, int, text or list .* not float"):
        kvferry.Options(lease_ms=1.5)
    with pytest.raises(TypeError, match="options: an Options or a mapping is needed, not int"):
        kvferry.Options(3)


def test_what_depends_on_more_than_one_is_checked_when_a_manager_is_made():
    options = kvferry.Options(ranks.OPTIONS, redial_min_ms=3000)
    words = r"redial_min_ms \(3000\) must not exceed redial_max_ms \(2000\)"
    with pytest.raises(kvferry.InvalidArgument, match=words):
        options.validate()
    args = ranks.kv_args(kvferry.Role.Decode, ranks.Memory().regions())
    with pytest.raises(kvferry.InvalidArgument, match=words):
        kvferry.KvManager(args, options)
    with pytest.raises(kvferry.KvferryError, match="carrier-pigeon"):
        kvferry.KvManager(args, {"transport": "carrier-pigeon"})
    with kvferry.KvManager(args, ranks.OPTIONS) as manager:
        assert manager.options().transport == "tcp"
