"""Comparison of two builds of a release, and its notes."""

from __future__ import annotations

import importlib.util
import io
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from spark_statestore import __version__
from spark_statestore._version import SUPPORTED_SPARK
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def release() -> ModuleType:
    sys.path.insert(0, str(ROOT / "jvm-shim"))
    try:
        spec = importlib.util.spec_from_file_location("release", ROOT / "jvm-shim/release.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(ROOT / "jvm-shim"))


def jar_of(spark: str, content: bytes = b"class") -> bytes:
    jar = io.BytesIO()
    with zipfile.ZipFile(jar, "w") as archive:
        versions = f"Build-Spark-Version: {spark}.0\r\nBuild-Scala-Version: 2.13.1\r\n"
        archive.writestr("META-INF/MANIFEST.MF", f"Manifest-Version: 1.0\r\n{versions}\r\n")
        archive.writestr("A.class", content)
    return jar.getvalue()


def write_wheel(directory: Path, members: dict[str, bytes], mode: int = 0o644) -> Path:
    directory.mkdir()
    path = directory / f"spark_statestore-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in members.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            wheel.writestr(entry, content)
    return path


@pytest.mark.parametrize(
    ("changes", "mode", "expected"),
    [
        pytest.param({}, 0o644, [], id="equal"),
        pytest.param({"a.py": b"2"}, 0o644, ["a.py"], id="content"),
        pytest.param({"b.py": b""}, 0o644, ["b.py"], id="one more"),
        pytest.param({}, 0o600, ["a.py", "x.jar"], id="mode"),
        pytest.param({"x.jar": jar_of("4.3", b"other")}, 0o644, ["x.jar", "x.jar!A.class"], id="class"),
    ],
)
def test_differences_name_the_members_of_wheels_and_jars(
    release: ModuleType, tmp_path: Path, changes: dict[str, bytes], mode: int, expected: list[str]
) -> None:
    members = {"a.py": b"1", "x.jar": jar_of("4.3")}
    first = write_wheel(tmp_path / "first", members)
    second = write_wheel(tmp_path / "second", members | changes, mode)
    assert release.differences(first, second) == [f"{first.name}: {name}" for name in expected]


def test_differences_name_the_members_of_sdists(release: ModuleType, tmp_path: Path) -> None:
    paths = [tmp_path / "first.tar.gz", tmp_path / "second.tar.gz"]
    for number, path in enumerate(paths):
        with tarfile.open(path, "w:gz") as sdist:
            for name, content in {"same": b"", "other": bytes(number)}.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                sdist.addfile(member, io.BytesIO(content))
    assert release.differences(*paths) == ["first.tar.gz: other"]


def test_notes_have_digests_versions_and_changes(release: ModuleType, tmp_path: Path) -> None:
    jars = {f"spark_statestore/jars/{spark}.jar": jar_of(spark) for spark in SUPPORTED_SPARK}
    wheel = write_wheel(tmp_path / "built", jars)
    text = release.notes(wheel.parent, "0123abcd", "1700000000")
    assert f"| {wheel.name} | `" in text
    for spark in SUPPORTED_SPARK:
        assert f"| {spark}.jar | `" in text
        assert f"| {spark}.jar | Spark {spark}.0, Scala 2.13.1 |" in text
    assert "commit 0123abcd with SOURCE_DATE_EPOCH=1700000000" in text
    assert "configure(builder)" in text


def test_release_needs_the_jar_of_each_spark(release: ModuleType, tmp_path: Path) -> None:
    jars = {f"spark_statestore/jars/{spark}.jar": jar_of(spark) for spark in SUPPORTED_SPARK[1:]}
    wheel = write_wheel(tmp_path / "built", jars)
    with pytest.raises(SystemExit, match=r"the wheel has jars for Spark 4\.1, 4\.2, 4\.3 only"):
        release.notes(wheel.parent, "0123abcd", "1700000000")
