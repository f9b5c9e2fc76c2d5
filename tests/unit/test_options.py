"""Tests of the table of options and of their validation."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_statestore import OptionError
from spark_statestore.options import (
    OPTION_PREFIX,
    OPTIONS,
    StorageOptions,
    as_markdown,
    check,
    parse_size,
)

ABSOLUTE = [
    "/data", "file:/data", "file:///data/x", "FILE:///data",
    "s3://bucket/x", "abfss://c@a.dfs.core.windows.net/x", "hdfs:///x", "nowhere://x",
]  # fmt: skip
RELATIVE = [
    "bucket/x", "./x", ".", "~", "~/x", "file:x", "file:",
    "s3:bucket/x", "s3a:/bucket/x", "C:/x", "C:\\x", "://x", "a b://x",
]  # fmt: skip

GOOD = {
    "storage": ["filesystem", "memory", " memory "],
    "checkpointsDir": [*ABSOLUTE],
    "savepointsDir": [*ABSOLUTE],
    "maxStateSize": ["1", 1, "5m", "2g"],
    "fileStateThreshold": ["0", 0, "20k", "256m", 1024 * 1024],
    "commit": ["auto", "task", "batch"],
    "compression": ["none", "zstd"],
    "fsync": ["true", "false", True, False],
    "storageTimeoutSeconds": ["1", 120, "86400"],
    "storageRetries": ["0", 5, "20"],
    "localRecovery": ["auto", "off", "/data"],
    "localRecoveryMaxBytes": ["0", "64g"],
    "scrubIntervalSeconds": ["0", 60, "86400"],
    "rebalance": ["true", "false", True, False],
    "maxHeapBytes": ["0", "2g"],
    "partitions": ["1", 64, "32768", "orders=64", "orders=64, clicks = 16", "8,orders=64"],
    "python": ["/usr/bin/python3"],
    "driverPython": ["/usr/bin/python3"],
    "realTimeMode": ["true", "false", True],
}
BAD = {
    "storage": ["", "Memory", "disk", True],
    "checkpointsDir": ["", "   ", *RELATIVE],
    "savepointsDir": ["", *RELATIVE],
    "maxStateSize": ["0", "-1", "5x", "", "1.5m", 1.5, None],
    "fileStateThreshold": ["-1", "268435457", "257m", "k"],
    "commit": ["", "Batch", "asynchronous"],
    "compression": ["gzip", "lz4", "ZSTD", ""],
    "fsync": ["yes", "1", 1, "True"],
    "storageTimeoutSeconds": ["0", "86401", "2m", "1.5", "ten", "", b"1"],
    "storageRetries": ["-1", "21", "many"],
    "localRecovery": ["", "on", "data", "s3://bucket/x"],
    "localRecoveryMaxBytes": ["-1", "half"],
    "scrubIntervalSeconds": ["-1", "1d", ""],
    "rebalance": ["no", 0],
    "maxHeapBytes": ["-1", "half"],
    "partitions": ["", "0", "-1", "32769", "many", "1.5", "orders=", "orders=0", "=", "8,16", "8,", True],
    "python": [""],
    "driverPython": [""],
    "realTimeMode": ["", "yes", "on"],
}


def test_validation_cases_cover_every_option() -> None:
    assert list(GOOD) == list(BAD) == [option.name for option in OPTIONS]


@pytest.mark.parametrize("name", GOOD)
def test_check_accepts_valid_and_refuses_invalid_values(name: str) -> None:
    for value in GOOD[name]:
        text = str(value).strip()
        assert check(name, value) == (text.lower() if isinstance(value, bool) else text)
    for value in BAD[name]:
        with pytest.raises(OptionError, match="but it must be") as raised:
            check(name, value)
        assert OPTION_PREFIX + name in str(raised.value)
        assert repr(value) in str(raised.value)
        assert isinstance(raised.value, ValueError)
        if value in RELATIVE:
            assert "must be an absolute path or a URL" in str(raised.value)
            assert "relative to the working directory of each process" in str(raised.value)
            assert "s3://bucket/x" in str(raised.value)
            assert "file:///data/x" in str(raised.value)


@pytest.mark.parametrize("value", ["file://relative/path", "file://localhost/x", "FILE://host"])
def test_check_refuses_file_url_with_a_host(value: str) -> None:
    with pytest.raises(OptionError, match=r"file:///.* what follows 'file://' is the name of a host"):
        check("checkpointsDir", value)


def test_check_hides_password_of_a_refused_directory() -> None:
    with pytest.raises(OptionError) as raised:
        check("checkpointsDir", "s3:user:hunter2@bucket/x")
    assert "hunter2" not in str(raised.value)
    assert "'...@bucket/x'" in str(raised.value)
    with pytest.raises(OptionError, match="'bucket@account/x'"):
        check("checkpointsDir", "bucket@account/x")


@pytest.mark.parametrize("name", ["checkpointsDir", "savepointsDir", "python"])
def test_check_refuses_a_url_with_a_password(name: str) -> None:
    with pytest.raises(
        OptionError, match=f"'{OPTION_PREFIX}{name}' is a URL that contains a password"
    ) as raised:
        check(name, "s3://user:hunter2@bucket/x")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("storage_retries", "storageRetries"), ("FSYNC", "fsync"), ("checkpoints_dir", "checkpointsDir")],
)
def test_check_suggests_the_option_of_a_misspelt_name(name: str, meant: str) -> None:
    with pytest.raises(OptionError, match=f"Did you mean '{OPTION_PREFIX}{meant}'"):
        check(name, "1")


def test_check_lists_all_options_for_an_unknown_name() -> None:
    with pytest.raises(OptionError, match=f"'{OPTION_PREFIX}colour' is not an option") as raised:
        StorageOptions.parse({"colour": "blue"})
    assert all(option.name in str(raised.value) for option in OPTIONS)
    assert "Did you mean" not in str(raised.value)


@pytest.mark.parametrize(
    ("texts", "size"),
    [
        (["0"], 0),
        (["17", "17b"], 17),
        (["1k", "1K", "1kb", "1KiB"], 1024),
        ([" 5 MiB "], 5 * 1024**2),
        (["2g"], 2 * 1024**3),
        (["", "k", "-1", "1.5k", "1t", "1 2", "1ib"], None),
    ],
)
def test_parse_size_units_are_powers_of_1024(texts: list[str], size: int | None) -> None:
    assert {parse_size(text) for text in texts} == {size}


@given(st.text(max_size=8))
def test_parse_size_of_any_text_is_a_size_or_none(text: str) -> None:
    size = parse_size(text)
    assert size is None or size >= 0


def test_storage_options_defaults_equal_the_table() -> None:
    defaults = {option.name: option.default for option in OPTIONS}
    names = "storage maxStateSize fileStateThreshold compression fsync storageTimeoutSeconds storageRetries"
    assert StorageOptions.parse({}) == StorageOptions()
    assert StorageOptions.parse({name: defaults[name] for name in names.split()}) == StorageOptions()


def test_storage_options_parse_given_values() -> None:
    given_options = {
        "storage": "memory",
        "checkpointsDir": "/data",
        "maxStateSize": "1k",
        "fileStateThreshold": "0",
        "compression": "none",
        "fsync": "true",
        "storageTimeoutSeconds": "9",
        "storageRetries": "0",
    }
    assert StorageOptions.parse(given_options) == StorageOptions("memory", "/data", 1024, 0, None, True, 9, 0)


def test_markdown_table_has_every_option() -> None:
    lines = as_markdown().splitlines()
    assert lines[:2] == ["| option | default | meaning |", "|---|---|---|"]
    assert lines[2:] == [f"| {o.name} | {o.default} | {o.meaning} |" for o in OPTIONS]
    for option in OPTIONS:
        assert not set("|\n") & set(option.name + option.default + option.meaning)
