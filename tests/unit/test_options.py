"""Tests of the table of options: validation, and its copy in the README."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_statestore import OptionError
from spark_statestore.options import (
    OPTION_PREFIX,
    OPTIONS,
    Option,
    StorageOptions,
    as_markdown,
    check,
    parse_size,
)

ABSOLUTE = [
    "/data",
    "file:/data",
    "file:///data/x",
    "FILE:///data",
    "s3://bucket/x",
    "s3a://bucket/x",
    "abfss://c@a.dfs.core.windows.net/x",
    "hdfs:///x",
    "nowhere://x",
]
RELATIVE = [
    "bucket/x",
    "data",
    "./x",
    "../x",
    ".",
    "~",
    "~/x",
    "file:x",
    "file:./x",
    "file:",
    "s3:bucket/x",
    "s3a:/bucket/x",
    "hdfs:/x",
    "C:/x",
    "C:\\x",
    "://x",
    "a b://x",
]

GOOD = {
    "storage": ["filesystem", "memory", " memory "],
    "checkpointsDir": [*ABSOLUTE],
    "savepointsDir": [*ABSOLUTE],
    "maxStateSize": ["1", 1, "5m", "2g"],
    "fileStateThreshold": ["0", 0, "20k", "256m", 1024 * 1024],
    "snapshotInterval": ["1", 10, "1000000"],
    "commit": ["auto", "task", "batch"],
    "numRetained": [1, "1000000000"],
    "compression": ["none", "zstd"],
    "fsync": ["true", "false", True, False],
    "storageTimeoutSeconds": ["1", 120, "86400"],
    "storageRetries": ["0", 5, "20"],
    "maxHeapBytes": ["0", "2g"],
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
    "snapshotInterval": ["0", "-1", "1000001", "ten", "1k", "1.0", ""],
    "commit": ["", "Batch", "asynchronous"],
    "numRetained": ["0", "1000000001", b"1"],
    "compression": ["gzip", "lz4", "ZSTD", ""],
    "fsync": ["yes", "1", 1, "True"],
    "storageTimeoutSeconds": ["0", "86401", "2m", "1.5", ""],
    "storageRetries": ["-1", "21", "many"],
    "maxHeapBytes": ["-1", "half"],
    "python": [""],
    "driverPython": [""],
    "realTimeMode": ["", "yes", "on"],
}
CASES = [(name, value, True) for name in GOOD for value in GOOD[name]] + [
    (name, value, False) for name in BAD for value in BAD[name]
]


def test_validation_cases_cover_every_option() -> None:
    assert list(GOOD) == list(BAD) == [option.name for option in OPTIONS]


@pytest.mark.parametrize(("name", "value", "good"), CASES)
def test_check_accepts_valid_and_refuses_invalid_values(name: str, value: object, good: bool) -> None:
    if good:
        text = str(value).strip()
        assert check(name, value) == (text.lower() if isinstance(value, bool) else text)
    else:
        with pytest.raises(OptionError, match="but it must be") as raised:
            check(name, value)
        assert OPTION_PREFIX + name in str(raised.value)
        assert repr(value) in str(raised.value)
        assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize("name", ["checkpointsDir", "savepointsDir"])
@pytest.mark.parametrize("value", RELATIVE)
def test_check_refuses_relative_directory_and_names_the_consequence(name: str, value: str) -> None:
    with pytest.raises(OptionError) as raised:
        check(name, value)
    message = str(raised.value)
    assert message.startswith(
        f"{OPTION_PREFIX + name!r} is {value!r}, but it must be an absolute path or a URL"
    )
    assert "relative to the working directory of each process" in message
    assert "s3://bucket/x" in message
    assert "file:///data/x" in message


@pytest.mark.parametrize("value", ["file://relative/path", "file://localhost/x", "FILE://host"])
def test_check_refuses_file_url_with_a_host(value: str) -> None:
    with pytest.raises(OptionError, match="what follows 'file://' is the name of a host") as raised:
        check("checkpointsDir", value)
    assert "file:///" in str(raised.value)


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
    [("num_retained", "numRetained"), ("FSYNC", "fsync"), ("checkpoints_dir", "checkpointsDir")],
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
    ("text", "size"),
    [
        ("0", 0),
        ("17", 17),
        ("17b", 17),
        ("1k", 1024),
        ("1K", 1024),
        ("1kb", 1024),
        ("1KiB", 1024),
        (" 5 MiB ", 5 * 1024**2),
        ("2g", 2 * 1024**3),
        ("", None),
        ("k", None),
        ("-1", None),
        ("1.5k", None),
        ("1t", None),
        ("1 2", None),
        ("1ib", None),
    ],
)
def test_parse_size_units_are_powers_of_1024(text: str, size: int | None) -> None:
    assert parse_size(text) == size


@given(st.text(max_size=8))
def test_parse_size_of_any_text_is_a_size_or_none(text: str) -> None:
    size = parse_size(text)
    assert size is None or size >= 0


def test_storage_options_defaults_equal_the_table() -> None:
    defaults = {o.name: o.default for o in OPTIONS}
    assert StorageOptions.parse({}) == StorageOptions()
    named = {
        n: defaults[n]
        for n in (
            "storage",
            "maxStateSize",
            "fileStateThreshold",
            "compression",
            "fsync",
            "storageTimeoutSeconds",
            "storageRetries",
        )
    }
    assert StorageOptions.parse(named) == StorageOptions()


def test_storage_options_parse_given_values() -> None:
    given_options = {
        "storage": "memory",
        "checkpointsDir": "/data",
        "maxStateSize": "1k",
        "fileStateThreshold": "0",
        "compression": "none",
        "fsync": "true",
        "numRetained": "7",
        "storageTimeoutSeconds": "9",
        "storageRetries": "0",
    }
    assert StorageOptions.parse(given_options) == StorageOptions("memory", "/data", 1024, 0, None, True, 9, 0)


def test_readme_contains_the_option_table() -> None:
    lines = as_markdown().splitlines()
    assert lines[:2] == ["| option | default | meaning |", "|---|---|---|"]
    assert lines[2:] == [f"| {o.name} | {o.default} | {o.meaning} |" for o in OPTIONS]
    assert as_markdown([Option("x", "text", "none", "nothing")]).endswith("| x | none | nothing |")


def test_option_texts_do_not_break_the_markdown_table() -> None:
    for option in OPTIONS:
        assert not set("|\n") & set(option.name + option.default + option.meaning)
        assert option.key == OPTION_PREFIX + option.name
