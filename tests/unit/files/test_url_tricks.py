"""Tests of URLs with passwords and names with glob patterns."""

from __future__ import annotations

from collections.abc import Callable

import fsspec
import pytest

from spark_statestore.errors import StorageURLError
from spark_statestore.files import FsspecFileSystem, check_url, open_file_system, split_url


@pytest.mark.parametrize("scheme", ["memory"])
def test_delete_directory_does_not_expand_patterns(scheme: str) -> None:
    fs = fsspec.filesystem(scheme, skip_instance_cache=True)
    files = FsspecFileSystem(fs, scheme)
    for name in ("/run[1]", "/run1", "/ru*", "/run?"):
        files.make_directory(f"{name}/chk-5/below")
        files.replace(f"{name}/chk-5/below/_metadata", b"old")
        files.replace(f"{name}/chk-5/below/_metadata", b"new")
    kept = {f"{name}/chk-5/below/_metadata" for name in ("/run[1]", "/run1", "/ru*", "/run?")}
    for name in ("/run[1]", "/ru*", "/run?"):
        files.delete_directory(f"{name}/chk-5", recursive=True)
        kept.remove(f"{name}/chk-5/below/_metadata")
        assert {path for one in ("/run[1]", "/run1", "/ru*", "/run?") for path in fs.find(one)} == kept
        assert not files.exists(f"{name}/chk-5")
    assert files.read("/run1/chk-5/below/_metadata") == b"new"
    fs.rm("/run1", recursive=True)


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:hunter2@bucket/x",
        "s3a://KEY:hun/ter2@bucket/x",
        "sftp://me:hunter2@host/x",
        "HDFS://a:hunter2@b/c",
    ],
)
@pytest.mark.parametrize("opening", [open_file_system, check_url])
def test_url_with_a_password_is_refused_and_masked(opening: Callable[[str], object], url: str) -> None:
    with pytest.raises(StorageURLError, match="contains a password") as caught:
        opening(url)
    assert "hunter2" not in str(caught.value)
    assert "ter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["hdfs://namenode:8020/user/a@b", "abfss://c@account.dfs.core.windows.net/x"])
def test_split_url_accepts_ports_and_containers(url: str) -> None:
    assert split_url(url)[1].endswith(url.partition("//")[2])
