"""Tests of URLs with passwords and names with glob patterns."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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


@pytest.mark.parametrize("opening", [open_file_system, check_url])
def test_storage_that_hides_errors_is_refused(opening: Callable[[str], object]) -> None:
    with pytest.raises(StorageURLError, match=r"cannot hold state: over FTP, .* is reported as missing"):
        opening("ftp://host/checkpoint")


@pytest.mark.parametrize("utf8", ["0", "1"])
def test_path_that_the_locale_lacks_is_refused_with_what_to_set(tmp_path: Path, utf8: str) -> None:
    program = (
        "import sys; from spark_statestore.files import open_file_system\n"
        "files, path = open_file_system(sys.argv[1] + '/pr\\xfcfung')\n"
        "files.make_directory(path)"
    )
    environment = os.environ | {"LC_ALL": "POSIX", "PYTHONUTF8": utf8, "PYTHONCOERCECLOCALE": "0"}
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if utf8 == "1":
        assert (run.returncode, run.stderr) == (0, "")
        assert [path.name for path in tmp_path.iterdir()] == ["pr\xfcfung"]
    else:
        last = run.stderr.strip().splitlines()[-1]
        assert "StorageURLError" in last
        assert r"names files in ascii, because of its locale, which lacks '\xfc'" in last
        assert "Set LC_ALL=C.UTF-8 or PYTHONUTF8=1" in last
