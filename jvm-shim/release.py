"""Build of a release: sdist and wheel of the last commit, built twice and equal byte for byte.

    python jvm-shim/release.py DIRECTORY      write both and RELEASE_NOTES.md into a directory

Each build has its own copy of the commit, its own environment with the build requirements from the package
index, and another path, time zone, locale and umask than the other one. It needs git and a Java 17 runtime.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import build_shim

NOTES = "RELEASE_NOTES.md"

_SETTINGS: tuple[tuple[str, int, dict[str, str]], ...] = (
    ("first", 0o022, {"TZ": "UTC", "LC_ALL": "C.UTF-8"}),
    ("second/at/a/longer/path", 0o077, {"TZ": "Asia/Kathmandu", "LC_ALL": "C"}),
)

_KEPT = re.compile(r"HOME|JAVA_HOME|PATH|TMPDIR|PIP_\w+|\w+_(proxy|PROXY)|SSL_CERT_\w+")
"""Variables that a build takes over from the caller: programs, and how pip reaches its index."""


def run(command: Sequence[str | Path], environment: Mapping[str, str], cwd: Path, umask: int = -1) -> None:
    """Run a program of a build; exit with its output on failure."""
    done = subprocess.run(
        command, env=environment, cwd=cwd, umask=umask, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def git(*arguments: str) -> bytes:
    """Return the output of a git command in the project."""
    return subprocess.run(["git", *arguments], cwd=build_shim.ROOT, stdout=subprocess.PIPE, check=True).stdout


def build(directory: Path, umask: int, settings: dict[str, str], commit: str, epoch: str) -> Path:
    """Build sdist and wheel of a commit below a directory, and return the directory of both."""
    tree, scratch, built = directory / "tree", directory / "environment", directory / "dist"
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as archive:
        archive.extractall(tree, filter="data")
    kept = {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}
    environment = kept | settings | {"SOURCE_DATE_EPOCH": epoch, "PYTHONDONTWRITEBYTECODE": "1"}
    run([sys.executable, "-m", "venv", scratch], environment, directory)
    python = scratch / "bin" / "python"
    install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
    required = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["build-system"][
        "requires"
    ]
    run([*install, *required], environment, directory)
    for spark in build_shim.SUPPORTED_SPARK[:-1]:
        site = directory / "spark" / spark
        run([*install, "--no-deps", "--target", site, f"pyspark=={spark}.*"], environment, directory)
        older = environment | {"PYTHONPATH": str(site)}
        run([python, "jvm-shim/build_shim.py"], older, tree, umask)
        shutil.rmtree(site)
    run([python, "-m", "hatchling", "build", "-d", built], environment, tree, umask)
    return built


def members(archive: Path) -> dict[str, str]:
    """Return a description of each member of a sdist or a wheel: its mode, and its size and digest."""
    found = {}
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for entry in wheel.infolist():
                content = wheel.read(entry)
                found[entry.filename] = f"{entry.external_attr:o} {entry.date_time} {_digest(content)}"
                if entry.filename.endswith(".jar"):
                    with zipfile.ZipFile(io.BytesIO(content)) as jar:
                        for name in jar.namelist():
                            found[f"{entry.filename}!{name}"] = _digest(jar.read(name))
    else:
        with tarfile.open(archive) as sdist:
            for member in sdist:
                file = sdist.extractfile(member)
                content = file.read() if file is not None else b""
                found[member.name] = f"{member.mode:o} {member.mtime} {_digest(content)}"
    return found


def differences(first: Path, second: Path) -> list[str]:
    """Return the members in which two archives differ; their own name, if only their compression does."""
    if first.read_bytes() == second.read_bytes():
        return []
    left, right = members(first), members(second)
    names = [name for name in sorted({*left, *right}) if left.get(name) != right.get(name)]
    return [f"{first.name}: {name}" for name in names] or [f"{first.name}: order or compression"]


def notes(built: Path, commit: str, epoch: str) -> str:
    """Return the release notes: digests, what the jars were compiled against, and the changelog's section."""
    (wheel,) = built.glob("*.whl")
    version = wheel.name.split("-")[1]
    changelog = (build_shim.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(
        rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if section is None:
        sys.exit(f"CHANGELOG.md has no section of version {version}: add one")
    rows = [(path.name, _digest(path.read_bytes())) for path in sorted(built.iterdir())]
    against = {}
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as scratch:
        for name in sorted(name for name in archive.namelist() if name.endswith(".jar")):
            jar = Path(archive.extract(name, scratch))
            rows.append((jar.name, _digest(jar.read_bytes())))
            against[jar.name] = build_shim.build_versions(jar)
    minors = {build_shim.minor_of(spark) for spark, _ in against.values()}
    if minors != {*build_shim.SUPPORTED_SPARK}:
        sys.exit(f"the wheel has jars for Spark {', '.join(sorted(minors))} only")
    python = sys.version.split()[0]
    lines = [
        f"# spark-statestore {version}",
        "",
        f"Built twice, with the same bytes, from commit {commit} with SOURCE_DATE_EPOCH={epoch}.",
        f"`make release` makes them again, with Python {python} and Java {java_version()}.",
        "",
        "| file | SHA-256 |",
        "|---|---|",
        *(f"| {name} | `{digest}` |" for name, digest in rows),
        "",
        "| jar | compiled against |",
        "|---|---|",
        *(f"| {name} | Spark {spark}, Scala {scala} |" for name, (spark, scala) in against.items()),
        "",
    ]
    return "\n".join(lines) + section[1]


def java_version() -> str:
    """Return the version of the Java runtime that compiles the jars."""
    command = [build_shim.find_java(), "-XshowSettings:properties", "-version"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = re.search(r"java\.runtime\.version = (\S+)", output)
    return found[1] if found else "of an unknown version"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main(directory: Path) -> None:
    """Build twice, compare, and write a release into a directory, whose older releases are removed."""
    if git("status", "--porcelain", "--untracked-files=no"):
        sys.exit("a release is built from the last commit, but files have changed since: commit them")
    commit = git("rev-parse", "HEAD").decode().strip()
    epoch = git("log", "-1", "--format=%ct").decode().strip()
    with tempfile.TemporaryDirectory(prefix="release-") as scratch:
        builds = []
        for name, umask, settings in _SETTINGS:
            print(f"building sdist and wheel: {name.partition('/')[0]} time", file=sys.stderr)
            place = Path(scratch, name)
            place.mkdir(parents=True)
            builds.append(build(place, umask, settings, commit, epoch))
        names = [{path.name for path in built.iterdir()} for built in builds]
        differing = [f"{name}: built once" for name in sorted(names[0] ^ names[1])]
        for name in sorted(names[0] & names[1]):
            differing += differences(builds[0] / name, builds[1] / name)
        if differing:
            sys.exit("\n  ".join(["two builds of one commit differ:", *differing]))
        text = notes(builds[0], commit, epoch)
        directory.mkdir(parents=True, exist_ok=True)
        for path in [*directory.glob("spark_statestore-*"), directory / NOTES]:
            path.unlink(missing_ok=True)
        for path in builds[0].iterdir():
            shutil.copy(path, directory)
        (directory / NOTES).write_text(text, encoding="utf-8")
    print(text.partition("\n## ")[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
